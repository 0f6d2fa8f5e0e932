"""Which sequences of an epoch were seen, as runs: small however many there are, as long as few are missing.
Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Run = tuple[int, int]
"""First and last sequence, both included."""


class SequenceRuns:
    """A set of sequences. Keeps at most `most` runs: the lowest holes are closed first, and known as
    closed."""

    def __init__(self, runs: Iterable[Sequence[int]] = (), *, closed: int | None = None, most: int) -> None:
        self._runs: list[Run] = _merged((int(first), int(last)) for first, last in runs)
        self._most = most
        self.closed = closed
        """At or below this sequence nothing is remembered any more: what comes there is late."""
        self._trim()

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    def __len__(self) -> int:
        """How many sequences."""
        return sum(last - first + 1 for first, last in self._runs)

    def contains(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if not self._runs:
            return np.zeros(len(seqs), np.bool_)
        starts = np.array([first for first, _ in self._runs], np.int64)
        ends = np.array([last for _, last in self._runs], np.int64)
        at = np.searchsorted(starts, seqs, "right") - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (seqs <= ends[np.maximum(at, 0)])
        return found

    def is_closed(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether they lie where holes were closed: it is not known any more if they are in the set."""
        found: npt.NDArray[np.bool_] = (
            np.zeros(len(seqs), np.bool_) if self.closed is None else seqs <= self.closed
        )
        return found

    def add(self, runs: Iterable[Run]) -> None:
        self._runs = _merged([*self._runs, *runs])
        self._trim()

    def missing(self, first: int, count: int) -> list[Run]:
        """What of a run is not in the set."""
        found, at, end = [], first, first + count - 1
        begin = max(bisect.bisect_right(self._runs, (first, 1 << 63)) - 1, 0)
        for low, high in itertools.islice(self._runs, begin, None):
            if high < at:
                continue
            if low > end:
                break
            if low > at:
                found.append((at, low - 1))
            at = high + 1
        if at <= end:
            found.append((at, end))
        return found

    def to_json(self) -> dict[str, Any]:
        return {"runs": [list(run) for run in self._runs], "closed": self.closed}

    def _trim(self) -> None:
        if len(self._runs) > self._most:
            behind = len(self._runs) - self._most
            last = self._runs[behind][1]
            # The last of them is known as a whole; what is not known lies before it.
            self.closed = max(self._runs[behind][0] - 1, self.closed if self.closed is not None else 0)
            self._runs = [(self._runs[0][0], last), *self._runs[behind + 1 :]]


def runs_of(seqs: npt.NDArray[np.int64]) -> list[Run]:
    """The runs of some sequences, in any order."""
    if not len(seqs):
        return []
    ordered = np.unique(seqs)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))]
    lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _merged(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found
