"""Rows of recorded batches as the Arrow batches that Spark takes, without a copy where that is possible."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..recording import NO_TIMESTAMP, NO_TRACE, Gap
from ..recording.layout import PARTIAL, SEALED, signed
from ..recording.rows import RowBlock
from ..recording.tensors import NAMES, ORDERS

Rows = npt.NDArray[np.intp] | range
Piece = tuple[RowBlock, Any]
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


def to_arrow(parts: Sequence[Piece], schema: pa.Schema) -> pa.RecordBatch:
    """The chosen rows of some batches, one after the other, with the columns of the schema."""
    counts = [len(block.seq[rows]) for block, rows in parts]
    arrays = [_column(field.name, field.type, parts, counts) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(name: str, parts: Sequence[Piece]) -> Any:
    """A column of all the parts; of a single one it is a view."""
    found = [getattr(block, name)[rows] for block, rows in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _column(name: str, kind: pa.DataType, parts: Sequence[Piece], counts: list[int]) -> pa.Array:
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
        return pa.array(_joined("payload_at", parts))
    if name == "payload":
        return _payloads(parts)
    if name in ("gap_count", "gap_reason"):
        return pa.nulls(sum(counts), kind)
    return pa.array(_joined(name, parts).view(np.int64))


def _segments(parts: Sequence[Piece], counts: list[int]) -> pa.Array:
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


def _payloads(parts: Sequence[Piece]) -> pa.Array:
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
    at, sizes = block.payload_at[rows], block.payload_bytes[rows]
    if not (at[1:] == at[:-1] + sizes[:-1]).all():
        return None
    found: npt.NDArray[np.uint8] = block.bytes[int(at[0]) : int(at[-1] + sizes[-1])]
    return found


def _pack(block: RowBlock, rows: Any, data: npt.NDArray[np.uint8], end: int) -> int:
    """Puts payloads side by side from `end` on; gives where they end."""
    at, sizes = block.payload_at[rows], block.payload_bytes[rows]
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


def pieces(block: RowBlock, rows: Rows, max_bytes: int, *, inline: bool) -> Iterator[Rows]:
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


def gathered(
    parts: Iterator[tuple[RowBlock, Rows]], max_bytes: int, *, inline: bool
) -> Iterator[list[Piece]]:
    """Small parts put together; large ones go alone."""
    limit = min(max_bytes, _SMALL_BYTES if inline else _ROWS * _ROW_BYTES)
    held: list[Piece] = []
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
