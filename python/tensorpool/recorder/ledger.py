"""The account of a stream while it is recorded: every sequence once, as a row or in a gap. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ..recording import Gap, RecordingLedger
from .arena import ArenaRows


@dataclass(slots=True)
class EpochLedger:
    """What was written of one epoch."""

    first_seq: int
    next_seq: int
    """Everything from the first up to here is accounted for."""
    rows: int = 0
    gaps: Counter[str] = field(default_factory=Counter)

    def add_rows(self, first_seq: int, last_seq: int, rows: int) -> None:
        self.rows += rows
        self._reach(first_seq, last_seq)

    def add_gap(self, gap: Gap) -> None:
        self.gaps[gap.reason] += gap.count
        self._reach(gap.first_seq, gap.last_seq)

    def _reach(self, first_seq: int, last_seq: int) -> None:
        self.first_seq = min(self.first_seq, first_seq)
        self.next_seq = max(self.next_seq, last_seq + 1)


class StreamLedger:
    """All epochs of a stream that a recorder has written something of."""

    def __init__(self, stream_id: int, position: tuple[int, int] | None = None) -> None:
        self.stream_id = stream_id
        self._position = position
        self._epochs: dict[int, EpochLedger] = {}

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self._epochs.values())

    @property
    def gaps(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in self._epochs.values():
            total.update(one.gaps)
        return total

    def hole_before(self, piece: ArenaRows, reason: str) -> Gap | None:
        """What lies between the end of this account and the piece: left out on purpose, for that reason.

        None where the piece follows, and where nothing of its epoch is recorded: a span begins with what is.
        """
        first = _first_seq(piece)
        next_seq = self._next_seq(piece.epoch)
        if first is None or next_seq is None or first <= next_seq:
            return None
        return Gap(self.stream_id, piece.epoch, next_seq, first - next_seq, reason)

    def _next_seq(self, epoch: int) -> int | None:
        if (one := self._epochs.get(epoch)) is not None:
            return one.next_seq
        if self._position is not None and self._position[0] == epoch:
            return self._position[1] + 1
        return None

    def add(self, piece: ArenaRows, gaps: Iterable[Gap]) -> None:
        """The piece was written, with these gaps of whatever epoch."""
        if piece.batch is not None:
            first, last = piece.batch.first_seq, piece.batch.last_seq
            self._epoch(piece.epoch, first).add_rows(first, last, len(piece.batch))
        for gap in gaps:
            self.add_gap(gap)

    def add_gap(self, gap: Gap) -> None:
        self._epoch(gap.epoch, gap.first_seq).add_gap(gap)

    def _epoch(self, epoch: int, first_seq: int) -> EpochLedger:
        return self._epochs.setdefault(epoch, EpochLedger(first_seq, first_seq))

    def ledgers(self) -> list[RecordingLedger]:
        return [
            RecordingLedger(self.stream_id, epoch, one.first_seq, one.next_seq - 1, one.rows, dict(one.gaps))
            for epoch, one in sorted(self._epochs.items())
        ]


def _first_seq(piece: ArenaRows) -> int | None:
    """The first sequence that a piece speaks of, in its own epoch."""
    starts = [one.gap.first_seq for one in piece.gaps if one.gap.epoch == piece.epoch]
    if piece.batch is not None:
        starts.append(piece.batch.first_seq)
    return min(starts, default=None)


def rows_as_gaps(piece: ArenaRows, reason: str) -> list[Gap]:
    """The rows of a piece as if none of them could be written: one for each run between its own gaps."""
    if piece.batch is None:
        return []
    cuts = [one.before_row for one in piece.gaps if one.gap.epoch == piece.epoch]
    bounds = sorted({0, len(piece.batch), *cuts})
    seqs = piece.batch.seq
    runs = ((int(seqs[start]), int(seqs[stop - 1])) for start, stop in pairwise(bounds))
    return [Gap(piece.stream_id, piece.epoch, first, last - first + 1, reason) for first, last in runs]
