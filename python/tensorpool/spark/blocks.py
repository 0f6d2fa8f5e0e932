"""Rows of a recorded batch as the Arrow batches that Spark takes, without a copy where that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..recording import NO_TIMESTAMP, NO_TRACE, Gap
from ..recording.dtypes import NAMES, ORDERS
from ..recording.layout import PARTIAL, SEALED, signed
from ..recording.rows import RowBlock

Rows = npt.NDArray[np.intp] | range
# Batches with fewer bytes than this are put together: each one costs Spark a round of its own.
_SMALL_BYTES: Final = 1 << 20


def segment_path(block: RowBlock) -> str:
    """The name that the segment has for good: an open one is renamed when it is sealed."""
    name = str(block.path)
    return name.removesuffix(PARTIAL) + SEALED if name.endswith(PARTIAL) else name


def to_arrow(block: RowBlock, rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """The chosen rows with the columns of the schema."""
    chosen: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else _contiguous(rows)
    return pa.RecordBatch.from_arrays(
        [_column(field.name, field.type, block, chosen, len(rows)) for field in schema], schema=schema
    )


def _contiguous(rows: npt.NDArray[np.intp]) -> Any:
    """A slice where the rows follow one another: slices of columns are views."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _column(name: str, kind: pa.DataType, block: RowBlock, rows: Any, count: int) -> pa.Array:
    if name in ("stream_id", "epoch"):
        return pa.array(np.full(count, signed(getattr(block, name)), np.int64))
    if name in ("publish_timestamp_ns", "trace_id"):
        values = getattr(block, name)[rows]
        missing = values == np.uint64(NO_TIMESTAMP if name == "publish_timestamp_ns" else NO_TRACE)
        return pa.array(values.view(np.int64), mask=missing if missing.any() else None)
    if name in ("dtype", "major_order"):
        return _words(getattr(block, name)[rows], NAMES if name == "dtype" else ORDERS)
    if name in ("shape", "strides"):
        return _lists(block.dims if name == "shape" else block.strides, block.ndims[rows], rows, kind)
    if name == "segment":
        return pa.repeat(segment_path(block), count)
    if name == "payload_offset":
        return pa.array(block.payload_at[rows])
    if name == "payload":
        return _payloads(block, rows)
    if name in ("gap_count", "gap_reason"):
        return pa.nulls(count, kind)
    return pa.array(getattr(block, name)[rows].view(np.int64))


def _words(numbers: npt.NDArray[np.int16], names: dict[int, str]) -> pa.Array:
    if (numbers == numbers[0]).all():
        return pa.repeat(names[int(numbers[0])], len(numbers))
    return pa.array([names[number] for number in numbers.tolist()])


def _lists(table: npt.NDArray[Any], ndims: npt.NDArray[np.uint8], rows: Any, kind: pa.DataType) -> pa.Array:
    used = table[rows]
    offsets = np.zeros(len(ndims) + 1, np.int32)
    np.cumsum(ndims, out=offsets[1:])
    values = used[np.arange(table.shape[1]) < ndims[:, None]]
    return pa.ListArray.from_arrays(offsets, pa.array(values), type=kind)


def _payloads(block: RowBlock, rows: Any) -> pa.Array:
    at, sizes = block.payload_at[rows], block.payload_bytes[rows]
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    first = int(at[0])
    if (at == first + offsets[:-1]).all():
        # End to end in the file, as Arrow wants them: nothing is copied here.
        data = pa.py_buffer(block.data[first : first + int(offsets[-1])])
    else:
        packed = np.empty(int(offsets[-1]), np.uint8)
        for place, start, size in zip(at.tolist(), offsets[:-1].tolist(), sizes.tolist(), strict=True):
            packed[start : start + size] = block.bytes[place : place + size]
        data = pa.py_buffer(packed)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), data])


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


def merged(batches: Iterator[pa.RecordBatch], max_rows: int = 16_384) -> Iterator[pa.RecordBatch]:
    """Small batches put together; large ones go as they are."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if held and (nbytes >= _SMALL_BYTES or size + nbytes > _SMALL_BYTES or rows + len(batch) > max_rows):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        if nbytes >= _SMALL_BYTES:
            yield batch
        else:
            held.append(batch)
            rows, size = rows + len(batch), size + nbytes
    if held:
        yield pa.concat_batches(held)
