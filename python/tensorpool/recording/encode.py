"""A batch of frames as the bytes that go to the file: a small head that is made, and payloads as they lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import layout, message, schema
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .dtypes import NAMES, ORDERS

_PAIR: Final = struct.Struct("<qq")
_I64: Final = struct.Struct("<q")
_NAMES: Final = {number: name.encode() for number, name in NAMES.items()}
_ORDERS: Final = {number: name.encode() for number, name in ORDERS.items()}
_NONE: Final = b""
_SAMPLE: Final = {
    field.name: [1] if pa.types.is_list(field.type) else 1 if pa.types.is_integer(field.type) else "-"
    for field in schema.FRAMES
}
_Column = tuple[int, Sequence[Any]]


class BatchEncoder:
    """Encodes the batches of one stream and epoch. Not for two threads at once."""

    def __init__(self, stream_id: int, epoch: int) -> None:
        self._schema = schema.versioned(schema.FRAMES, stream_id=stream_id, epoch=epoch)
        # Numbers that are 0 have no place in a flatbuffer: the sample has a row, so that all are there.
        sample = pa.RecordBatch.from_pylist([_SAMPLE], schema=self._schema)
        self._template = message.sample_message(sample)
        self._places = message.find_places(memoryview(self._template)[message.PREFIX_BYTES :])

    def head(self) -> bytes:
        """What a segment begins with."""
        return message.schema_message(self._schema)

    def encode(self, frames: FrameBatch) -> list[memoryview]:
        """The parts of the message, to be written one after the other; payloads are not copied."""
        nodes, buffers = _columns(frames)
        count = len(frames)
        payload_bytes = frames.packed_bytes
        framed = bytearray(self._template)
        at = message.PREFIX_BYTES
        for number, (length, nulls) in enumerate(nodes):
            _PAIR.pack_into(framed, at + self._places.nodes_at + 16 * number, length, nulls)
        sizes = [memoryview(buffer).nbytes for buffer in buffers]
        starts = np.concatenate(([0], np.cumsum([layout.aligned(size) for size in sizes]))).tolist()
        for number, size in enumerate([*sizes, payload_bytes]):
            _PAIR.pack_into(framed, at + self._places.buffers_at + 16 * number, starts[number], size)
        covered = starts[-1]
        _I64.pack_into(framed, at + self._places.rows_at, count)
        _I64.pack_into(framed, at + self._places.body_bytes_at, covered + payload_bytes)
        body = bytearray(covered)
        for start, size, buffer in zip(starts, sizes, buffers, strict=False):
            body[start : start + size] = memoryview(buffer).cast("B")
        message.seal_check(framed, self._places.check_at, memoryview(body), covered)
        payload = frames.payload_view()
        parts = [memoryview(framed), memoryview(body), payload]
        if payload_bytes > payload.nbytes:
            parts.append(memoryview(bytes(payload_bytes - payload.nbytes)))
        return parts


def _columns(frames: FrameBatch) -> tuple[list[tuple[int, int]], list[Any]]:
    """(length, null count) of each node, and every buffer but the payload's, in the order of the schema."""
    count = len(frames)
    lists, dims, strides = _shapes(frames)
    published = frames.publish_timestamp_ns != np.uint64(NO_TIMESTAMP)
    traced = frames.trace_id != np.uint64(NO_TRACE)
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1] = frames.payload_offset - frames.payload_offset[0]
    offsets[-1] = frames.packed_bytes
    nodes: list[tuple[int, int]] = []
    buffers: list[Any] = []

    def put(nulls: int, *column: Any) -> None:
        nodes.append((count, nulls))
        buffers.extend(column)

    def numbers(column: npt.NDArray[Any]) -> None:
        put(0, _NONE, np.ascontiguousarray(column.astype(np.int64, copy=False)))

    def maybe(column: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        nulls = count - int(valid.sum())
        bits = np.packbits(valid, bitorder="little") if nulls else _NONE
        put(nulls, bits, np.ascontiguousarray(column.view(np.int64)))

    def listed(values: npt.NDArray[Any]) -> None:
        put(0, _NONE, lists)
        nodes.append((len(values), 0))
        buffers.extend((_NONE, values))

    numbers(np.full(count, frames.stream_id, np.int64))
    numbers(np.full(count, layout.signed(frames.epoch), np.int64))
    numbers(frames.seq.view(np.int64))
    numbers(frames.timestamp_ns.view(np.int64))
    maybe(frames.publish_timestamp_ns, published)
    numbers(frames.receive_time_ns)
    numbers(frames.meta_version)
    maybe(frames.trace_id, traced)
    put(0, _NONE, *_words(frames.dtype, _NAMES))
    listed(dims)
    listed(strides)
    put(0, _NONE, *_words(frames.major_order, _ORDERS))
    numbers(frames.payload_bytes.view(np.int64))
    numbers(frames.checksums())
    put(0, _NONE, offsets)
    return nodes, buffers


def _words(numbers: npt.NDArray[np.int16], names: dict[int, bytes]) -> tuple[npt.NDArray[np.int32], bytes]:
    """Offsets and text of a column of words. Nearly always it is one word all along."""
    count = len(numbers)
    first = names[int(numbers[0])]
    if (numbers == numbers[0]).all():
        return np.arange(0, len(first) * count + 1, len(first), dtype=np.int32), first * count
    words = [names[number] for number in numbers.tolist()]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum([len(word) for word in words], out=offsets[1:])
    return offsets, b"".join(words)


def _shapes(frames: FrameBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[Any]]:
    """Offsets of the lists, which shape and strides share, and the values of both."""
    ndims = frames.ndims
    lists = np.zeros(len(frames) + 1, np.int32)
    np.cumsum(ndims, out=lists[1:])
    if (ndims == ndims[0]).all():
        used = slice(0, int(ndims[0]))
        return lists, frames.dims[:, used].ravel(), frames.strides[:, used].ravel()
    mask = np.arange(frames.dims.shape[1]) < ndims[:, None]
    return lists, frames.dims[mask], frames.strides[mask]
