"""Gaps with their reasons, the ledger of an epoch's sequences, and the tracker that a writer uses. Pure.

Every sequence between the first and the last of an epoch is a row or belongs to a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from ..text import html_table

UNEXPLAINED: Final = "unexplained"
"""Rows on both sides are recorded, and no gap was declared for these sequences."""
NOT_RECORDING: Final = "not_recording"
"""No recorder was running."""
CORRUPT: Final = "corrupt"
"""The frames were recorded, and a repair found them damaged."""


class GapRange(NamedTuple):
    """Missing sequences from `first` to `last`, both included, with their reason."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Sequences that are not in the recording, with the reason."""

    stream_id: int
    """The stream."""
    epoch: int
    """The epoch."""
    first_seq: int
    """The first missing sequence."""
    count: int
    """How many are missing in a row."""
    reason: str
    """Why; the page on drop reasons lists them."""

    @property
    def last_seq(self) -> int:
        """The last missing sequence."""
        return self.first_seq + self.count - 1


class LedgerReply(TypedDict):
    """A `RecordingLedger` in JSON. 64-bit numbers are text, because many JSON readers would round them."""

    stream_id: int
    epoch: str
    first_seq: str
    last_seq: str
    span: int
    rows: int
    gaps: dict[str, int]
    balanced: bool


@dataclass(frozen=True, slots=True)
class RecordingLedger:
    """The sequences of one epoch of a stream: `span` = `rows` + the sum of `gaps`."""

    stream_id: int
    """The stream."""
    epoch: int
    """The epoch."""
    first_seq: int
    """The first known sequence."""
    last_seq: int
    """The last known sequence; below `first_seq` if there is none."""
    rows: int
    """Sequences that are frames of the recording."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Missing sequences by reason."""

    @property
    def span(self) -> int:
        """Number of sequences from the first to the last."""
        return self.last_seq - self.first_seq + 1

    @property
    def balanced(self) -> bool:
        """Whether every sequence is a row or in a gap."""
        return self.span == self.rows + sum(self.gaps.values())

    def __str__(self) -> str:
        gaps = "".join(f" + {reason} {count}" for reason, count in sorted(self.gaps.items()))
        return f"span {self.span} = rows {self.rows}{gaps}"

    def _repr_html_(self) -> str:
        rows = {"stream": self.stream_id, "epoch": self.epoch, "span": self.span, "rows": self.rows}
        return html_table({**rows, **{f"gap: {reason}": n for reason, n in sorted(self.gaps.items())}})

    def to_json(self) -> LedgerReply:
        """The ledger as JSON."""
        return {
            "stream_id": self.stream_id,
            "epoch": str(self.epoch),
            "first_seq": str(self.first_seq),
            "last_seq": str(self.last_seq),
            "span": self.span,
            "rows": self.rows,
            "gaps": dict(sorted(self.gaps.items())),
            "balanced": self.balanced,
        }


def find_holes(seqs: npt.NDArray[Any], *, after: int | None = None) -> list[tuple[int, int]]:
    """(first, last) of the sequences missing between increasing ones, and between `after` and the first."""
    holes = []
    if len(seqs) and after is not None and int(seqs[0]) > after + 1:
        holes.append((after + 1, int(seqs[0]) - 1))
    jumps = np.flatnonzero(np.diff(seqs.astype(np.uint64, copy=False)) != 1)
    holes += [(int(seqs[i]) + 1, int(seqs[i + 1]) - 1) for i in jumps.tolist()]
    return holes


def classify_missing(
    missing: Sequence[tuple[int, int]], known: Iterable[Gap], default: str
) -> list[GapRange]:
    """Splits missing ranges by the reasons of declared gaps; the others get the reason `default`.

    `missing` is in order. Where two gaps cover the same sequence, the one that begins first wins, and of two
    that begin together the one that was declared first.
    """
    declared = merge_gaps(known)
    ranges: list[GapRange] = []
    number = 0
    for first, last in missing:
        at = first
        while number < len(declared) and declared[number].last < first:
            number += 1
        for begin, end, reason in declared[number:]:
            if begin > last:
                break
            if begin > at:
                ranges.append(GapRange(at, begin - 1, default))
            ranges.append(GapRange(max(at, begin), min(end, last), reason))
            at = min(end, last) + 1
        if at <= last:
            ranges.append(GapRange(at, last, default))
    return ranges


def merge_gaps(gaps: Iterable[Gap]) -> list[GapRange]:
    """The gaps in order, without overlaps."""
    ranges: list[GapRange] = []
    for gap in sorted(gaps, key=lambda gap: gap.first_seq):
        first = max(gap.first_seq, ranges[-1].last + 1) if ranges else gap.first_seq
        if first <= gap.last_seq:
            ranges.append(GapRange(first, gap.last_seq, gap.reason))
    return ranges


class GapTracker:
    """The sequences of one epoch while it is written: the last row, and the declared gaps behind it."""

    def __init__(
        self, stream_id: int, epoch: int, *, last_seq: int | None = None, declared: Iterable[Gap] = ()
    ) -> None:
        self._stream_id = stream_id
        self._epoch = epoch
        self._last_seq = last_seq
        self._declared = [gap for gap in declared if last_seq is None or gap.last_seq > last_seq]
        # A hole before the first frame of a writer that continues an epoch: no recorder was running.
        self._default = NOT_RECORDING if last_seq is not None else UNEXPLAINED

    @property
    def last_seq(self) -> int | None:
        """The last sequence that is a row or in a declared gap."""
        ends = [gap.last_seq for gap in self._declared]
        return max([*ends, self._last_seq] if self._last_seq is not None else ends, default=None)

    def declare(self, first_seq: int, count: int, reason: str) -> Gap:
        """Adds a gap. ValueError if it is empty, or overlaps a row or another gap."""
        if count < 1 or first_seq < 0 or first_seq + count > 1 << 64:
            raise ValueError(f"{count} sequences from {first_seq} on are not a gap")
        last = self.last_seq
        if last is not None and first_seq <= last:
            raise ValueError(f"a gap begins at {first_seq}, but {last} is a row or in a gap already")
        gap = Gap(self._stream_id, self._epoch, first_seq, count, reason)
        self._declared.append(gap)
        return gap

    def declared(self) -> list[Gap]:
        """The declared gaps, to be given to `restore` if the write that follows fails."""
        return list(self._declared)

    def restore(self, declared: list[Gap]) -> None:
        """Returns to an earlier set of declared gaps."""
        self._declared = declared

    def sequence_fault(self, seqs: npt.NDArray[np.uint64]) -> str | None:
        """Why these sequences cannot be the next rows; None if they can."""
        if self._last_seq is not None and int(seqs[0]) <= self._last_seq:
            return f"sequence {int(seqs[0])} comes after {self._last_seq}, which is recorded already"
        for gap in self._declared:
            low, high = np.searchsorted(seqs, [np.uint64(gap.first_seq), np.uint64(gap.last_seq + 1)])
            if low < high:
                return f"sequence {int(seqs[low])} was declared missing ({gap.reason})"
        return None

    def add_rows(self, seqs: npt.NDArray[np.uint64]) -> list[Gap]:
        """Counts rows that were written. Returns the gaps before and between them that were not declared."""
        before = self._last_seq
        if before is None and self._declared:
            before = self._declared[0].first_seq - 1
        holes = find_holes(seqs, after=before)
        first = int(seqs[0])
        undeclared = []
        for start, end, declared_reason in classify_missing(holes, self._declared, ""):
            if not declared_reason:
                reason = self._default if end < first else UNEXPLAINED
                undeclared.append(Gap(self._stream_id, self._epoch, start, end - start + 1, reason))
        self._last_seq = int(seqs[-1])
        self._declared = [gap for gap in self._declared if gap.first_seq > self._last_seq]
        self._default = UNEXPLAINED
        return undeclared
