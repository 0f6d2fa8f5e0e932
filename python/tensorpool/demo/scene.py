"""What the camera films: a pattern in which every pixel depends on the frame, so that a torn frame shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SHAPE = (480, 640)
DTYPE = np.dtype("uint16")
FRAME_BYTES = SHAPE[0] * SHAPE[1] * DTYPE.itemsize
NSLOTS = 8
NAME = "camera"
POOL = "1MiB"

_BACKGROUND = (np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1])) * 7).astype(DTYPE)


def draw(into: npt.NDArray[Any], number: int) -> None:
    """Fills `into` with frame `number`."""
    np.add(_BACKGROUND, DTYPE.type(number & 0xFFFF), out=into)


def is_whole(image: npt.NDArray[Any], number: int) -> bool:
    """Whether every pixel belongs to frame `number`."""
    return bool(np.array_equal(image, _BACKGROUND + DTYPE.type(number & 0xFFFF)))
