"""The writer of one segment file, and the encoder of its record batches.

The thread that holds the stream's lock writes. `sync` may run in another thread at the same time.
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _native
from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import InvalidFrames, WriteFailed
from . import arrow_format, layout, segment_index
from .arrow_format import END_OF_STREAM
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .tensors import NAMES, ORDERS

_PAIR: Final = struct.Struct("<qq")
_I64: Final = struct.Struct("<q")
_NAMES: Final = {number: name.encode() for number, name in NAMES.items()}
_ORDERS: Final = {number: name.encode() for number, name in ORDERS.items()}
_EMPTY: Final = b""
_TEMPLATE_ROW: Final = {
    field.name: [1] if pa.types.is_list(field.type) else 1 if pa.types.is_integer(field.type) else "-"
    for field in arrow_format.FRAMES
}


class BatchEncoder:
    """Encodes the batches of one stream and epoch as Arrow IPC messages. Not thread-safe."""

    def __init__(self, stream_id: int, epoch: int) -> None:
        self._schema = arrow_format.with_version(arrow_format.FRAMES, stream_id=stream_id, epoch=epoch)
        # A flatbuffer leaves out numbers that are 0: the template has a row, so that every number is present.
        sample = pa.RecordBatch.from_pylist([_TEMPLATE_ROW], schema=self._schema)
        self._template = arrow_format.template_message(sample)
        self._offsets = arrow_format.find_offsets(memoryview(self._template)[arrow_format.PREFIX_BYTES :])

    def schema_message(self) -> bytes:
        """The bytes at the start of a segment."""
        return arrow_format.schema_message(self._schema)

    def encode(self, frames: FrameBatch) -> list[memoryview]:
        """The message in parts, to be written in this order. Payloads are not copied."""
        nodes, buffers = _encode_columns(frames)
        count = len(frames)
        payload_bytes = frames.packed_bytes
        framed = bytearray(self._template)
        at = arrow_format.PREFIX_BYTES
        for number, (length, nulls) in enumerate(nodes):
            _PAIR.pack_into(framed, at + self._offsets.nodes_at + _PAIR.size * number, length, nulls)
        sizes = [memoryview(buffer).nbytes for buffer in buffers]
        starts = np.concatenate(([0], np.cumsum([layout.aligned(size) for size in sizes]))).tolist()
        for number, size in enumerate([*sizes, payload_bytes]):
            _PAIR.pack_into(framed, at + self._offsets.buffers_at + _PAIR.size * number, starts[number], size)
        covered = starts[-1]
        _I64.pack_into(framed, at + self._offsets.rows_at, count)
        _I64.pack_into(framed, at + self._offsets.body_bytes_at, covered + payload_bytes)
        body = bytearray(covered)
        for start, size, buffer in zip(starts, sizes, buffers, strict=False):
            body[start : start + size] = memoryview(buffer).cast("B")
        arrow_format.write_checksum(framed, self._offsets.check_at, memoryview(body), covered)
        payload = frames.payload_view()
        parts = [memoryview(framed), memoryview(body), payload]
        if payload_bytes > payload.nbytes:
            parts.append(memoryview(bytes(payload_bytes - payload.nbytes)))
        return parts


def _encode_columns(frames: FrameBatch) -> tuple[list[tuple[int, int]], list[Any]]:
    """(length, null count) of each node, and all buffers except the payload's, in the order of the schema."""
    count = len(frames)
    list_offsets, dims, strides = _encode_shapes(frames)
    published = frames.publish_timestamp_ns != np.uint64(NO_TIMESTAMP)
    traced = frames.trace_id != np.uint64(NO_TRACE)
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1] = frames.payload_offset - frames.payload_offset[0]
    offsets[-1] = frames.packed_bytes
    nodes: list[tuple[int, int]] = []
    buffers: list[Any] = []

    def add_column(nulls: int, *column: Any) -> None:
        nodes.append((count, nulls))
        buffers.extend(column)

    def add_numbers(column: npt.NDArray[Any]) -> None:
        add_column(0, _EMPTY, np.ascontiguousarray(column.astype(np.int64, copy=False)))

    def add_nullable(column: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        nulls = count - int(valid.sum())
        bits = np.packbits(valid, bitorder="little") if nulls else _EMPTY
        add_column(nulls, bits, np.ascontiguousarray(column.view(np.int64)))

    def add_lists(values: npt.NDArray[Any]) -> None:
        add_column(0, _EMPTY, list_offsets)
        nodes.append((len(values), 0))
        buffers.extend((_EMPTY, values))

    add_numbers(np.full(count, frames.stream_id, np.int64))
    add_numbers(np.full(count, layout.signed(frames.epoch), np.int64))
    add_numbers(frames.seq.view(np.int64))
    add_numbers(frames.timestamp_ns.view(np.int64))
    add_nullable(frames.publish_timestamp_ns, published)
    add_numbers(frames.receive_time_ns)
    add_numbers(frames.meta_version)
    add_nullable(frames.trace_id, traced)
    add_column(0, _EMPTY, *_encode_names(frames.dtype, _NAMES))
    add_lists(dims)
    add_lists(strides)
    add_column(0, _EMPTY, *_encode_names(frames.major_order, _ORDERS))
    add_numbers(frames.payload_bytes.view(np.int64))
    add_numbers(frames.checksums())
    add_column(0, _EMPTY, offsets)
    return nodes, buffers


def _encode_names(
    numbers: npt.NDArray[np.int16], names: dict[int, bytes]
) -> tuple[npt.NDArray[np.int32], bytes]:
    """Offsets and text of a column of names. Nearly always all rows have the same name."""
    count = len(numbers)
    first = names[int(numbers[0])]
    if (numbers == numbers[0]).all():
        return np.arange(0, len(first) * count + 1, len(first), dtype=np.int32), first * count
    values = [names[number] for number in numbers.tolist()]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return offsets, b"".join(values)


def _encode_shapes(frames: FrameBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[Any]]:
    """The list offsets that shape and strides share, and the values of both."""
    ndims = frames.ndims
    offsets = np.zeros(len(frames) + 1, np.int32)
    np.cumsum(ndims, out=offsets[1:])
    if (ndims == ndims[0]).all():
        used = slice(0, int(ndims[0]))
        return offsets, frames.dims[:, used].ravel(), frames.strides[:, used].ravel()
    mask = np.arange(frames.dims.shape[1]) < ndims[:, None]
    return offsets, frames.dims[mask], frames.strides[mask]


@dataclass(slots=True)
class SegmentStats:
    """Totals of a segment, as the manifest lists them."""

    rows: int = 0
    last_seq: int = 0
    size_bytes: int = 0
    payload_bytes: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0
    head_crc32c: int = 0
    """Checksum of the schema at the start of the file, which the checksums of the batches do not cover."""

    def add(self, frames: FrameBatch, size_bytes: int) -> None:
        """Counts a batch; `size_bytes` is the new size of the file."""
        first, last = int(frames.receive_time_ns.min()), int(frames.receive_time_ns.max())
        self.first_time_ns = min(self.first_time_ns, first) if self.rows else first
        self.last_time_ns = max(self.last_time_ns, last) if self.rows else last
        self.rows += len(frames)
        self.last_seq = frames.last_seq
        self.payload_bytes += int(frames.payload_bytes.sum())
        self.size_bytes = size_bytes


class SegmentWriter:
    """Writes `<first-seq>.arrows.partial`, and renames the file when it seals the segment.

    A batch is written completely or not at all: the writer truncates what a full disk left of it, and the
    same batch can be written later.
    """

    def __init__(self, root: Path, name: layout.SegmentName) -> None:
        self.name = name
        self.root = root
        self.path = name.partial(root)
        self.stats = SegmentStats()
        self._encoder = BatchEncoder(name.stream_id, name.epoch)
        self._synced_bytes = 0
        self._broken: WriteFailed | None = None
        # Guards the descriptor: closing it during a sync would sync another file with the same number.
        self._closing = threading.Lock()
        self._fd = -1
        with write_errors(self.path):
            self._directories_to_sync = [
                name.directory(root),
                *make_directories(name.directory(root), above=root),
            ]
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            head = self._encoder.schema_message()
            try:
                self._end = write_all(self._fd, [memoryview(head)])
            except OSError:
                self.path.unlink(missing_ok=True)
                self.abandon()
                raise
        self.stats.size_bytes = self._end
        self.stats.head_crc32c = _native.crc32c(head)

    @property
    def end(self) -> int:
        """Size of the file up to its last complete batch."""
        return self._end

    @property
    def is_dirty(self) -> bool:
        """Whether bytes were written since the last sync."""
        return self._synced_bytes < self._end

    @property
    def closed(self) -> bool:
        """Whether the file was sealed or abandoned."""
        return self._fd < 0

    def write(self, frames: FrameBatch) -> None:
        """Appends a batch. It survives a crash of the process now, and of the host after the next `sync`."""
        if self._broken is not None:
            raise self._broken
        if fault := frames.content_fault():
            raise InvalidFrames(f"stream {self.name.stream_id}: {fault}", path=self.path)
        parts = self._encoder.encode(frames)
        with write_errors(self.path):
            try:
                written = write_all(self._fd, parts)
            except OSError:
                self._truncate()
                raise
        self._end += written
        self.stats.add(frames, self._end)

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            # The torn batch remains, so no batch may follow it in this file.
            self._broken = WriteFailed(f"{self.path}: {error.strerror}", path=self.path, code=error.errno)

    def sync(self) -> None:
        """Makes everything written before the call durable."""
        with self._closing:
            if self.closed or not self.is_dirty:
                return
            end = self._end
            with write_errors(self.path):
                try:
                    os.fdatasync(self._fd)
                    # Not at creation: rotation happens between two writes, and must be quick.
                    while self._directories_to_sync:
                        sync_directory(self._directories_to_sync[-1])
                        self._directories_to_sync.pop()
                except OSError as error:
                    # The kernel may have dropped the pages and cleared the error: no byte since the last sync
                    # is certain, and a second sync would succeed without writing them.
                    self._broken = WriteFailed(
                        f"{self.path}: {error.strerror}", path=self.path, code=error.errno
                    )
                    raise
            self._synced_bytes = end

    def seal(self) -> Path:
        """Ends the segment and gives it its final name, durably. Removes an empty segment instead."""
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
                    # The end mark is optional: a full disk must not keep the segment from being sealed.
                    os.ftruncate(self._fd, self._end)
                self.stats.size_bytes = self._end
                os.fsync(self._fd)
                # Before the rename: a reader that sees the sealed segment finds its index.
                segment_index.write(self.root, self.name, self.path)
                self.path.rename(self.name.sealed(self.root))
            os.close(self._fd)
            self._fd = -1
            for directory in {self.path.parent, *self._directories_to_sync}:
                sync_directory(directory)
        return self.name.sealed(self.root)

    def abandon(self) -> None:
        """Closes the file as it is. The next writer of the stream recovers the complete batches."""
        with self._closing:
            if not self.closed:
                os.close(self._fd)
                self._fd = -1
