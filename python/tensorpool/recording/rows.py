"""A batch read back: its columns as arrays over the mapped file, checked before anything is handed out."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _native
from ..errors import CorruptRecording
from . import layout
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .scan import BatchPlace, SegmentFile
from .schema import FRAMES
from .tensors import SOURCES, Tensors, Unfit

_REQUIRED: Final = tuple(field.name for field in FRAMES if not field.nullable)
_NUMBERS: Final = tuple(field.name for field in FRAMES if pa.types.is_integer(field.type))


class RowBlock:
    """The rows of one batch. Everything is a view of the file's mapping, which lives as long as a view.

    Read without Arrow, since that would cost more than the frames: see `arrow`.
    """

    def __init__(self, file: SegmentFile, place: BatchPlace) -> None:
        self.path = file.path
        self.place = place
        self._file = file
        # Kept here: the file may be mapped anew while this block is in use.
        self.bytes = file.bytes
        self.data = file.data
        self._nodes, self._buffers = file.parts(place)
        try:
            self._check()
            self.tensors = self._describe()
        except Unfit as error:
            raise self._corrupt(str(error)) from None

    def _corrupt(self, reason: str) -> CorruptRecording:
        return CorruptRecording(
            f"{self.path}, byte {self.place.start}: {reason}; `tensorpool recording repair` saves the rest",
            path=self.path,
            offset=self.place.start,
        )

    def __len__(self) -> int:
        return self.place.rows

    def _check(self) -> None:
        rows, columns, nodes, buffers = self.place.rows, self._file.columns, self._nodes, self._buffers
        for start, length in buffers:
            if start < self.place.body or length < 0 or start + length > self.place.end:
                raise Unfit("a buffer lies outside its batch")
        for name in _REQUIRED:
            if nodes[columns[name][0]] != (rows, 0):
                raise Unfit(f"column {name} has nulls, or another length than the batch")
        for name in _NUMBERS:
            node, buffer = columns[name]
            if buffers[buffer + 1][1] < 8 * rows or nodes[node][0] != rows:
                raise Unfit(f"column {name} is cut off")
            if nodes[node][1] and 8 * buffers[buffer][1] < rows:
                raise Unfit(f"column {name} is cut off")

    def _describe(self) -> Tensors:
        sources = []
        for name, number in SOURCES:
            start, length = self._buffer(name, number)
            sources.append(bytes(self.data[start : start + length]))
        room = self._buffer("payload", 2)[1]
        key = (self.place.rows, room, sources)
        if self._file.described is None or self._file.described[0] != key:
            self._file.described = key, Tensors(self.place.rows, sources, room)
        found = self._file.described[1]
        assert isinstance(found, Tensors), "nothing else is put there"
        return found

    def _buffer(self, name: str, number: int) -> tuple[int, int]:
        """Where a buffer begins in the file, and its length."""
        return self._buffers[self._file.columns[name][1] + number]

    # --- columns

    def _numbers(self, name: str) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.bytes, np.int64, len(self), self._buffer(name, 1)[0])

    def _maybe(self, name: str, missing: int) -> npt.NDArray[np.uint64]:
        values = self._numbers(name).view(np.uint64)
        if not self._nodes[self._file.columns[name][0]][1]:
            return values
        start, length = self._buffer(name, 0)
        bits = np.unpackbits(self.bytes[start : start + length], count=len(self), bitorder="little")
        return np.where(bits, values, np.uint64(missing))

    @cached_property
    def stream_id(self) -> int:
        return int(self._numbers("stream_id")[0])

    @cached_property
    def epoch(self) -> int:
        return layout.unsigned(int(self._numbers("epoch")[0]))

    @cached_property
    def seq(self) -> npt.NDArray[np.uint64]:
        return self._numbers("seq").view(np.uint64)

    @cached_property
    def timestamp_ns(self) -> npt.NDArray[np.uint64]:
        return self._numbers("timestamp_ns").view(np.uint64)

    @cached_property
    def publish_timestamp_ns(self) -> npt.NDArray[np.uint64]:
        return self._maybe("publish_timestamp_ns", NO_TIMESTAMP)

    @cached_property
    def receive_time_ns(self) -> npt.NDArray[np.int64]:
        return self._numbers("receive_time_ns")

    @cached_property
    def meta_version(self) -> npt.NDArray[np.int64]:
        return self._numbers("meta_version")

    @cached_property
    def trace_id(self) -> npt.NDArray[np.uint64]:
        return self._maybe("trace_id", NO_TRACE)

    @property
    def dtype(self) -> npt.NDArray[np.int16]:
        return self.tensors.dtype

    @property
    def major_order(self) -> npt.NDArray[np.int16]:
        return self.tensors.major_order

    @property
    def ndims(self) -> npt.NDArray[np.uint8]:
        return self.tensors.ndims

    @property
    def dims(self) -> npt.NDArray[np.int32]:
        return self.tensors.dims

    @property
    def strides(self) -> npt.NDArray[np.int64]:
        return self.tensors.strides

    @property
    def payload_bytes(self) -> npt.NDArray[np.int64]:
        return self.tensors.payload_bytes

    @cached_property
    def crc32c(self) -> npt.NDArray[np.int64]:
        return self._numbers("crc32c")

    @cached_property
    def payload_start(self) -> int:
        """Where in the file the first payload's buffer begins."""
        return self._buffer("payload", 2)[0]

    @property
    def payload_at(self) -> npt.NDArray[np.int64]:
        """Where in the file each payload begins."""
        places: npt.NDArray[np.int64] = self.tensors.payload_at + self.payload_start
        return places

    # --- as a whole

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The batch as Arrow has it, on the same memory. Payloads are padded to multiples of 64 bytes."""
        try:
            found = pa.ipc.read_message(
                pa.BufferReader(pa.py_buffer(self.data[self.place.start : self.place.end]))
            )
            batch = pa.ipc.read_record_batch(found, self._file.schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(f"a batch cannot be read: {error}") from None
        return batch

    def damaged_rows(self) -> npt.NDArray[np.intp]:
        """Rows whose payload is not what was written."""
        at, sizes = self.payload_at.astype(np.uint64), self.payload_bytes.astype(np.uint64)
        return np.flatnonzero(_native.crc32c_each(self.bytes, at, sizes) != self.crc32c)

    def as_frames(self, start: int = 0, stop: int | None = None) -> FrameBatch:
        """Rows as they can be written again. Their arena is the mapped file, so nothing is copied."""
        # Offsets into the file are multiples of 64, as those into an arena have to be.
        rows = slice(start, len(self) if stop is None else stop)
        return FrameBatch(
            stream_id=self.stream_id,
            epoch=self.epoch,
            arena=self.bytes,
            seq=self.seq[rows],
            timestamp_ns=self.timestamp_ns[rows],
            publish_timestamp_ns=self.publish_timestamp_ns[rows],
            receive_time_ns=self.receive_time_ns[rows],
            meta_version=self.meta_version[rows].astype(np.uint32),
            trace_id=self.trace_id[rows],
            dtype=self.dtype[rows],
            major_order=self.major_order[rows],
            ndims=self.ndims[rows],
            dims=self.dims[rows],
            strides=self.strides[rows],
            payload_offset=self.payload_at[rows].astype(np.uint64),
            payload_bytes=self.payload_bytes[rows].astype(np.uint64),
            crc32c=self.crc32c[rows].astype(np.uint32),
        )
