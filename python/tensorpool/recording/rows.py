"""A batch read back: its columns as arrays over the mapped file, checked before anything is handed out.

Segments and batches that a reader has open: a few are kept, since neighbours are read together.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _native
from ..attributes import Extension, Metadata
from ..errors import CorruptRecording, FrameNotRecorded
from . import layout
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .batch_layout import InvalidBatch
from .metadata import MetadataReader
from .segment_file import BatchLocation, SegmentFile
from .tensors import NAMES


class RowBlock:
    """The rows of one batch. Everything is a view of the file's mapping, which lives as long as a view.

    Read without Arrow, since that would cost more than the frames: see `arrow`.
    """

    def __init__(
        self, file: SegmentFile, place: BatchLocation, descriptions: MetadataReader | None = None
    ) -> None:
        self.path = file.path
        self._descriptions = descriptions
        self.place = place
        self._file = file
        # Kept here: the file may be mapped anew while this block is in use.
        self.bytes = file.bytes
        self.data = file.data
        try:
            self._form, self.tensors = file.described(place)
        except InvalidBatch as error:
            raise self._corrupt(str(error)) from None
        versions = place.body + self._form.versions_at
        self._has_versions = bool(self.data[versions : versions + 8 * place.rows].tobytes().strip(b"\0"))
        self.payload_start = place.body + self._form.payloads_at
        """Where in the file the first payload's buffer begins."""
        self.stack = self._stacked()
        """All tensors as one array, where they are alike and lie evenly: a part of it is had quicker than a
        view of the file. None where metadata may say that elements are something else."""

    def _stacked(self) -> npt.NDArray[Any] | None:
        even = self.tensors.even
        if even is None or (self._has_versions and self._descriptions is not None):
            return None
        start, shape, dtype, strides = even
        return np.ndarray(shape, dtype, self.data, self.payload_start + start, strides)

    def _corrupt(self, reason: str) -> CorruptRecording:
        return CorruptRecording(
            f"{self.path}, byte {self.place.start}: {reason}; `tensorpool recording repair` saves the rest",
            path=self.path,
            offset=self.place.start,
        )

    def __len__(self) -> int:
        return self.place.rows

    def _buffer(self, name: str, number: int) -> tuple[int, int]:
        """Where a buffer begins in the file, and its length."""
        start, length = self._form.buffer(name, number)
        return self.place.body + start, length

    # --- columns

    def _numbers(self, name: str) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.bytes, np.int64, len(self), self._buffer(name, 1)[0])

    def _maybe(self, name: str, missing: int) -> npt.NDArray[np.uint64]:
        values = self._numbers(name).view(np.uint64)
        if not self._form.nulls(name):
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

    def described(self, row: int) -> tuple[Metadata, Extension | None] | None:
        """What the source said of a row, as far as it is recorded."""
        if self._descriptions is None or not self._has_versions:
            return None
        version = int(self.meta_version[row])
        return self._descriptions.of(self.stream_id, self.epoch, version) if version else None

    def extension(self, row: int) -> Extension | None:
        """How the elements of a row are carried; None where they are what the row says."""
        told = self.described(row) if self._has_versions else None
        if told is None or told[1] is None:
            return None
        carrier, _, is_pair = told[1]
        shape, _, strides = self.tensors.tensor(row)
        is_carried = NAMES[int(self.dtype[row])] == carrier
        fits = not is_pair or (len(shape) > 1 and (shape[-1], strides[-1]) == (2, 8))
        return told[1] if is_carried and fits else None

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


# Address space is plentiful, but a process has a limited number of mappings.
_FILES_KEPT: Final = 64
_BLOCKS_KEPT: Final = 8


class OpenSegment:
    """One segment as a reader sees it."""

    def __init__(self, path: Path, descriptions: MetadataReader, *, is_sealed: bool) -> None:
        self.file = SegmentFile(path, growing=not is_sealed)
        self.is_sealed = is_sealed
        self._descriptions = descriptions
        self._blocks: OrderedDict[int, RowBlock] = OrderedDict()

    def block(self, number: int) -> RowBlock:
        """The rows of a batch; the last few are kept."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = RowBlock(self.file, self.file.scan.batches[number], self._descriptions)
        self._blocks[number] = block
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return block


class SegmentCache:
    """Opens segments by name, and keeps the ones used last."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.descriptions = MetadataReader(root)
        self._kept: OrderedDict[layout.SegmentName, OpenSegment] = OrderedDict()

    def open(self, name: layout.SegmentName, *, is_sealed: bool = False) -> OpenSegment:
        """The segment, with all batches that are complete by now. FrameNotRecorded if it is gone.

        `is_sealed`: whether it is known to be.
        """
        found = self._kept.get(name)
        if found is not None and not found.is_sealed:
            try:
                found.file.refresh()
            except FileNotFoundError:
                # Sealed since, under its final name.
                found = None
        if found is None:
            found = self._open(name, is_sealed)
            self._kept[name] = found
            if len(self._kept) > _FILES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        found.file.scan_more()
        return found

    def _open(self, name: layout.SegmentName, is_sealed: bool) -> OpenSegment:
        # It may be sealed between the two looks, but never the other way round.
        for is_final in (True,) if is_sealed else (False, True):
            path = name.sealed(self._root) if is_final else name.partial(self._root)
            try:
                return OpenSegment(path, self.descriptions, is_sealed=is_final)
            except FileNotFoundError:
                continue
        raise FrameNotRecorded(
            f"{name.sealed(self._root)} is gone: retention removed it, or someone; refresh() the recording",
            path=name.sealed(self._root),
        )

    def clear(self) -> None:
        self._kept.clear()
