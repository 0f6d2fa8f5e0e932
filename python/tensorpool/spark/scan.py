"""Reads the frames of one task. Runs in an executor: opens the recording for itself.

Rows of recorded batches as the Arrow batches that Spark takes, without a copy where that is possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecording, FrameNotRecorded
from ..recording import NO_TIMESTAMP, NO_TRACE, Cursor, Gap, Recording
from ..recording.gaps import CORRUPT, UNEXPLAINED, classify_missing
from ..recording.layout import PARTIAL, SEALED, signed
from ..recording.rows import RowBlock
from ..recording.tables import read_gaps
from ..recording.tensors import NAMES, ORDERS
from .plan import FrameRange

Rows = npt.NDArray[np.intp] | range
RowPart = tuple[RowBlock, Any]
"""A recorded batch and which of its rows: a slice where they follow one another, since that gives views."""

# Recorded batches with fewer bytes than this are put together: each Arrow batch costs a round of its own.
_SMALL_BYTES: Final = 1 << 20
_ROWS: Final = 16_384
_MANY_ROWS: Final = 1_024
"""A recorded batch with so many rows goes alone, too: its columns are views then."""
_ROW_BYTES: Final = 256
"""What a row weighs beside its payload, about."""


def segment_path(block: RowBlock) -> str:
    """The name that the segment has for good: an open one is renamed when it is sealed."""
    name = str(block.path)
    return name.removesuffix(PARTIAL) + SEALED if name.endswith(PARTIAL) else name


def chosen(rows: Rows) -> Any:
    """A slice where the rows follow one another: slices of columns are views."""
    if isinstance(rows, range):
        return slice(rows.start, rows.stop)
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def to_arrow(parts: Sequence[RowPart], schema: pa.Schema) -> pa.RecordBatch:
    """The chosen rows of some batches, one after the other, with the columns of the schema."""
    counts = [len(block.seq[rows]) for block, rows in parts]
    arrays = [_column(field.name, field.type, parts, counts) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(name: str, parts: Sequence[RowPart]) -> Any:
    """A column of all the parts; of a single one it is a view."""
    found = [getattr(block, name)[rows] for block, rows in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _column(name: str, kind: pa.DataType, parts: Sequence[RowPart], counts: list[int]) -> pa.Array:
    if name in ("stream_id", "epoch"):
        return pa.array(np.repeat([signed(getattr(block, name)) for block, _ in parts], counts))
    if name in ("publish_timestamp_ns", "trace_id"):
        values = _joined(name, parts)
        missing = values == np.uint64(NO_TIMESTAMP if name == "publish_timestamp_ns" else NO_TRACE)
        return pa.array(values.view(np.int64), mask=missing if missing.any() else None)
    if name in ("dtype", "major_order"):
        return _words(_joined(name, parts), NAMES if name == "dtype" else ORDERS)
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
    return pa.array(_joined(name, parts).view(np.int64))


def _segments(parts: Sequence[RowPart], counts: list[int]) -> pa.Array:
    runs = itertools.groupby(zip(parts, counts, strict=True), lambda one: one[0][0].path)
    found = []
    for _, run in runs:
        held = list(run)
        found.append(pa.repeat(segment_path(held[0][0][0]), sum(count for _, count in held)))
    return found[0] if len(found) == 1 else pa.concat_arrays(found)


def _words(numbers: npt.NDArray[np.int16], names: dict[int, str]) -> pa.Array:
    if (numbers == numbers[0]).all():
        return pa.repeat(names[int(numbers[0])], len(numbers))
    return pa.array([names[number] for number in numbers.tolist()])


def _lists(table: npt.NDArray[Any], ndims: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(ndims) + 1, np.int32)
    np.cumsum(ndims, out=offsets[1:])
    most = int(ndims.max())
    is_even = int(ndims.min()) == most
    values = table[:, :most].reshape(-1) if is_even else table[np.arange(table.shape[1]) < ndims[:, None]]
    return pa.ListArray.from_arrays(offsets, pa.array(values), type=kind)


def _payloads(parts: Sequence[RowPart]) -> pa.Array:
    sizes = _joined("payload_bytes", parts)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = _end_to_end(*parts[0]) if len(parts) == 1 else None
    if data is None:
        data = np.empty(int(offsets[-1]), np.uint8)
        end = 0
        for block, rows in parts:
            end = _pack(block, rows, data, end)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _end_to_end(block: RowBlock, rows: Any) -> npt.NDArray[np.uint8] | None:
    """The payloads where they are, if nothing lies between them, as Arrow wants it: nothing is copied."""
    at, sizes = block.payload_offset[rows], block.payload_bytes[rows]
    if not (at[1:] == at[:-1] + sizes[:-1]).all():
        return None
    found: npt.NDArray[np.uint8] = block.bytes[int(at[0]) : int(at[-1] + sizes[-1])]
    return found


def _pack(block: RowBlock, rows: Any, data: npt.NDArray[np.uint8], end: int) -> int:
    """Puts payloads side by side from `end` on; gives where they end."""
    at, sizes = block.payload_offset[rows], block.payload_bytes[rows]
    size, steps = int(sizes[0]), np.diff(at)
    if (sizes == size).all() and (len(at) == 1 or (steps[0] > 0 and (steps == steps[0]).all())):
        # Alike and evenly spaced, as nearly always.
        step = int(steps[0]) if len(steps) else size
        table = np.lib.stride_tricks.as_strided(block.bytes[int(at[0]) :], (len(at), size), (step, 1))
        data[end : end + table.size].reshape(table.shape)[:] = table
        return end + table.size
    for place, length in zip(at.tolist(), sizes.tolist(), strict=True):
        data[end : end + length] = block.bytes[place : place + length]
        end += length
    return end


def gap_batch(gaps: Sequence[Gap], schema: pa.Schema) -> pa.RecordBatch:
    """Gap rows: stream, epoch, first sequence, count and reason; everything else is null."""
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
    """The rows in runs whose bytes stay below the limit; one row is always taken."""
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
    """Small parts put together; large ones go alone."""
    limit = min(max_bytes, _SMALL_BYTES if inline else _ROWS * _ROW_BYTES)
    held: list[RowPart] = []
    count = size = 0
    for block, rows in parts:
        where = chosen(rows)
        weight = _ROW_BYTES * len(rows) + (int(block.payload_bytes[where].sum()) if inline else 0)
        is_large = weight > limit or len(rows) >= _MANY_ROWS
        if held and (is_large or size + weight > limit or count + len(rows) > _ROWS):
            yield held
            held, count, size = [], 0, 0
        if is_large:
            yield [(block, where)]
            continue
        held.append((block, where))
        count, size = count + len(rows), size + weight
    if held:
        yield held


REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What of the options a task has to know."""

    path: str
    payload: str
    max_batch_bytes: int
    include_gaps: bool
    fail_on_loss: bool
    time: tuple[int | None, int | None] = (None, None)


class RangeScan:
    """One pass over a range. Damage is an error, or a gap if that is allowed."""

    def __init__(self, what: FrameRange, terms: ScanOptions, schema: pa.Schema) -> None:
        self._range = what
        self._terms = terms
        self._schema = schema
        self._recording = Recording(terms.path)
        self._seen: dict[int, list[npt.NDArray[np.uint64]]] = {}
        self._last: Cursor | None = None
        """The last row of the share before this one."""
        self._last_row: Cursor | None = None
        self._bad: str | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The frames in order; the gaps among them last."""
        inline = self._terms.payload == "inline"
        for parts in combine_rows(self._frames(inline), self._terms.max_batch_bytes, inline=inline):
            yield to_arrow(parts, self._schema)
        self._check_end()
        if self._terms.include_gaps and (gaps := self._gaps()):
            yield gap_batch(gaps, self._schema)

    def _frames(self, inline: bool) -> Iterator[tuple[RowBlock, Rows]]:
        for block, rows in self._share(self._runs()):
            kept = self._sound(block, rows) if inline else rows
            if len(kept) == 0:
                continue
            self._note(block, kept)
            for piece in split_rows(block, kept, self._terms.max_batch_bytes, inline=inline):
                yield block, piece

    def _runs(self) -> Iterator[tuple[RowBlock, Rows]]:
        what, terms = self._range, self._terms
        segments = self._recording.by_segment(
            what.stream_id,
            after=what.start.cursor_before(what.stream_id),
            until=what.end.cursor_before(what.stream_id),
            time=terms.time,
            skip_damage=not terms.fail_on_loss,
        )
        for name, frames in segments:
            try:
                yield from frames.runs()
            except (CorruptRecording, FrameNotRecorded) as error:
                if terms.fail_on_loss:
                    raise self._lost(str(error)) from None
                is_removed = isinstance(error, FrameNotRecorded)
                self._bad = REMOVED if is_removed else CORRUPT
                continue
            if not terms.fail_on_loss and self._recording.segment(name).file.scan.damage:
                self._bad = CORRUPT

    def _share(self, runs: Iterator[tuple[RowBlock, Rows]]) -> Iterator[tuple[RowBlock, Rows]]:
        """This task's part of the rows."""
        if self._range.parts == 1:
            yield from runs
            return
        every = list(runs)
        total = sum(len(rows) for _, rows in every)
        low = total * self._range.part // self._range.parts
        high = total * (self._range.part + 1) // self._range.parts
        at = 0
        for block, rows in every:
            begin, end = max(low - at, 0), min(high - at, len(rows))
            if at < low <= at + len(rows):
                # What is missing right behind the share before is this share's to tell.
                self._last = Cursor(self._range.stream_id, block.epoch, int(block.seq[rows[low - at - 1]]))
            if begin < end:
                yield block, rows[begin:end]
            at += len(rows)

    def _sound(self, block: RowBlock, rows: Rows) -> Rows:
        """The rows without those whose payload is not what was written."""
        damaged = block.damaged_rows()
        if not len(damaged):
            return rows
        chosen = np.asarray(rows)
        wrong = chosen[np.isin(chosen, damaged)]
        if len(wrong) and self._terms.fail_on_loss:
            seq = int(block.seq[wrong[0]])
            raise self._lost(
                f"{block.path}, byte {int(block.payload_offset[wrong[0]])}: the payload of frame {seq} is damaged"
            )
        if len(wrong):
            self._bad = CORRUPT
        return chosen[~np.isin(chosen, damaged)]

    def _note(self, block: RowBlock, rows: Rows) -> None:
        seqs = block.seq[np.asarray(rows)]
        if self._terms.include_gaps:
            self._seen.setdefault(block.epoch, []).append(np.array(seqs))
        self._last_row = Cursor(self._range.stream_id, block.epoch, int(seqs[-1]))

    def _check_end(self) -> None:
        what = self._range
        is_last_part = what.part == what.parts - 1
        if not what.ends_with_row or not is_last_part or self._terms.time != (None, None):
            return
        expected = what.end.cursor_before(what.stream_id)
        if self._last_row == expected:
            return
        if self._terms.fail_on_loss:
            raise self._lost(
                f"{self._terms.path}: frames up to {expected} were there when the query was planned"
            )
        self._bad = self._bad or CORRUPT

    def _lost(self, what: str) -> CorruptRecording:
        return CorruptRecording(
            f"stream {self._range.stream_id}: {what}. To go on without: option failOnDataLoss=false "
            "(includeGaps=true makes rows of what is missing)",
            path=self._terms.path,
        )

    # --- gaps

    def _gaps(self) -> list[Gap]:
        """What is missing between the rows of the range, and why."""
        stream_id = self._range.stream_id
        declared = read_gaps(self._recording.root, stream_id)
        epochs = sorted({*self._seen, *self._whole_epochs(declared)})
        found = []
        for epoch in epochs:
            of_epoch = [gap for gap in declared if gap.epoch == epoch]
            rows = np.concatenate(self._seen[epoch]) if epoch in self._seen else np.empty(0, np.uint64)
            default = self._bad or UNEXPLAINED
            for first, last, reason in classify_missing(
                self._missing(epoch, rows, of_epoch), of_epoch, default
            ):
                removed = self._recording.removed_until(stream_id, epoch)
                why = REMOVED if reason == default and last <= removed else reason
                found.append(Gap(stream_id, epoch, first, last - first + 1, why))
        return found

    def _whole_epochs(self, declared: list[Gap]) -> set[int]:
        """Epochs that may have gaps and no rows here. Of the shares of a segment, the first tells of them."""
        start, end = self._range.start, self._range.end
        if self._terms.time != (None, None) or self._range.part > 0:
            return set()
        # A segment is of one epoch: the other shares see to what follows.
        stop = end.epoch if self._range.parts == 1 else min(self._seen, default=end.epoch) - 1
        return {gap.epoch for gap in declared if start.epoch <= gap.epoch <= stop}

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
        """The first and last sequence of an epoch that this task has to account for."""
        start, end, what = self._range.start, self._range.end, self._range
        first = int(rows[0]) if len(rows) else None
        last = int(rows[-1]) if len(rows) else None
        if self._terms.time != (None, None):
            return first or 0, last if last is not None else -1
        if self._last is not None and self._last.epoch == epoch:
            low = self._last.seq + 1
        elif epoch == start.epoch and start.seq > 0:
            low = start.seq
        else:
            known = [gap.first_seq for gap in declared] + ([first] if first is not None else [])
            low = min(known, default=0)
        if what.part < what.parts - 1 and last is not None:
            high = last
        elif epoch == end.epoch:
            # Behind the last row nothing is known yet, unless that row itself is lost.
            high = end.seq - 1 if what.ends_with_row else (last if last is not None else -1)
        else:
            known = [gap.last_seq for gap in declared] + ([last] if last is not None else [])
            high = max(known, default=-1)
        return low, high
