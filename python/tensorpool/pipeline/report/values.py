"""Arrow columns as numpy arrays, and a histogram of fixed size for percentiles within two percent. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# The factor between buckets, and so the largest relative error of a percentile.
_GROWTH: Final = 1.02
_LOG: Final = float(np.log(_GROWTH))
_BUCKETS: Final = int(np.ceil(np.log(2.0**63) / _LOG)) + 2


def numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """A column as floats; null is NaN."""
    values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


def whole(column: pa.Array) -> npt.NDArray[np.int64]:
    """A column as integers; null is 0."""
    values = pc.fill_null(pc.cast(column, pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64)


class Histogram:
    """A histogram of integers from 0 to 2**63; negative values count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.largest = 0

    def add(self, values: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | None = None) -> None:
        """Counts each value, `times` times if given."""
        if not len(values):
            return
        sizes = np.maximum(values, 0)
        places = np.zeros(len(sizes), np.intp)
        above = sizes > 0
        places[above] = 1 + (np.log(sizes[above].astype(np.float64)) / _LOG).astype(np.intp)
        weights = np.ones(len(sizes), np.int64) if times is None else times
        np.add.at(self._counts, places, weights)
        self.count += int(weights.sum())
        self.largest = max(self.largest, int(sizes.max()))

    def percentile(self, share: float) -> int | None:
        """The upper edge of the bucket with this share of the values below it; None without values."""
        if not self.count:
            return None
        rank = max(int(np.ceil(share * self.count)), 1)
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(int(_GROWTH**place), self.largest) if place else 0
