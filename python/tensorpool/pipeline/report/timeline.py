"""Series of figures in a bounded number of time buckets, for charts of any length of time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

BUCKETS: Final = 240

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range, divided into buckets of equal length."""

    start_ns: int
    end_ns: int
    buckets: int

    @classmethod
    def over(cls, start_ns: int, end_ns: int, finest_ns: int, max_buckets: int = BUCKETS) -> TimeRange:
        """A range of at most `max_buckets` buckets, each with the same number of intervals of `finest_ns`."""
        finest = max(finest_ns, 1)
        length = max(end_ns - start_ns, finest)
        intervals = -(-length // finest)
        each = -(-intervals // max_buckets)
        buckets = -(-intervals // each)
        return cls(start_ns, start_ns + buckets * each * finest, buckets)

    @property
    def bucket_ns(self) -> int:
        """The length of a bucket."""
        return (self.end_ns - self.start_ns) // self.buckets

    def place(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """The bucket of each time; times outside of the range get the nearest bucket."""
        return np.clip((times_ns - self.start_ns) // self.bucket_ns, 0, self.buckets - 1).astype(np.intp)


@dataclass(slots=True)
class BucketSeries:
    """Figures by bucket. Buckets without a value are NaN; sums are 0."""

    span: TimeRange
    sums: dict[str, Floats] = field(default_factory=dict)
    peaks: dict[str, Floats] = field(default_factory=dict)
    weighted: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)

    def add(self, name: str, at: npt.NDArray[np.intp], values: Floats) -> None:
        """Adds values to the sums of their buckets."""
        total = self.sums.setdefault(name, np.zeros(self.span.buckets))
        np.add.at(total, at, np.nan_to_num(values))

    def raise_to(self, name: str, at: npt.NDArray[np.intp], values: Floats) -> None:
        """Keeps the largest value of each bucket."""
        peak = self.peaks.setdefault(name, np.full(self.span.buckets, np.nan))
        np.fmax.at(peak, at, values)

    def weigh(self, name: str, at: npt.NDArray[np.intp], values: Floats, weights: Floats) -> None:
        """Adds weighted values to the means of their buckets."""
        total, weight = self.weighted.setdefault(
            name, (np.zeros(self.span.buckets), np.zeros(self.span.buckets))
        )
        known = np.isfinite(values)
        np.add.at(total, at[known], (values * weights)[known])
        np.add.at(weight, at[known], weights[known])

    def sum(self, name: str) -> Floats:
        """The sums by bucket."""
        return self.sums.get(name, np.zeros(self.span.buckets))

    def peak(self, name: str) -> Floats:
        """The largest values by bucket."""
        return self.peaks.get(name, np.full(self.span.buckets, np.nan))

    def mean(self, name: str) -> Floats:
        """The weighted means by bucket."""
        total, weight = self.weighted.get(name, (np.zeros(self.span.buckets), np.zeros(self.span.buckets)))
        means: Floats = np.divide(total, weight, out=np.full(self.span.buckets, np.nan), where=weight > 0)
        return means
