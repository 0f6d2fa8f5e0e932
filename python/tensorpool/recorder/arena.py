"""What the native loop hands over, as what the writer takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
"""The same bytes as `Row` in crates/core/src/track/piece.rs."""

_COLUMNS: Final = tuple(name for name in ROW.names or () if name != "unused")


@dataclass(frozen=True, slots=True)
class TimedGap:
    """A gap, when it was noticed, and before which row of its piece."""

    gap: Gap
    before_row: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class ArenaRows:
    """Rows of one epoch of a stream, and gaps: what one arena held. Its memory is the arena's."""

    stream_id: int
    epoch: int
    batch: FrameBatch | None
    """None where there are only gaps."""
    gaps: tuple[TimedGap, ...]

    @property
    def rows(self) -> int:
        return 0 if self.batch is None else len(self.batch)

    @property
    def nbytes(self) -> int:
        return 0 if self.batch is None else self.batch.packed_bytes

    @property
    def newest_ns(self) -> int:
        """When the last of it came, by the time of day."""
        times = [one.time_ns for one in self.gaps]
        if self.batch is not None:
            times.append(int(self.batch.receive_time_ns[-1]))
        return max(times, default=0)

    def since(self, time_ns: int) -> ArenaRows | None:
        """What of it came at that time or later; None if nothing did."""
        if self.batch is None:
            kept = tuple(one for one in self.gaps if one.time_ns >= time_ns)
            return ArenaRows(self.stream_id, self.epoch, None, kept) if kept else None
        times = self.batch.receive_time_ns
        # The time of day may jump: what counts is the first row from which on all are young enough.
        old = np.flatnonzero(times < time_ns)
        return self.from_row(int(old[-1]) + 1 if len(old) else 0, time_ns)

    def from_row(self, row: int, time_ns: int | None = None) -> ArenaRows | None:
        """Without the first rows, and what is missing before them."""
        if self.batch is None or row <= 0:
            return self
        kept = tuple(
            TimedGap(one.gap, one.before_row - row, one.time_ns)
            for one in self.gaps
            if one.before_row > row or (one.before_row == row and (time_ns is None or one.time_ns >= time_ns))
        )
        batch = self.batch.rows(row, len(self.batch)) if row < len(self.batch) else None
        return ArenaRows(self.stream_id, self.epoch, batch, kept) if batch is not None or kept else None

    def up_to_row(self, row: int) -> ArenaRows | None:
        """The first rows, and what is missing before the last of them."""
        if self.batch is None or row >= len(self.batch):
            return self
        kept = tuple(one for one in self.gaps if one.before_row < row)
        batch = self.batch.rows(0, row) if row > 0 else None
        return ArenaRows(self.stream_id, self.epoch, batch, kept) if batch is not None or kept else None


def rows_from_arena(arena: _native.Arena) -> ArenaRows:
    """A view of an arena, which it keeps alive."""
    stream_id, epoch = arena.stream_id, arena.epoch
    batch = None
    if len(arena):
        table = arena.rows.view(ROW)
        columns = {name: table[name] for name in _COLUMNS}
        batch = FrameBatch(stream_id=stream_id, epoch=epoch, arena=arena.payload, **columns)
    gaps = tuple(
        TimedGap(Gap(stream_id, of_epoch, first_seq, count, reason), before_row, time_ns)
        for of_epoch, first_seq, count, reason, before_row, time_ns in arena.gaps
    )
    return ArenaRows(stream_id, epoch, batch, gaps)
