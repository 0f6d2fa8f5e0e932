"""Frames of one stream, chosen by epoch, sequence and time: a sequence that reads only what is asked for."""

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
from .manifest import Kind, Records
from .rows import OpenSegment, RowBlock, SegmentCache

if TYPE_CHECKING:
    from .frame import Cursor

_ALL: Final = -math.inf, math.inf
_AT_ONCE: Final = 16
"""So many frames are made together: between two payloads, each would find the caches full of the last one."""
Bounds = tuple[float, float]
"""First and last, both included; infinite where there is no bound."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which frames of a stream. Bounds include both ends."""

    seq: Bounds = _ALL
    time_ns: Bounds = _ALL
    skip_damage: bool = False
    after: Cursor | None = None
    until: Cursor | None = None

    @property
    def is_all(self) -> bool:
        """Whether no frame is left out."""
        return (self.seq, self.time_ns, self.after, self.until) == (_ALL, _ALL, None, None)

    def takes_all_of(self, records: Records) -> npt.NDArray[np.bool_]:
        """Which segments are chosen with every row, as far as their records tell."""
        if self.after is not None or self.until is not None:
            return np.zeros(len(records), bool)
        chosen = np.ones(len(records), bool)
        for first, last, (low, high) in (
            ("first_seq", "last_seq", self.seq),
            ("first_time_ns", "last_time_ns", self.time_ns),
        ):
            chosen &= (records[first] >= _bound(records[first], low)) if low != -math.inf else True
            chosen &= (records[last] <= _bound(records[last], high)) if high != math.inf else True
        return chosen

    def rows(self, block: RowBlock) -> npt.NDArray[np.intp] | range:
        """The rows of a batch that are chosen."""
        if self.is_all:
            return range(len(block))
        seq, time = block.seq, block.receive_time_ns
        chosen = np.ones(len(block), bool)
        for column, (first, last) in ((seq, self.seq), (time, self.time_ns)):
            # Compared as integers: a float cannot tell two neighbours near 2**63 apart.
            if first != -math.inf:
                chosen &= column >= _bound(column, first)
            if last != math.inf:
                chosen &= column <= _bound(column, last)
        if self.after is not None and block.epoch == self.after.epoch:
            chosen &= seq > np.uint64(self.after.seq)
        if self.until is not None and block.epoch == self.until.epoch:
            chosen &= seq <= np.uint64(self.until.seq)
        return np.flatnonzero(chosen)


def _bound(column: npt.NDArray[Any], value: float) -> Any:
    limits = np.iinfo(column.dtype)
    return column.dtype.type(min(max(int(value), limits.min), limits.max))


def _made(block: RowBlock, rows: npt.NDArray[np.intp] | range) -> list[RecordedFrame]:
    """The frames of some rows; their tensors with them where that costs next to nothing."""
    if isinstance(rows, range) and block.stack is not None:
        return [*map(RecordedFrame, repeat(block), rows, block.stack[rows.start : rows.stop])]
    return [*map(RecordedFrame, repeat(block), rows if isinstance(rows, range) else rows.tolist())]


class Frames(Sequence[RecordedFrame]):
    """Recorded frames in the order of epoch and sequence. Nothing is read before it is used.

    What a live recording gets later is not in it: ask the recording again after `refresh`.
    """

    def __init__(self, cache: SegmentCache, records: Records, choice: Choice) -> None:
        self._cache = cache
        self._records = records
        self._choice = choice
        self._ends: list[int] | None = None
        self._chosen: dict[int, list[tuple[int, npt.NDArray[np.intp] | range]]] = {}

    # --- one after the other

    def runs(self) -> Iterator[tuple[RowBlock, npt.NDArray[np.intp] | range]]:
        """Batches with the rows that are chosen of each."""
        for record in self._records:
            segment, count = self._open(record)
            for number in range(count):
                try:
                    block = segment.block(number)
                except CorruptRecording:
                    if self._choice.skip_damage:
                        continue
                    raise
                rows = self._choice.rows(block)
                if len(rows):
                    yield block, rows
            self._check_complete(record, segment)

    def __iter__(self) -> Iterator[RecordedFrame]:
        for block, rows in self.runs():
            for start in range(0, len(rows), _AT_ONCE):
                yield from _made(block, rows[start : start + _AT_ONCE])

    def first(self) -> RecordedFrame:
        """The first frame; FrameNotRecorded if there is none. Quick, however long the recording is."""
        for frame in self:
            return frame
        raise FrameNotRecorded("no frame was recorded there")

    def _open(self, record: Any) -> tuple[OpenSegment, int]:
        segment = self._cache.open(manifest.name_of(record), is_sealed=record["kind"] == Kind.SEALED)
        if self._choice.skip_damage:
            segment.file.scan_more(resume=True)
        return segment, len(segment.file.scan.batches)

    def _check_complete(self, record: Any, segment: OpenSegment) -> None:
        """A sealed segment that ends too early has lost frames: that is said, not passed over."""
        if record["kind"] != Kind.SEALED or self._choice.skip_damage:
            return
        scan, tail = segment.file.scan, segment.file.tail()
        if tail is not None or scan.rows < record["rows"]:
            reason = tail.reason if tail is not None else "the file is shorter than it was"
            raise CorruptRecording(
                f"{segment.file.path}, byte {scan.end}: {reason}; "
                f"{scan.rows} of {record['rows']} rows are there; "
                "`tensorpool recording repair` makes the others a gap",
                path=segment.file.path,
                offset=scan.end,
            )

    # --- by number

    @cached_property
    def _is_whole(self) -> npt.NDArray[np.bool_]:
        """Which segments are chosen with every row that their records say."""
        if self._choice.skip_damage:
            return np.zeros(len(self._records), bool)
        # Only what a sealed segment's record says can be relied upon: an open one grows.
        is_sealed: npt.NDArray[np.bool_] = self._records["kind"] == Kind.SEALED
        return self._choice.takes_all_of(self._records) & is_sealed

    def _counts(self) -> list[int]:
        """Running totals of rows, segment by segment. Segments that are chosen whole are not looked at."""
        if self._ends is None:
            counts = np.where(self._is_whole, self._records["rows"], 0)
            for number in np.flatnonzero(~self._is_whole).tolist():
                counts[number] = sum(len(rows) for _, rows in self._rows_of(number))
            self._ends = np.cumsum(counts).tolist()
        return self._ends

    def _rows_of(self, number: int) -> list[tuple[int, npt.NDArray[np.intp] | range]]:
        """(batch, rows) of a segment, remembered so that a number means the same frame for good."""
        if number not in self._chosen:
            record = self._records[number]
            segment, count = self._open(record)
            found: list[tuple[int, npt.NDArray[np.intp] | range]] = []
            for batch in range(count):
                if self._is_whole[number]:
                    rows: npt.NDArray[np.intp] | range = range(segment.file.scan.batches[batch].rows)
                else:
                    try:
                        rows = self._choice.rows(segment.block(batch))
                    except CorruptRecording:
                        if not self._choice.skip_damage:
                            raise
                        continue
                if len(rows):
                    found.append((batch, rows))
            self._check_complete(record, segment)
            self._chosen[number] = found
        return self._chosen[number]

    def __len__(self) -> int:
        ends = self._counts()
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
        ends = self._counts()
        number = bisect_right(ends, index)
        row = index - (ends[number - 1] if number else 0)
        for batch, rows in self._rows_of(number):
            if row < len(rows):
                segment, _ = self._open(self._records[number])
                return RecordedFrame(segment.block(batch), int(rows[row]))
            row -= len(rows)
        raise FrameNotRecorded(f"frame {index} is gone; refresh() the recording")

    def __repr__(self) -> str:
        return f"<frames of {len(self._records)} segments>"


class FrameSlice(Sequence[RecordedFrame]):
    """Some of the frames, by number."""

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
