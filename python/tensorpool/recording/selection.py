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

from ..attributes import Metadata
from ..errors import CorruptRecording, FrameNotRecorded, InvalidFrames, MissingPackage
from . import manifest
from .frame import RecordedFrame
from .manifest import RecordKind, Records
from .rows import OpenSegment, RowBlock, SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from .frame import Cursor

_ALL: Final = -math.inf, math.inf
# Frame objects are created in groups: one at a time, each would find the CPU caches full of a payload.
_FRAMES_AT_ONCE: Final = 16
COLUMNS: Final = {
    "stream_id": np.int64,
    "epoch": np.uint64,
    "seq": np.uint64,
    "timestamp_ns": np.uint64,
    "receive_time_ns": np.int64,
    "meta_version": np.int64,
}
"""The numbers of each frame that tables and exports have, and their types."""
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
    if isinstance(rows, range) and block.has_payloads and block.stack is not None:
        return [*map(RecordedFrame, repeat(block), rows, block.stack[rows.start : rows.stop])]
    return [*map(RecordedFrame, repeat(block), rows if isinstance(rows, range) else rows.tolist())]


class SelectedFrames(Sequence[RecordedFrame]):
    """Recorded frames that can be had one by one, as one array, or as one table."""

    def first(self) -> RecordedFrame:
        """The first frame; FrameNotRecorded if there is none. Does not depend on the number of frames."""
        for frame in self:
            return frame
        raise FrameNotRecorded("the selection has no frames")

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The numbers of each frame, one array per column of COLUMNS."""
        frames = list(self)
        return {
            name: np.array([getattr(frame, name) for frame in frames], kind) for name, kind in COLUMNS.items()
        }

    def stack(self) -> npt.NDArray[Any]:
        """All tensors as one new array of shape (frames, *shape), checked against their checksums.

        Raises InvalidFrames if they differ in type or shape, CorruptRecording for damage, FrameNotRecorded if
        there are none. It takes memory for all of them: select fewer with `seq`, `time` or a slice
        (`frames[:100].stack()`), or iterate.
        """
        first = self.first()
        stack = np.empty((len(self), *first.shape), first.dtype)
        for number, frame in self.stackable():
            stack[number] = frame.array
        return stack

    def stackable(self) -> Iterator[tuple[int, RecordedFrame]]:
        """(number, frame). Raises InvalidFrames for a frame of another type or shape than the first one."""
        first = self.first()
        for number, frame in enumerate(self):
            if (frame.dtype, frame.shape) != (first.dtype, first.shape):
                raise InvalidFrames(
                    f"frame {frame.seq} is {frame.dtype} {frame.shape} and frame {first.seq} is "
                    f"{first.dtype} {first.shape}; only frames of one type and shape can be stacked: choose "
                    "a range, as in frames[:10], or export to npz"
                )
            yield number, frame.verify()

    def to_arrow(self) -> pa.Table:
        """A table with a row per frame: the numbers of COLUMNS, `dtype`, `shape` and `tensor`.

        `tensor` is a fixed-shape tensor column if all frames have one type and shape, else the bytes of each
        tensor in C order. Both are copies. Raises as `stack` does for damage.
        """
        import pyarrow as pa

        frames = list(self)
        table = {name: pa.array(column) for name, column in self.columns().items()}
        table["dtype"] = pa.array([frame.element_type for frame in frames], pa.string())
        table["shape"] = pa.array([frame.shape for frame in frames], pa.list_(pa.int64()))
        kinds = {(frame.dtype, frame.shape) for frame in frames}
        is_uniform = len(kinds) == 1 and all(len(shape) and 0 not in shape for _, shape in kinds)
        if is_uniform and frames[0].dtype.kind in "iuf" and frames[0].dtype.isbuiltin == 1:
            table["tensor"] = pa.FixedShapeTensorArray.from_numpy_ndarray(self.stack())
        else:
            tensors = [frame.verify().array.tobytes() for frame in frames]
            table["tensor"] = pa.array(tensors, pa.large_binary())
        return pa.table(table)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row per frame: the numbers of COLUMNS, `dtype`, `shape` and `array`.

        `array` holds read-only views of the mapped files, so nothing is copied and nothing is checked against
        its checksum. Raises MissingPackage without pandas.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingPackage("to_pandas needs the package pandas: pip install pandas") from None
        frames = list(self)
        data = pd.DataFrame(self.columns())
        data["dtype"] = [frame.element_type for frame in frames]
        data["shape"] = [frame.shape for frame in frames]
        # One by one: pandas would make one array of arrays of one shape.
        arrays = np.empty(len(frames), object)
        for number, frame in enumerate(frames):
            arrays[number] = frame.array
        data["array"] = arrays
        return data


class Frames(SelectedFrames):
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
        for at, record in enumerate(self._records):
            segment, count = self._open(record)
            if at + 1 < len(self._records):
                segment.file.following = manifest.segment_name(self._records[at + 1])
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

    # --- all at once

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The numbers of each frame, one array per column of COLUMNS."""
        parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in COLUMNS}
        for block, rows in self.runs():
            numbers = np.asarray(rows, np.intp)
            for name, kind in COLUMNS.items():
                values = getattr(block, name)
                is_column = isinstance(values, np.ndarray)
                chosen = values[numbers] if is_column else np.full(len(numbers), values, kind)
                parts[name].append(chosen.astype(kind))
        return {
            name: np.concatenate(arrays or [np.empty(0, COLUMNS[name])]) for name, arrays in parts.items()
        }

    def metadata(self, limit: int) -> dict[int, Metadata]:
        """The attributes of the first `limit` metadata versions of these frames, by version."""
        found: dict[int, Metadata] = {}
        for block, rows in self.runs():
            numbers = np.asarray(rows, np.intp)
            versions, first = np.unique(block.meta_version[numbers], return_index=True)
            for version, at in zip(versions.tolist(), first.tolist(), strict=True):
                frame = RecordedFrame(block, int(numbers[at]))
                if version and version not in found and (metadata := frame.meta) is not None:
                    found[version] = metadata
                if len(found) >= limit:
                    return found
        return found

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
    def __getitem__(self, index: slice) -> FrameSlice: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | FrameSlice:
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
        streams = ", ".join(str(stream_id) for stream_id in sorted(set(self._records["stream_id"].tolist())))
        # Counting reads segments that are open or match in part: too much for a line on a screen.
        is_counted = self._ends is not None or bool(self._is_whole.all())
        count = f"frames={len(self)}" if is_counted else f"segments={len(self._records)}"
        return f"<Frames stream={streams or 'none'} {count}>"


class FrameSlice(SelectedFrames):
    """Some of the `Frames` of a recording: `frames[:10]`, `frames[::2]`."""

    def __init__(self, frames: Frames, numbers: range) -> None:
        self._frames = frames
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<{len(self)} of {self._frames!r}>"

    @overload
    def __getitem__(self, index: int) -> RecordedFrame: ...
    @overload
    def __getitem__(self, index: slice) -> FrameSlice: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | FrameSlice:
        if isinstance(index, slice):
            return FrameSlice(self._frames, self._numbers[index])
        return self._frames[self._numbers[index]]
