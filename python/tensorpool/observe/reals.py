"""Elements of any kind as numbers that can be compared and drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def reals(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Complex numbers by their size, times as they are counted, types of other packages as float32."""
    match array.dtype.kind:
        case "c":
            size: npt.NDArray[Any] = np.abs(array)
            return size
        case "M" | "m":
            return array.view(np.int64)
        case "V":
            return array.astype(np.float32)
    return array
