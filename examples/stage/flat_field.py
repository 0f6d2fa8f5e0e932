"""Corrects the frames of a camera by its flat field. Run it: tensorpool run flat_field.py"""

import numpy as np

import tensorpool as tp

y, x = np.mgrid[-1:1:480j, -1:1:640j]
FLAT_FIELD = (1 - 0.3 * (x**2 + y**2)).astype(np.float32)


def corrected(frame: np.ndarray) -> np.ndarray:
    return frame / FLAT_FIELD


correction = tp.stage("lab-camera", corrected, 30010)

if __name__ == "__main__":
    correction.run()
