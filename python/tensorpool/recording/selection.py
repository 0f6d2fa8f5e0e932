"""Frames of one stream selected by epoch, sequence and time, as a lazily read sequence."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecording, FrameNotRecorded
from . import manifest
from .frame import RecordedFrame
from .manifest import RecordKind, Records
from .rows import OpenSegment, RowBlock, SegmentCache

if TYPE_CHECKING:
    from .frame import Cursor

_ALL: Final = -math.inf, math.inf
# Frame objects are created in groups: one at a time, each would find the CPU caches full of a payload.
_FRAMES_AT_ONCE: Final = 16
Bounds = tuple[float, float]
"""First and last, both included; infinite for no bound."""
Rows = npt.NDArray[np.intp] | range
"""Row numbers of a batch."""


@dataclass(frozen=True, slots=True)
class FrameFilter:
    """Condition on the frames of a stream. Bounds include both ends."""

    seq: Bounds = _ALL
    time_ns: Bounds = _ALL
    skip_damage: bool = False
    after: Cursor | None = None
    until: Cursor | None = None

    @property
    def is_all(self) -> bool:
        """Whether every frame matches."""
        return (self.seq, self.time_ns, self.after, self.until) == (_ALL, _ALL, None, None)

    def includes_whole(self, records: Records) -> npt.NDArray[np.bool_]:
        """For each segment whether all of its rows match, as far as its record shows."""
        if self.after is not None or self.until is not None:
            return np.zeros(len(records), bool)
        whole = np.ones(len(records), bool)
        for first, last, (low, high) in (
            ("first_seq", "last_seq", self.seq),
            ("first_time_ns", "last_time_ns", self.time_ns),
        ):
            whole &= (records[first] >= _bound(records[first], low)) if low != -math.inf else True
            whole &= (records[last] <= _bound(records[last], high)) if high != math.inf else True
        return whole

    def rows(self, block: RowBlock) -> Rows:
        """The matching rows of a batch."""
        if self.is_all:
            return range(len(block))
        seq, time = block.seq, block.receive_time_ns
        matches = np.ones(len(block), bool)
        for column, (first, last) in ((seq, self.seq), (time, self.time_ns)):
            # Compared as integers: floats near 2**63 are too coarse to distinguish neighbours.
            if first != -math.inf:
                matches &= column >= _bound(column, first)
            if last != math.inf:
                matches &= column <= _bound(column, last)
        if self.after is not None and block.epoch == self.after.epoch:
            matches &= seq > np.uint64(self.after.seq)
        if self.until is not None and block.epoch == self.until.epoch:
            matches &= seq <= np.uint64(self.until.seq)
        return np.flatnonzero(matches)


def _bound(column: npt.NDArray[Any], value: float) -> Any:
    limits = np.iinfo(column.dtype)
    return column.dtype.type(min(max(int(value), limits.min), limits.max))


def _make_frames(block: RowBlock, rows: Rows) -> list[RecordedFrame]:
    """The frames of some rows, with their tensors if the batch has them as one array."""
    if isinstance(rows, range) and block.stack is not None:
        return [*map(RecordedFrame, repeat(block), rows, block.stack[rows.start : rows.stop])]
    return [*map(RecordedFrame, repeat(block), rows if isinstance(rows, range) else rows.tolist())]


class Frames(Sequence[RecordedFrame]):
    """Recorded frames in order of epoch and sequence. A segment is read when its first frame is used.

    Later frames of a live recording are not in it: call `refresh` and `frames` of the recording again.
    """

    def __init__(self, cache: SegmentCache, records: Records, frame_filter: FrameFilter) -> None:
        self._cache = cache
        self._records = records
        self._filter = frame_filter
        self._ends: list[int] | None = None
        self._matching: dict[int, list[tuple[int, Rows]]] = {}

    # --- in order

    def runs(self) -> Iterator[tuple[RowBlock, Rows]]:
        """Batches, each with its matching rows."""
        for record in self._records:
            segment, count = self._open(record)
            for number in range(count):
                try:
                    block = segment.block(number)
                except CorruptRecording:
                    if self._filter.skip_damage:
                        continue
                    raise
                rows = self._filter.rows(block)
                if len(rows):
                    yield block, rows
            self._check_complete(record, segment)

    def __iter__(self) -> Iterator[RecordedFrame]:
        for block, rows in self.runs():
            for start in range(0, len(rows), _FRAMES_AT_ONCE):
                yield from _make_frames(block, rows[start : start + _FRAMES_AT_ONCE])

    def first(self) -> RecordedFrame:
        """The first frame; FrameNotRecorded if there is none. Does not depend on the number of frames."""
        for frame in self:
            return frame
        raise FrameNotRecorded("the selection has no frames")

    def _open(self, record: Any) -> tuple[OpenSegment, int]:
        segment = self._cache.open(
            manifest.segment_name(record), is_sealed=record["kind"] == RecordKind.SEALED
        )
        if self._filter.skip_damage:
            segment.file.scan_more(resume=True)
        return segment, len(segment.file.scan.batches)

    def _check_complete(self, record: Any, segment: OpenSegment) -> None:
        """Raises CorruptRecording if a sealed segment has fewer rows than its record lists."""
        if record["kind"] != RecordKind.SEALED or self._filter.skip_damage:
            return
        scan, tail = segment.file.scan, segment.file.tail()
        if tail is not None or scan.rows < record["rows"]:
            reason = tail.reason if tail is not None else "the file is shorter than it was"
            raise CorruptRecording(
                f"{segment.file.path}, byte {scan.end}: {reason}; "
                f"{scan.rows} of {record['rows']} rows are readable; "
                "`tensorpool recording repair` turns the others into a gap",
                path=segment.file.path,
                offset=scan.end,
            )

    # --- by number

    @cached_property
    def _is_whole(self) -> npt.NDArray[np.bool_]:
        """For each segment whether it is sealed and all of its rows match."""
        if self._filter.skip_damage:
            return np.zeros(len(self._records), bool)
        # Only the record of a sealed segment is final: an open one grows.
        is_sealed: npt.NDArray[np.bool_] = self._records["kind"] == RecordKind.SEALED
        return self._filter.includes_whole(self._records) & is_sealed

    def _running_totals(self) -> list[int]:
        """Number of matching rows up to the end of each segment. Whole segments are not opened."""
        if self._ends is None:
            counts = np.where(self._is_whole, self._records["rows"], 0)
            for number in np.flatnonzero(~self._is_whole).tolist():
                counts[number] = sum(len(rows) for _, rows in self._rows_of(number))
            self._ends = np.cumsum(counts).tolist()
        return self._ends

    def _rows_of(self, number: int) -> list[tuple[int, Rows]]:
        """(batch, rows) of a segment. Kept, so that an index always means the same frame."""
        if number not in self._matching:
            record = self._records[number]
            segment, count = self._open(record)
            matching: list[tuple[int, Rows]] = []
            for batch in range(count):
                if self._is_whole[number]:
                    rows: Rows = range(segment.file.scan.batches[batch].rows)
                else:
                    try:
                        rows = self._filter.rows(segment.block(batch))
                    except CorruptRecording:
                        if not self._filter.skip_damage:
                            raise
                        continue
                if len(rows):
                    matching.append((batch, rows))
            self._check_complete(record, segment)
            self._matching[number] = matching
        return self._matching[number]

    def __len__(self) -> int:
        ends = self._running_totals()
        return ends[-1] if ends else 0

    @overload
    def __getitem__(self, index: int) -> RecordedFrame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordedFrame]: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | Sequence[RecordedFrame]:
        if isinstance(index, slice):
            return FrameSlice(self, range(*index.indices(len(self))))
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"frame {index} of {count}")
        return self._at(index % count)

    def _at(self, index: int) -> RecordedFrame:
        ends = self._running_totals()
        number = bisect_right(ends, index)
        row = index - (ends[number - 1] if number else 0)
        for batch, rows in self._rows_of(number):
            if row < len(rows):
                segment, _ = self._open(self._records[number])
                return RecordedFrame(segment.block(batch), int(rows[row]))
            row -= len(rows)
        raise FrameNotRecorded(f"frame {index} is no longer in the recording; refresh() it")

    def __repr__(self) -> str:
        return f"<frames of {len(self._records)} segments>"


class FrameSlice(Sequence[RecordedFrame]):
    """A slice of a `Frames` sequence."""

    def __init__(self, frames: Frames, numbers: range) -> None:
        self._frames = frames
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> RecordedFrame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordedFrame]: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | Sequence[RecordedFrame]:
        if isinstance(index, slice):
            return FrameSlice(self._frames, self._numbers[index])
        return self._frames[self._numbers[index]]
