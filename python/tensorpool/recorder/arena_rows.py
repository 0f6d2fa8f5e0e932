"""Rows and gaps of an arena of the native recorder loop, as views that the recording writer accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from .. import _native
from ..recording import FrameBatch, Gap

ROW: Final = np.dtype(
    [
        ("seq", np.uint64),
        ("timestamp_ns", np.uint64),
        ("publish_timestamp_ns", np.uint64),
        ("receive_time_ns", np.int64),
        ("trace_id", np.uint64),
        ("payload_offset", np.uint64),
        ("payload_bytes", np.uint64),
        ("strides", np.int64, (8,)),
        ("dims", np.int32, (8,)),
        ("meta_version", np.uint32),
        ("crc32c", np.uint32),
        ("dtype", np.int16),
        ("major_order", np.int16),
        ("ndims", np.uint8),
        ("unused", np.uint8, (3,)),
    ]
)
"""One row of an arena; must match `Row` in crates/core/src/recording/rows.rs byte for byte."""

_COLUMNS: Final = tuple(name for name in ROW.names or () if name != "unused")


@dataclass(frozen=True, slots=True)
class TimedGap:
    """A gap, the row of its arena that follows it, and the time at which it was detected."""

    gap: Gap
    before_row: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class ArenaRows:
    """Rows of one epoch of a stream with their gaps. The arrays are views of the arena's memory."""

    stream_id: int
    epoch: int
    batch: FrameBatch | None
    """None if the arena contains only gaps."""
    gaps: tuple[TimedGap, ...]

    @classmethod
    def from_arena(cls, arena: _native.Arena) -> Self:
        """A view of an arena; it keeps the arena alive."""
        stream_id, epoch = arena.stream_id, arena.epoch
        batch = None
        if len(arena):
            table = arena.rows.view(ROW)
            columns = {name: table[name] for name in _COLUMNS}
            batch = FrameBatch(stream_id=stream_id, epoch=epoch, arena=arena.payload, **columns)
        gaps = tuple(
            TimedGap(
                Gap(stream_id, gap.epoch, gap.first_seq, gap.count, gap.reason), gap.before_row, gap.time_ns
            )
            for gap in arena.gaps
        )
        return cls(stream_id, epoch, batch, gaps)

    @property
    def row_count(self) -> int:
        """Number of rows; 0 if there are only gaps."""
        return 0 if self.batch is None else len(self.batch)

    @property
    def newest_ns(self) -> int:
        """Wall-clock time at which the newest row or gap was received."""
        times = [timed.time_ns for timed in self.gaps]
        if self.batch is not None:
            times.append(int(self.batch.receive_time_ns[-1]))
        return max(times, default=0)

    def since(self, time_ns: int) -> ArenaRows | None:
        """The rows and gaps received at that time or later; None if there are none."""
        if self.batch is None:
            kept = tuple(timed for timed in self.gaps if timed.time_ns >= time_ns)
            return ArenaRows(self.stream_id, self.epoch, None, kept) if kept else None
        times = self.batch.receive_time_ns
        # The wall clock may be set back, so times need not grow: cut behind the last row that is too old.
        old = np.flatnonzero(times < time_ns)
        return self.from_row(int(old[-1]) + 1 if len(old) else 0, time_ns)

    def from_row(self, row: int, time_ns: int | None = None) -> ArenaRows | None:
        """The rows from `row` on and the gaps between them.

        A gap directly before `row` is kept unless it was detected before `time_ns`.
        """
        if self.batch is None or row <= 0:
            return self
        kept = tuple(
            TimedGap(timed.gap, timed.before_row - row, timed.time_ns)
            for timed in self.gaps
            if timed.before_row > row
            or (timed.before_row == row and (time_ns is None or timed.time_ns >= time_ns))
        )
        batch = self.batch.rows(row, len(self.batch)) if row < len(self.batch) else None
        return ArenaRows(self.stream_id, self.epoch, batch, kept) if batch is not None or kept else None

    def up_to_row(self, row: int) -> ArenaRows | None:
        """The rows before `row` and the gaps before the last of them."""
        if self.batch is None or row >= len(self.batch):
            return self
        kept = tuple(timed for timed in self.gaps if timed.before_row < row)
        batch = self.batch.rows(0, row) if row > 0 else None
        return ArenaRows(self.stream_id, self.epoch, batch, kept) if batch is not None or kept else None
