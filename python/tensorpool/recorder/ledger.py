"""The ledger of a stream while it is recorded: every sequence is a row or part of a gap. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..recording import Gap, RecordingLedger
from .arena_rows import ArenaRows


class ResumePosition(NamedTuple):
    """The last epoch of a stream in a recording and the last of its sequences that is accounted for."""

    epoch: int
    seq: int


@dataclass(slots=True)
class EpochLedger:
    """Counts of one epoch."""

    first_seq: int
    next_seq: int
    """All sequences from `first_seq` up to, not including, this sequence are accounted for."""
    rows: int = 0
    gaps: Counter[str] = field(default_factory=Counter)

    def add_rows(self, first_seq: int, last_seq: int, rows: int) -> None:
        """Count written rows."""
        self.rows += rows
        self._extend(first_seq, last_seq)

    def add_gap(self, gap: Gap) -> None:
        """Count the sequences of a written gap."""
        self.gaps[gap.reason] += gap.count
        self._extend(gap.first_seq, gap.last_seq)

    def _extend(self, first_seq: int, last_seq: int) -> None:
        self.first_seq = min(self.first_seq, first_seq)
        self.next_seq = max(self.next_seq, last_seq + 1)


class EpochLedgers:
    """Counts of all epochs of a stream since the recorder started."""

    def __init__(self, stream_id: int, position: ResumePosition | None = None) -> None:
        """`position`: where an earlier recorder ended; None for a new stream."""
        self.stream_id = stream_id
        self._position = position
        self._epochs: dict[int, EpochLedger] = {}

    @property
    def rows(self) -> int:
        """Rows of all epochs."""
        return sum(epoch.rows for epoch in self._epochs.values())

    @property
    def gaps(self) -> Counter[str]:
        """Missing sequences of all epochs, by reason."""
        total: Counter[str] = Counter()
        for epoch in self._epochs.values():
            total.update(epoch.gaps)
        return total

    def gap_before(self, arena_rows: ArenaRows, reason: str) -> Gap | None:
        """The gap between the end of this ledger and `arena_rows`, with that reason.

        None if the rows follow directly, or if nothing of their epoch is recorded yet: the span of an epoch
        begins with its first row.
        """
        first_seq = _first_seq(arena_rows)
        next_seq = self._next_seq(arena_rows.epoch)
        if first_seq is None or next_seq is None or first_seq <= next_seq:
            return None
        return Gap(self.stream_id, arena_rows.epoch, next_seq, first_seq - next_seq, reason)

    def _next_seq(self, epoch: int) -> int | None:
        if (ledger := self._epochs.get(epoch)) is not None:
            return ledger.next_seq
        if self._position is not None and self._position.epoch == epoch:
            return self._position.seq + 1
        return None

    def add(self, arena_rows: ArenaRows, gaps: Iterable[Gap]) -> None:
        """Count written rows and these gaps, which may belong to other epochs."""
        if arena_rows.batch is not None:
            first_seq, last_seq = arena_rows.batch.first_seq, arena_rows.batch.last_seq
            self._epoch(arena_rows.epoch, first_seq).add_rows(first_seq, last_seq, len(arena_rows.batch))
        for gap in gaps:
            self.add_gap(gap)

    def add_gap(self, gap: Gap) -> None:
        """Count a written gap in its epoch."""
        self._epoch(gap.epoch, gap.first_seq).add_gap(gap)

    def _epoch(self, epoch: int, first_seq: int) -> EpochLedger:
        return self._epochs.setdefault(epoch, EpochLedger(first_seq, first_seq))

    def ledgers(self) -> list[RecordingLedger]:
        """One ledger per epoch, in the order of epochs."""
        return [
            RecordingLedger(
                self.stream_id, epoch, ledger.first_seq, ledger.next_seq - 1, ledger.rows, dict(ledger.gaps)
            )
            for epoch, ledger in sorted(self._epochs.items())
        ]


def _first_seq(arena_rows: ArenaRows) -> int | None:
    """The first sequence of the rows and gaps that belong to their epoch."""
    starts = [timed.gap.first_seq for timed in arena_rows.gaps if timed.gap.epoch == arena_rows.epoch]
    if arena_rows.batch is not None:
        starts.append(arena_rows.batch.first_seq)
    return min(starts, default=None)


def rows_as_gaps(arena_rows: ArenaRows, reason: str) -> list[Gap]:
    """Gaps that replace the rows if none of them can be written: one per run of rows without a gap."""
    if arena_rows.batch is None:
        return []
    cuts = [timed.before_row for timed in arena_rows.gaps if timed.gap.epoch == arena_rows.epoch]
    bounds = sorted({0, len(arena_rows.batch), *cuts})
    seqs = arena_rows.batch.seq
    runs = ((int(seqs[start]), int(seqs[stop - 1])) for start, stop in pairwise(bounds))
    return [
        Gap(arena_rows.stream_id, arena_rows.epoch, first, last - first + 1, reason) for first, last in runs
    ]
