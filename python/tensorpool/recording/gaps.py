"""Every sequence is accounted for: it is a row, or it is in a gap that says why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

UNEXPLAINED: Final = "unexplained"
"""Nobody said why: rows on both sides are there, and these are not."""
NOT_RECORDING: Final = "not_recording"
"""No recorder was writing: it was down, or had not been started again yet."""
CORRUPT: Final = "corrupt"
"""It was recorded, and a repair found it damaged."""


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Sequences that are not in the recording, and why."""

    stream_id: int
    epoch: int
    first_seq: int
    count: int
    reason: str

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


@dataclass(frozen=True, slots=True)
class RecordingLedger:
    """The sequences of one epoch of a stream: `span` = `rows` + the sum of `gaps`."""

    stream_id: int
    epoch: int
    first_seq: int
    last_seq: int
    rows: int
    gaps: dict[str, int] = field(default_factory=dict)
    """How many are missing, by reason."""

    @property
    def span(self) -> int:
        return self.last_seq - self.first_seq + 1

    @property
    def balanced(self) -> bool:
        return self.span == self.rows + sum(self.gaps.values())

    def __str__(self) -> str:
        gaps = "".join(f" + {reason} {count}" for reason, count in sorted(self.gaps.items()))
        return f"span {self.span} = rows {self.rows}{gaps}"


def find_holes(seqs: npt.NDArray[Any], *, after: int | None = None) -> list[tuple[int, int]]:
    """(first, last) of what is missing between growing sequences, and between `after` and the first."""
    found = []
    if len(seqs) and after is not None and int(seqs[0]) > after + 1:
        found.append((after + 1, int(seqs[0]) - 1))
    jumps = np.flatnonzero(np.diff(seqs.astype(np.uint64, copy=False)) != 1)
    found += [(int(seqs[i]) + 1, int(seqs[i + 1]) - 1) for i in jumps.tolist()]
    return found


def classify_missing(
    missing: Sequence[tuple[int, int]], known: Iterable[Gap], default: str
) -> list[tuple[int, int, str]]:
    """Cuts what is missing into (first, last, reason), by gaps that were declared.

    `missing` is in order. Where two gaps speak of the same sequence, the one that begins first is
    believed, and of those that begin together the one that was declared first.
    """
    declared = merge_gaps(known)
    found: list[tuple[int, int, str]] = []
    number = 0
    for first, last in missing:
        at = first
        while number < len(declared) and declared[number][1] < first:
            number += 1
        for begin, end, reason in declared[number:]:
            if begin > last:
                break
            if begin > at:
                found.append((at, begin - 1, default))
            found.append((max(at, begin), min(end, last), reason))
            at = min(end, last) + 1
        if at <= last:
            found.append((at, last, default))
    return found


def merge_gaps(gaps: Iterable[Gap]) -> list[tuple[int, int, str]]:
    """(first, last, reason) in order, none reaching into another."""
    found: list[tuple[int, int, str]] = []
    for gap in sorted(gaps, key=lambda gap: gap.first_seq):
        first = max(gap.first_seq, found[-1][1] + 1) if found else gap.first_seq
        if first <= gap.last_seq:
            found.append((first, gap.last_seq, gap.reason))
    return found


class GapTracker:
    """What a writer knows of one epoch's sequences: where it stands, and what it was told is missing."""

    def __init__(
        self, stream_id: int, epoch: int, *, last_seq: int | None = None, declared: Iterable[Gap] = ()
    ) -> None:
        self._stream_id = stream_id
        self._epoch = epoch
        self._last_seq = last_seq
        self._declared = [gap for gap in declared if last_seq is None or gap.last_seq > last_seq]
        # What is missing before the first frame of a writer that goes on is not the disk's fault.
        self._default = NOT_RECORDING if last_seq is not None else UNEXPLAINED

    @property
    def last_seq(self) -> int | None:
        """The last sequence that is a row or in a declared gap."""
        ends = [gap.last_seq for gap in self._declared]
        return max([*ends, self._last_seq] if self._last_seq is not None else ends, default=None)

    def declare(self, first_seq: int, count: int, reason: str) -> Gap:
        """Takes note of a gap; ValueError if it is none, or some of it is there."""
        if count < 1 or first_seq < 0 or first_seq + count > 1 << 64:
            raise ValueError(f"{count} sequences from {first_seq} on are no gap")
        last = self.last_seq
        if last is not None and first_seq <= last:
            raise ValueError(f"a gap from {first_seq} on, and {last} is accounted for already")
        gap = Gap(self._stream_id, self._epoch, first_seq, count, reason)
        self._declared.append(gap)
        return gap

    def drafts(self) -> list[Gap]:
        """What is declared now; handed to `undo` if what follows comes to nothing."""
        return list(self._declared)

    def undo(self, drafts: list[Gap]) -> None:
        self._declared = drafts

    def problem(self, seqs: npt.NDArray[np.uint64]) -> str | None:
        """Why these cannot be the next rows; None if they can."""
        if self._last_seq is not None and int(seqs[0]) <= self._last_seq:
            return f"sequence {int(seqs[0])} comes after {self._last_seq}, which is recorded already"
        for gap in self._declared:
            low, high = np.searchsorted(seqs, [np.uint64(gap.first_seq), np.uint64(gap.last_seq + 1)])
            if low < high:
                return f"sequence {int(seqs[low])} was declared missing ({gap.reason})"
        return None

    def settle(self, seqs: npt.NDArray[np.uint64]) -> list[Gap]:
        """Takes the rows into account; gives the gaps that nobody declared."""
        before = self._last_seq
        if before is None and self._declared:
            before = self._declared[0].first_seq - 1
        between = find_holes(seqs, after=before)
        first = int(seqs[0])
        found = []
        for start, end, reason in classify_missing(between, self._declared, ""):
            if not reason:
                why = self._default if end < first else UNEXPLAINED
                found.append(Gap(self._stream_id, self._epoch, start, end - start + 1, why))
        self._last_seq = int(seqs[-1])
        self._declared = [gap for gap in self._declared if gap.first_seq > self._last_seq]
        self._default = UNEXPLAINED
        return found
