"""One segment while it is written: batches go to its end, and it is sealed under its final name.

Owned by whoever holds the stream's lock. `sync` may run in another thread beside `write`.

A batch of frames as the bytes that go to the file: a small head that is made, and payloads as they lie.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import InvalidFrames, WriteFailed
from . import arrow_format, layout
from .arrow_format import END_OF_STREAM
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .tensors import NAMES, ORDERS

_PAIR: Final = struct.Struct("<qq")
_I64: Final = struct.Struct("<q")
_NAMES: Final = {number: name.encode() for number, name in NAMES.items()}
_ORDERS: Final = {number: name.encode() for number, name in ORDERS.items()}
_NONE: Final = b""
_SAMPLE: Final = {
    field.name: [1] if pa.types.is_list(field.type) else 1 if pa.types.is_integer(field.type) else "-"
    for field in arrow_format.FRAMES
}
_Column = tuple[int, Sequence[Any]]


class BatchEncoder:
    """Encodes the batches of one stream and epoch. Not for two threads at once."""

    def __init__(self, stream_id: int, epoch: int) -> None:
        self._schema = arrow_format.versioned(arrow_format.FRAMES, stream_id=stream_id, epoch=epoch)
        # Numbers that are 0 have no place in a flatbuffer: the sample has a row, so that all are there.
        sample = pa.RecordBatch.from_pylist([_SAMPLE], schema=self._schema)
        self._template = arrow_format.sample_message(sample)
        self._places = arrow_format.find_offsets(memoryview(self._template)[arrow_format.PREFIX_BYTES :])

    def head(self) -> bytes:
        """What a segment begins with."""
        return arrow_format.schema_message(self._schema)

    def encode(self, frames: FrameBatch) -> list[memoryview]:
        """The parts of the message, to be written one after the other; payloads are not copied."""
        nodes, buffers = _columns(frames)
        count = len(frames)
        payload_bytes = frames.packed_bytes
        framed = bytearray(self._template)
        at = arrow_format.PREFIX_BYTES
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
        arrow_format.seal_check(framed, self._places.check_at, memoryview(body), covered)
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


@dataclass(slots=True)
class SegmentStats:
    """What is in a segment, as the manifest keeps it."""

    rows: int = 0
    last_seq: int = 0
    size_bytes: int = 0
    payload_bytes: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0

    def add(self, frames: FrameBatch, size_bytes: int) -> None:
        first, last = int(frames.receive_time_ns.min()), int(frames.receive_time_ns.max())
        self.first_time_ns = min(self.first_time_ns, first) if self.rows else first
        self.last_time_ns = max(self.last_time_ns, last) if self.rows else last
        self.rows += len(frames)
        self.last_seq = frames.last_seq
        self.payload_bytes += int(frames.payload_bytes.sum())
        self.size_bytes = size_bytes


class SegmentWriter:
    """Writes `<first-seq>.arrows.partial`, and renames it when it is sealed.

    A batch is written whole or not at all: what a full disk left of it is cut off again, and the same batch
    can be written later.
    """

    def __init__(self, root: Path, name: layout.SegmentName) -> None:
        self.name = name
        self.root = root
        self.path = name.partial(root)
        self.stats = SegmentStats()
        self._encoder = BatchEncoder(name.stream_id, name.epoch)
        self._synced_bytes = 0
        self._broken: WriteFailed | None = None
        # Guards the descriptor: it must not be closed, and its number given to another file, during a sync.
        self._closing = threading.Lock()
        self._fd = -1
        with write_errors(self.path):
            self._names_to_sync = [name.directory(root), *make_directories(name.directory(root), above=root)]
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            try:
                self._end = write_all(self._fd, [memoryview(self._encoder.head())])
            except OSError:
                self.path.unlink(missing_ok=True)
                self.abandon()
                raise
        self.stats.size_bytes = self._end

    @property
    def end(self) -> int:
        """Bytes of the file that hold complete batches."""
        return self._end

    @property
    def is_dirty(self) -> bool:
        return self._synced_bytes < self._end

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def write(self, frames: FrameBatch) -> None:
        """Appends a batch. It survives the process from here on, and the machine after the next `sync`."""
        if self._broken is not None:
            raise self._broken
        if problem := frames.problem():
            raise InvalidFrames(f"stream {self.name.stream_id}: {problem}", path=self.path)
        parts = self._encoder.encode(frames)
        with write_errors(self.path):
            try:
                written = write_all(self._fd, parts)
            except OSError:
                self._cut()
                raise
        self._end += written
        self.stats.add(frames, self._end)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            # The torn batch stays, so nothing may follow it in this file.
            self._broken = WriteFailed(f"{self.path}: {error.strerror}", path=self.path, code=error.errno)

    def sync(self) -> None:
        """Returns when everything written before the call is on the disk."""
        with self._closing:
            if self.closed or not self.is_dirty:
                return
            end = self._end
            with write_errors(self.path):
                try:
                    os.fdatasync(self._fd)
                    # Not when they were made: rotation happens between two writes, and must be quick.
                    while self._names_to_sync:
                        sync_directory(self._names_to_sync[-1])
                        self._names_to_sync.pop()
                except OSError as error:
                    # The kernel may have dropped the pages and forgotten the error: nothing since the last
                    # sync can be relied upon, and a second sync would only pretend.
                    self._broken = WriteFailed(
                        f"{self.path}: {error.strerror}", path=self.path, code=error.errno
                    )
                    raise
            self._synced_bytes = end

    def seal(self) -> Path:
        """Ends the segment under its final name, durably. An empty one is removed instead."""
        if self._broken is not None:
            self.abandon()
            raise self._broken
        with self._closing, write_errors(self.path):
            if self.stats.rows == 0:
                self.path.unlink(missing_ok=True)
            else:
                try:
                    self._end += write_all(self._fd, [memoryview(END_OF_STREAM)])
                except OSError:
                    # A stream may end without its mark, and a full disk is no reason to leave it open.
                    os.ftruncate(self._fd, self._end)
                self.stats.size_bytes = self._end
                os.fsync(self._fd)
                self.path.rename(self.name.sealed(self.root))
            os.close(self._fd)
            self._fd = -1
            for directory in {self.path.parent, *self._names_to_sync}:
                sync_directory(directory)
        return self.name.sealed(self.root)

    def abandon(self) -> None:
        """Lets go of the file as it is; the next writer of the stream recovers what is complete."""
        with self._closing:
            if not self.closed:
                os.close(self._fd)
                self._fd = -1
