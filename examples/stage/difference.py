"""The difference of two cameras, frame by frame. Run it: tensorpool run difference.py"""

import numpy as np

import tensorpool as tp


def difference(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.astype(np.int32) - right


stage = tp.stage({"left": "camera-1", "right": "camera-2"}, difference, 30020, by="sequence")

if __name__ == "__main__":
    stage.run()
