"""Percentiles of any number of values in a few kilobytes, to about one percent. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

# Buckets grow by this factor, so a percentile is off by at most that much.
_GROWTH: Final = 1.02
_LOG: Final = float(np.log(_GROWTH))
_BUCKETS: Final = int(np.ceil(np.log(2.0**63) / _LOG)) + 2


class Histogram:
    """Whole numbers from 0 to 2**63; negative ones count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.largest = 0

    def add(self, values: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | None = None) -> None:
        """Counts each value, as many times as is said."""
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
        """The upper edge of the bucket that the share falls into; None of nothing."""
        if not self.count:
            return None
        rank = max(int(np.ceil(share * self.count)), 1)
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(int(_GROWTH**place), self.largest) if place else 0
