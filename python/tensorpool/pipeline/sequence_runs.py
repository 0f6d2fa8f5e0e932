"""Sets of sequences of an epoch, stored as runs, which are few if few sequences are missing. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Run = tuple[int, int]
"""First and last sequence, both included."""


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """The sequences of an epoch as a decision stores them, for `SequenceRuns.load`."""

    runs: list[Run] = field(default_factory=list)
    closed: int | None = None


class SequenceRuns:
    """A set of sequences with at most `max_runs` runs.

    Beyond that the lowest holes are closed, and `closed` is set.
    """

    def __init__(
        self, runs: Iterable[Sequence[int]] = (), *, closed: int | None = None, max_runs: int
    ) -> None:
        self._runs: list[Run] = _merged((int(first), int(last)) for first, last in runs)
        self._max_runs = max_runs
        self.closed = closed
        """At or below this sequence holes were closed: it is unknown whether a sequence is in the set."""
        self._trim()

    @classmethod
    def load(cls, stored: StoredRuns, *, max_runs: int) -> SequenceRuns:
        """The set that `store` returned."""
        return cls(stored.runs, closed=stored.closed, max_runs=max_runs)

    def store(self) -> StoredRuns:
        """The set for the next micro-batch."""
        return StoredRuns(list(self._runs), self.closed)

    @property
    def runs(self) -> list[Run]:
        """The runs, in order."""
        return list(self._runs)

    def __len__(self) -> int:
        """The number of sequences."""
        return sum(last - first + 1 for first, last in self._runs)

    def contains(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each sequence is in the set."""
        if not self._runs:
            return np.zeros(len(seqs), np.bool_)
        starts = np.array([first for first, _ in self._runs], np.int64)
        ends = np.array([last for _, last in self._runs], np.int64)
        at = np.searchsorted(starts, seqs, "right") - 1
        is_contained: npt.NDArray[np.bool_] = (at >= 0) & (seqs <= ends[np.maximum(at, 0)])
        return is_contained

    def is_closed(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each sequence is where holes were closed, so that its presence is unknown."""
        is_below: npt.NDArray[np.bool_] = (
            np.zeros(len(seqs), np.bool_) if self.closed is None else seqs <= self.closed
        )
        return is_below

    def add(self, runs: Iterable[Run]) -> None:
        """Adds the sequences of runs."""
        self._runs = _merged([*self._runs, *runs])
        self._trim()

    def missing(self, first: int, count: int) -> list[Run]:
        """The parts of the run of `count` sequences from `first` that are not in the set."""
        parts, at, end = [], first, first + count - 1
        begin = max(bisect.bisect_right(self._runs, (first, 1 << 63)) - 1, 0)
        for low, high in itertools.islice(self._runs, begin, None):
            if high < at:
                continue
            if low > end:
                break
            if low > at:
                parts.append((at, low - 1))
            at = high + 1
        if at <= end:
            parts.append((at, end))
        return parts

    def _trim(self) -> None:
        if len(self._runs) > self._max_runs:
            behind = len(self._runs) - self._max_runs
            last = self._runs[behind][1]
            # The last joined run is known as a whole; unknown sequences are before it.
            self.closed = max(self._runs[behind][0] - 1, self.closed if self.closed is not None else 0)
            self._runs = [(self._runs[0][0], last), *self._runs[behind + 1 :]]


def runs_of(seqs: npt.NDArray[np.int64]) -> list[Run]:
    """The runs of some sequences, which may be in any order."""
    if not len(seqs):
        return []
    ordered = np.unique(seqs)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))]
    lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _merged(runs: Iterable[Run]) -> list[Run]:
    merged: list[Run] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged
