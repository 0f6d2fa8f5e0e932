"""The frames of one task as Arrow batches for Spark, without a copy where possible.

Runs in an executor, which opens the recording itself. `tune_worker` sets garbage collection and cached
mappings of Spark's Python worker processes.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecording, FrameNotRecorded
from ..recording import NO_TIMESTAMP, NO_TRACE, Cursor, Gap, Recording
from ..recording.gaps import CORRUPT, UNEXPLAINED, classify_missing
from ..recording.layout import signed
from ..recording.recording import REMOVED
from ..recording.rows import RowBlock
from ..recording.segment_file import enable_cache, evict_removed
from ..recording.selection import Rows
from ..recording.storage import is_uri
from ..recording.tensors import NAMES, ORDERS
from .plan import FrameRange

# Recorded batches with fewer bytes than this are combined: every Arrow batch costs a round trip to Spark.
_SMALL_BYTES: Final = 1 << 20
_MAX_ROWS: Final = 16_384
# A recorded batch with this many rows is not combined with others: its columns can then be views.
_LARGE_ROWS: Final = 1_024
# Approximate size of a row without its payload.
_ROW_BYTES: Final = 256


class RowPart(NamedTuple):
    """Rows of a recorded batch: a slice where they are consecutive, because slices of columns are views."""

    block: RowBlock
    rows: Any


def as_slice(rows: Rows) -> Any:
    """Consecutive rows as a slice; other rows unchanged."""
    if isinstance(rows, range):
        return slice(rows.start, rows.stop)
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def to_arrow(parts: Sequence[RowPart], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of several batches as one Arrow batch with the columns of the schema."""
    counts = [len(part.block.seq[part.rows]) for part in parts]
    arrays = [_column(field.name, field.type, parts, counts) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(name: str, parts: Sequence[RowPart]) -> Any:
    """A column of all parts; a view if there is only one."""
    arrays = [getattr(block, name)[rows] for block, rows in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _column(name: str, kind: pa.DataType, parts: Sequence[RowPart], counts: list[int]) -> pa.Array:
    if name in ("stream_id", "epoch"):
        return pa.array(np.repeat([signed(getattr(block, name)) for block, _ in parts], counts))
    if name in ("publish_timestamp_ns", "trace_id"):
        values = _joined(name, parts)
        is_null = values == np.uint64(NO_TIMESTAMP if name == "publish_timestamp_ns" else NO_TRACE)
        return pa.array(values.view(np.int64), mask=is_null if is_null.any() else None)
    if name in ("dtype", "major_order"):
        return _names(_joined(name, parts), NAMES if name == "dtype" else ORDERS)
    if name in ("shape", "strides"):
        table = _joined("dims" if name == "shape" else "strides", parts)
        return _lists(table, _joined("ndims", parts), kind)
    if name == "segment":
        return _segments(parts, counts)
    if name == "payload_offset":
        return pa.array(_joined("payload_offset", parts))
    if name == "payload":
        return _payloads(parts)
    if name in ("gap_count", "gap_reason"):
        return pa.nulls(sum(counts), kind)
    if name == "time":
        return pa.array(_joined("receive_time_ns", parts).view(np.int64) // 1_000).cast(kind)
    return pa.array(_joined(name, parts).view(np.int64))


def _segments(parts: Sequence[RowPart], counts: list[int]) -> pa.Array:
    arrays = []
    for _, run in itertools.groupby(zip(parts, counts, strict=True), lambda pair: pair[0].block.path):
        members = list(run)
        first, _ = members[0]
        arrays.append(pa.repeat(first.block.reference, sum(count for _, count in members)))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _names(numbers: npt.NDArray[np.int16], names: dict[int, str]) -> pa.Array:
    if (numbers == numbers[0]).all():
        return pa.repeat(names[int(numbers[0])], len(numbers))
    return pa.array([names[number] for number in numbers.tolist()])


def _lists(table: npt.NDArray[Any], ndims: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(ndims) + 1, np.int32)
    np.cumsum(ndims, out=offsets[1:])
    largest = int(ndims.max())
    if int(ndims.min()) == largest:
        values = table[:, :largest].reshape(-1)
    else:
        values = table[np.arange(table.shape[1]) < ndims[:, None]]
    return pa.ListArray.from_arrays(offsets, pa.array(values), type=kind)


def _payloads(parts: Sequence[RowPart]) -> pa.Array:
    sizes = _joined("payload_bytes", parts)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = _contiguous_payloads(*parts[0]) if len(parts) == 1 else None
    if data is None:
        data = np.empty(int(offsets[-1]), np.uint8)
        end = 0
        for block, rows in parts:
            end = _copy_payloads(block, rows, data, end)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _contiguous_payloads(block: RowBlock, rows: Any) -> npt.NDArray[np.uint8] | None:
    """A view of the payloads if there is no padding between them, as Arrow requires; else None."""
    at, sizes = block.payload_offset[rows], block.payload_bytes[rows]
    if not (at[1:] == at[:-1] + sizes[:-1]).all():
        return None
    view: npt.NDArray[np.uint8] = block.bytes[int(at[0]) : int(at[-1] + sizes[-1])]
    return view


def _copy_payloads(block: RowBlock, rows: Any, data: npt.NDArray[np.uint8], end: int) -> int:
    """Copies payloads to `data` from `end` on, without padding. Returns their new end."""
    at, sizes = block.payload_offset[rows], block.payload_bytes[rows]
    size, steps = int(sizes[0]), np.diff(at)
    if (sizes == size).all() and (len(at) == 1 or (steps[0] > 0 and (steps == steps[0]).all())):
        # Equal sizes, evenly spaced, as nearly always: one strided copy.
        step = int(steps[0]) if len(steps) else size
        table = np.lib.stride_tricks.as_strided(block.bytes[int(at[0]) :], (len(at), size), (step, 1))
        data[end : end + table.size].reshape(table.shape)[:] = table
        return end + table.size
    for offset, length in zip(at.tolist(), sizes.tolist(), strict=True):
        data[end : end + length] = block.bytes[offset : offset + length]
        end += length
    return end


def gap_batch(gaps: Sequence[Gap], schema: pa.Schema) -> pa.RecordBatch:
    """Gap rows: stream, epoch, first sequence, count and reason; all other columns are null."""
    values: dict[str, list[Any]] = {
        "stream_id": [gap.stream_id for gap in gaps],
        "epoch": [signed(gap.epoch) for gap in gaps],
        "seq": [signed(gap.first_seq) for gap in gaps],
        "gap_count": [signed(gap.count) for gap in gaps],
        "gap_reason": [gap.reason for gap in gaps],
    }
    arrays = [
        pa.array(values[f.name], f.type) if f.name in values else pa.nulls(len(gaps), f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def split_rows(block: RowBlock, rows: Rows, max_bytes: int, *, inline: bool) -> Iterator[Rows]:
    """The rows in parts within the byte limit, at least one row each."""
    if not inline or int(block.payload_bytes.sum()) <= max_bytes:
        yield rows
        return
    order = np.asarray(rows)
    ends = np.cumsum(block.payload_bytes[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + max_bytes, "right")), start + 1)
        yield order[start:stop]
        start = stop


def combine_rows(
    parts: Iterator[tuple[RowBlock, Rows]], max_bytes: int, *, inline: bool
) -> Iterator[list[RowPart]]:
    """Small parts combined into groups; a large part is a group of its own."""
    limit = min(max_bytes, _SMALL_BYTES if inline else _MAX_ROWS * _ROW_BYTES)
    group: list[RowPart] = []
    count = size = 0
    for block, rows in parts:
        part = RowPart(block, as_slice(rows))
        weight = _ROW_BYTES * len(rows) + (int(block.payload_bytes[part.rows].sum()) if inline else 0)
        is_large = weight > limit or len(rows) >= _LARGE_ROWS
        if group and (is_large or size + weight > limit or count + len(rows) > _MAX_ROWS):
            yield group
            group, count, size = [], 0, 0
        if is_large:
            yield [part]
            continue
        group.append(part)
        count, size = count + len(rows), size + weight
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The options that a task needs."""

    path: str
    payload: str
    max_batch_bytes: int
    include_gaps: bool
    fail_on_loss: bool
    time: tuple[int | None, int | None] = (None, None)


def _open_recording(path: str, archive: str | None) -> Recording:
    """The recording, or its archive on a host that does not have its directory."""
    if archive is not None and not is_uri(path) and not Path(path).is_dir():
        return Recording(archive)
    return Recording(path)


class RangeScan:
    """One pass over a range. Damage is an error, or a gap if that is allowed."""

    def __init__(self, frame_range: FrameRange, options: ScanOptions, schema: pa.Schema) -> None:
        self._range = frame_range
        self._options = options
        self._schema = schema
        self._recording = _open_recording(options.path, frame_range.archive)
        self._seqs: dict[int, list[npt.NDArray[np.uint64]]] = {}
        """Epoch → the sequences that were read, if gaps are included."""
        self._previous: Cursor | None = None
        """The last row of the previous task's share."""
        self._last_row: Cursor | None = None
        self._loss: str | None = None
        """The reason of frames that could not be read."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The frames in order, then the gaps between them."""
        inline = self._options.payload == "inline"
        for parts in combine_rows(self._frames(inline), self._options.max_batch_bytes, inline=inline):
            yield to_arrow(parts, self._schema)
        self._check_end()
        if self._options.include_gaps and (gaps := self._gaps()):
            yield gap_batch(gaps, self._schema)

    def _frames(self, inline: bool) -> Iterator[tuple[RowBlock, Rows]]:
        for block, rows in self._share(self._runs()):
            intact = self._intact_rows(block, rows) if inline else rows
            if len(intact) == 0:
                continue
            self._count(block, intact)
            for part in split_rows(block, intact, self._options.max_batch_bytes, inline=inline):
                yield block, part

    def _runs(self) -> Iterator[tuple[RowBlock, Rows]]:
        frame_range, options = self._range, self._options
        segments = self._recording.by_segment(
            frame_range.stream_id,
            after=frame_range.start.cursor_before(frame_range.stream_id),
            until=frame_range.end.cursor_before(frame_range.stream_id),
            time=options.time,
            skip_damage=not options.fail_on_loss,
        )
        for name, frames in segments:
            try:
                yield from frames.runs()
            except (CorruptRecording, FrameNotRecorded) as error:
                if options.fail_on_loss:
                    raise self._lost(str(error)) from None
                is_removed = isinstance(error, FrameNotRecorded)
                self._loss = REMOVED if is_removed else CORRUPT
                continue
            if not options.fail_on_loss and self._recording.segment(name).file.scan.damage:
                self._loss = CORRUPT

    def _share(self, runs: Iterator[tuple[RowBlock, Rows]]) -> Iterator[tuple[RowBlock, Rows]]:
        """This task's share of the rows."""
        if self._range.parts == 1:
            yield from runs
            return
        all_runs = deque(runs)
        total = sum(len(rows) for _, rows in all_runs)
        low = total * self._range.part // self._range.parts
        high = total * (self._range.part + 1) // self._range.parts
        at = 0
        while all_runs:
            # Taken out: the payloads of a remote batch are in memory as long as the batch is.
            block, rows = all_runs.popleft()
            begin, end = max(low - at, 0), min(high - at, len(rows))
            if at < low <= at + len(rows):
                # A gap right behind the previous share is reported by this one.
                seq = int(block.seq[rows[low - at - 1]])
                self._previous = Cursor(self._range.stream_id, block.epoch, seq)
            if begin < end:
                yield block, rows[begin:end]
            at += len(rows)

    def _intact_rows(self, block: RowBlock, rows: Rows) -> Rows:
        """The rows without those whose payload does not match its checksum."""
        damaged = block.damaged_rows()
        if not len(damaged):
            return rows
        numbers = np.asarray(rows)
        is_damaged = np.isin(numbers, damaged)
        if is_damaged.any() and self._options.fail_on_loss:
            row = numbers[is_damaged][0]
            seq, offset = int(block.seq[row]), int(block.payload_offset[row])
            raise self._lost(f"{block.path}, byte {offset}: the payload of frame {seq} is damaged")
        if is_damaged.any():
            self._loss = CORRUPT
        return numbers[~is_damaged]

    def _count(self, block: RowBlock, rows: Rows) -> None:
        seqs = block.seq[np.asarray(rows)]
        if self._options.include_gaps:
            self._seqs.setdefault(block.epoch, []).append(np.array(seqs))
        self._last_row = Cursor(self._range.stream_id, block.epoch, int(seqs[-1]))

    def _check_end(self) -> None:
        frame_range = self._range
        is_last_part = frame_range.part == frame_range.parts - 1
        if not frame_range.ends_with_row or not is_last_part or self._options.time != (None, None):
            return
        expected = frame_range.end.cursor_before(frame_range.stream_id)
        if self._last_row == expected:
            return
        if self._options.fail_on_loss:
            raise self._lost(
                f"{self._options.path}: frames up to {expected} existed when the query was planned, but are "
                "missing now"
            )
        self._loss = self._loss or CORRUPT

    def _lost(self, reason: str) -> CorruptRecording:
        return CorruptRecording(
            f"stream {self._range.stream_id}: {reason}. To continue without the lost frames: option "
            "failOnDataLoss=false (with includeGaps=true they become gap rows)",
            path=self._options.path,
        )

    # --- gaps

    def _gaps(self) -> list[Gap]:
        """The gaps between the rows of the range, with their reasons."""
        stream_id = self._range.stream_id
        declared = [gap for gap in self._recording.declared_gaps() if gap.stream_id == stream_id]
        epochs = sorted({*self._seqs, *self._epochs_without_rows(declared)})
        gaps = []
        for epoch in epochs:
            of_epoch = [gap for gap in declared if gap.epoch == epoch]
            rows = np.concatenate(self._seqs[epoch]) if epoch in self._seqs else np.empty(0, np.uint64)
            default = self._loss or UNEXPLAINED
            missing = self._missing(epoch, rows, of_epoch)
            removed = self._recording.removed_until(stream_id, epoch)
            for first, last, declared_reason in classify_missing(missing, of_epoch, default):
                is_removed = declared_reason == default and last <= removed
                reason = REMOVED if is_removed else declared_reason
                gaps.append(Gap(stream_id, epoch, first, last - first + 1, reason))
        return gaps

    def _epochs_without_rows(self, declared: list[Gap]) -> set[int]:
        """Epochs of the range that may have gaps but no rows. Of a segment that is divided, the first share
        reports those before it, and the last share those behind it.
        """
        start, end, last_part = self._range.start, self._range.end, self._range.parts - 1
        if self._options.time != (None, None):
            return set()
        low, high = start.epoch, end.epoch
        if last_part > 0:
            # A segment has one epoch.
            if self._range.part == 0:
                high = min(self._seqs, default=end.epoch) - 1
            elif self._range.part == last_part:
                low = max(self._seqs, default=end.epoch) + 1
            else:
                return set()
        return {gap.epoch for gap in declared if low <= gap.epoch <= high}

    def _missing(
        self, epoch: int, rows: npt.NDArray[np.uint64], declared: list[Gap]
    ) -> list[tuple[int, int]]:
        low, high = self._bounds(epoch, rows, declared)
        if low > high:
            return []
        if not len(rows):
            return [(low, high)]
        first, last = int(rows[0]), int(rows[-1])
        inner = [
            (int(rows[i]) + 1, int(rows[i + 1]) - 1) for i in np.flatnonzero(np.diff(rows) != 1).tolist()
        ]
        before = [(low, first - 1)] if low < first else []
        behind = [(last + 1, high)] if high > last else []
        return [*before, *inner, *behind]

    def _bounds(self, epoch: int, rows: npt.NDArray[np.uint64], declared: list[Gap]) -> tuple[int, int]:
        """The first and last sequence of an epoch whose gaps this task reports."""
        start, end = self._range.start, self._range.end
        first = int(rows[0]) if len(rows) else None
        last = int(rows[-1]) if len(rows) else None
        if self._options.time != (None, None):
            return first or 0, last if last is not None else -1
        if self._previous is not None and self._previous.epoch == epoch:
            low = self._previous.seq + 1
        elif epoch == start.epoch and start.seq > 0:
            low = start.seq
        else:
            known = [gap.first_seq for gap in declared] + ([first] if first is not None else [])
            low = min(known, default=0)
        if self._range.part < self._range.parts - 1 and last is not None:
            high = last
        elif epoch == end.epoch:
            # Sequences behind the last row are not known to be missing yet, unless they were declared, or
            # that row itself is lost.
            is_known = self._range.ends_with_row or self._range.ends_with_gap
            high = end.seq - 1 if is_known else (last if last is not None else -1)
        else:
            known = [gap.last_seq for gap in declared] + ([last] if last is not None else [])
            high = max(known, default=-1)
        return low, high


_DAEMON: Final = "pyspark.daemon"
_is_tuned = False


def tune_worker() -> None:
    """Tunes this process when a task ends. Does nothing outside of Spark's Python workers.

    The first call excludes all present objects from garbage collection: Spark's daemon collects garbage after
    every task, and visiting every object of every module takes longer than most tasks. It also enables the
    cache of mapped segments for later tasks. Every call evicts removed segments from the cache. Spark ends a
    process that is idle for a minute.
    """
    global _is_tuned  # noqa: PLW0603  one collector per process
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _DAEMON:
        return
    evict_removed()
    if _is_tuned:
        return
    _is_tuned = True
    enable_cache()
    gc.collect()
    gc.freeze()
