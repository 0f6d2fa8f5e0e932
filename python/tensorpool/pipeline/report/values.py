"""Columns of Arrow as arrays of numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """As floats; null is NaN."""
    found = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def whole(column: pa.Array) -> npt.NDArray[np.int64]:
    """As whole numbers; null is 0."""
    found = pc.fill_null(pc.cast(column, pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int64)
