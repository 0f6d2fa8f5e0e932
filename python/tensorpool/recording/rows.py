"""Rows of a record batch as views of the mapped file, and a reader's cache of open segments."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _native
from ..attributes import Extension
from ..errors import CorruptRecording, FrameNotRecorded
from . import layout
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .batch_layout import InvalidBatch
from .metadata import FrameMetadata, MetadataReader
from .metadata_index import INDEXED
from .segment_file import BatchLocation, SegmentFile
from .storage import RemoteRecording, StorageUri, archive_of, reference
from .tensors import NAMES

# Address space is plentiful, but the number of mappings of a process is limited.
_MAX_FILES: Final = 64
# Of remote ones the payloads that were used last are in memory.
_MAX_REMOTE_FILES: Final = 4
_MAX_BLOCKS: Final = 8
# Shape and stride of the last axis of a complex tensor that is carried as pairs of float64.
_PAIR_AXIS: Final = (2, 8)


class RowBlock:
    """The rows of one batch, as views of the mapped file. The mapping lives as long as a view of it.

    Decoded without pyarrow, which would take longer than reading the frames: see `arrow`.
    """

    def __init__(
        self,
        file: SegmentFile,
        location: BatchLocation,
        metadata: MetadataReader | None = None,
        archive: tuple[Path, StorageUri] | None = None,
    ) -> None:
        """`archive` is the directory of a local recording, and where its archive is."""
        self._archive = archive
        self.path = file.path
        self._metadata = metadata
        self.location = location
        self._file = file
        # Kept here: the file may be mapped again while this block is in use.
        self._columns = file.bytes
        self._columns_data = file.data
        try:
            self._layout, self.tensors = file.read_tensors(location)
        except InvalidBatch as error:
            raise self._corrupt(str(error)) from None
        versions = location.body + self._layout.versions_at
        in_use = self._columns_data[versions : versions + 8 * location.rows]
        self._has_versions = bool(in_use.tobytes().strip(b"\0"))
        self.payload_start = location.body + self._layout.payloads_at
        """Position of the payload buffer in the file."""

    @property
    def reference(self) -> str:
        """The text by which rows refer to the segment: its path, or the URI of its archive."""
        text = self._file.reference()
        if self._archive is None:
            return text
        root, uri = self._archive
        return reference(uri / Path(text).relative_to(root).as_posix(), str(root))

    # --- payloads, which a remote file fetches at their first use

    @property
    def has_payloads(self) -> bool:
        """Whether the payloads are in memory, or mapped."""
        return self._file.has_payloads

    @cached_property
    def data(self) -> memoryview:
        """The mapped file."""
        return self._file.load_payloads(self.location, self._columns_data)

    @cached_property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The mapped file, as an array."""
        # The same object for all batches of a mapping: a replay recognises neighbours by it.
        return self._columns if self.data is self._columns_data else np.frombuffer(self.data, np.uint8)

    @cached_property
    def stack(self) -> npt.NDArray[Any] | None:
        """All tensors as one array: slicing it is faster than making a view of the file. None if the tensors
        differ, are not evenly spaced, or metadata may define another element type."""
        stacked = self.tensors.stacked
        if stacked is None or (self._has_versions and self._metadata is not None):
            return None
        return np.ndarray(
            stacked.shape, stacked.dtype, self.data, self.payload_start + stacked.offset, stacked.strides
        )

    def _corrupt(self, reason: str) -> CorruptRecording:
        return CorruptRecording(
            f"{self.path}, byte {self.location.start}: {reason}; `tensorpool recording repair` keeps the "
            "undamaged frames",
            path=self.path,
            offset=self.location.start,
        )

    def __len__(self) -> int:
        return self.location.rows

    def _buffer(self, name: str, number: int) -> tuple[int, int]:
        """Position of a buffer in the file, and its length."""
        start, length = self._layout.buffer(name, number)
        return self.location.body + start, length

    # --- columns

    def _numbers(self, name: str) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._columns, np.int64, len(self), self._buffer(name, 1)[0])

    def _nullable(self, name: str, null_value: int) -> npt.NDArray[np.uint64]:
        values = self._numbers(name).view(np.uint64)
        if not self._layout.nulls(name):
            return values
        start, length = self._buffer(name, 0)
        bits = np.unpackbits(self._columns[start : start + length], count=len(self), bitorder="little")
        return np.where(bits, values, np.uint64(null_value))

    @cached_property
    def stream_id(self) -> int:
        """The stream of all rows."""
        return int(self._numbers("stream_id")[0])

    @cached_property
    def epoch(self) -> int:
        """The epoch of all rows."""
        return layout.unsigned(int(self._numbers("epoch")[0]))

    @cached_property
    def seq(self) -> npt.NDArray[np.uint64]:
        """Sequences."""
        return self._numbers("seq").view(np.uint64)

    @cached_property
    def timestamp_ns(self) -> npt.NDArray[np.uint64]:
        """Timestamps of the source."""
        return self._numbers("timestamp_ns").view(np.uint64)

    @cached_property
    def publish_timestamp_ns(self) -> npt.NDArray[np.uint64]:
        """Times of publication; NO_TIMESTAMP where there is none."""
        return self._nullable("publish_timestamp_ns", NO_TIMESTAMP)

    @cached_property
    def receive_time_ns(self) -> npt.NDArray[np.int64]:
        """Times of receipt by the recorder: nanoseconds since 1970 (UTC)."""
        return self._numbers("receive_time_ns")

    @cached_property
    def meta_version(self) -> npt.NDArray[np.int64]:
        """Metadata versions; 0 for none."""
        return self._numbers("meta_version")

    def metadata(self, row: int) -> FrameMetadata | None:
        """The metadata of a row's version; None if the row has no version or it was not recorded."""
        if self._metadata is None or not self._has_versions:
            return None
        version = int(self.meta_version[row])
        return self._metadata.find(self.stream_id, self.epoch, version) if version else None

    def extension(self, row: int) -> Extension | None:
        """The element type that metadata define for a row; None if it is the one in the row."""
        metadata = self.metadata(row) if self._has_versions else None
        if metadata is None or metadata.extension is None:
            return None
        carrier, _, is_pair = metadata.extension
        shape, _, strides = self.tensors.tensor(row)
        is_carried = NAMES[int(self.dtype[row])] == carrier
        fits = not is_pair or (len(shape) > 1 and (shape[-1], strides[-1]) == _PAIR_AXIS)
        return metadata.extension if is_carried and fits else None

    @cached_property
    def trace_id(self) -> npt.NDArray[np.uint64]:
        """Trace ids; NO_TRACE where there is none."""
        return self._nullable("trace_id", NO_TRACE)

    @property
    def dtype(self) -> npt.NDArray[np.int16]:
        """Wire numbers of the element types."""
        return self.tensors.dtype

    @property
    def major_order(self) -> npt.NDArray[np.int16]:
        """Wire numbers of the major orders."""
        return self.tensors.major_order

    @property
    def ndims(self) -> npt.NDArray[np.uint8]:
        """Numbers of dimensions."""
        return self.tensors.ndims

    @property
    def dims(self) -> npt.NDArray[np.int32]:
        """Shapes, eight columns."""
        return self.tensors.dims

    @property
    def strides(self) -> npt.NDArray[np.int64]:
        """Strides in bytes, eight columns."""
        return self.tensors.strides

    @property
    def payload_bytes(self) -> npt.NDArray[np.int64]:
        """Sizes of the payloads."""
        return self.tensors.payload_bytes

    @cached_property
    def crc32c(self) -> npt.NDArray[np.int64]:
        """Checksums of the payloads."""
        return self._numbers("crc32c")

    @property
    def payload_offset(self) -> npt.NDArray[np.int64]:
        """Positions of the payloads in the file."""
        offsets: npt.NDArray[np.int64] = self.tensors.payload_offset + self.payload_start
        return offsets

    # --- the whole batch

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The batch as pyarrow reads it, on the same memory. Payloads are padded to multiples of 64 bytes."""
        try:
            message = pa.ipc.read_message(
                pa.BufferReader(pa.py_buffer(self.data[self.location.start : self.location.end]))
            )
            batch = pa.ipc.read_record_batch(message, self._file.schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(f"a batch cannot be read: {error}") from None
        return batch

    def damaged_rows(self) -> npt.NDArray[np.intp]:
        """Numbers of the rows whose payload does not match its checksum."""
        at, sizes = self.payload_offset.astype(np.uint64), self.payload_bytes.astype(np.uint64)
        return np.flatnonzero(_native.crc32c_each(self.bytes, at, sizes) != self.crc32c)

    def to_frames(self, start: int = 0, stop: int | None = None) -> FrameBatch:
        """A range of rows as a batch to be written again. Its arena is the mapped file, without a copy."""
        # Positions in the file are multiples of 64, as those in an arena have to be.
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
            payload_offset=self.payload_offset[rows].astype(np.uint64),
            payload_bytes=self.payload_bytes[rows].astype(np.uint64),
            crc32c=self.crc32c[rows].astype(np.uint32),
        )


class OpenSegment:
    """One segment that a reader has open, with its most recently used batches."""

    def __init__(
        self,
        file: SegmentFile,
        metadata: MetadataReader,
        *,
        is_sealed: bool,
        archive: tuple[Path, StorageUri] | None = None,
    ) -> None:
        self.file = file
        self._archive = archive
        self.is_sealed = is_sealed
        self._metadata = metadata
        self._blocks: OrderedDict[int, RowBlock] = OrderedDict()

    def block(self, number: int) -> RowBlock:
        """The rows of a batch."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = RowBlock(self.file, self.file.scan.batches[number], self._metadata, self._archive)
        self._blocks[number] = block
        if len(self._blocks) > _MAX_BLOCKS:
            self._blocks.popitem(last=False)
        return block


class SegmentCache:
    """Opens segments by name and keeps the most recently used ones open."""

    def __init__(self, root: Path, remote: RemoteRecording | None = None) -> None:
        self._root = root
        self._remote = remote
        archive = archive_of(root) if remote is None else None
        self._archive = (root.absolute(), archive) if archive is not None else None
        self._max_files = _MAX_FILES if remote is None else _MAX_REMOTE_FILES
        before_read = None if remote is None else partial(remote.require_tables, INDEXED)
        self.metadata = MetadataReader(root, before_read=before_read)
        self._segments: OrderedDict[layout.SegmentName, OpenSegment] = OrderedDict()

    def open(self, name: layout.SegmentName, *, is_sealed: bool = False) -> OpenSegment:
        """The segment with all batches that are complete now. FrameNotRecorded if its file was removed.

        `is_sealed`: whether the segment is known to be sealed.
        """
        segment = self._segments.get(name)
        if segment is not None and not segment.is_sealed:
            try:
                segment.file.refresh()
            except FileNotFoundError:
                # It was sealed meanwhile and has its final name.
                segment = None
        if segment is None:
            segment = self._open(name, is_sealed)
            self._segments[name] = segment
            if len(self._segments) > self._max_files:
                self._segments.popitem(last=False)
        self._segments.move_to_end(name)
        segment.file.scan_more()
        if (fault := segment.file.name_fault(name)) is not None:
            raise CorruptRecording(
                f"{segment.file.path} {fault}: it is not the file that was written under this name; "
                "`tensorpool recording repair` puts it back",
                path=segment.file.path,
                offset=0,
            )
        return segment

    def _open(self, name: layout.SegmentName, is_sealed: bool) -> OpenSegment:
        if self._remote is not None:
            return self._open_remote(self._remote, name)
        # The partial name first: a segment may be sealed between the two attempts, but never unsealed.
        for is_final in (True,) if is_sealed else (False, True):
            path = name.sealed(self._root) if is_final else name.partial(self._root)
            try:
                file = SegmentFile(path, growing=not is_final)
                return OpenSegment(file, self.metadata, is_sealed=is_final, archive=self._archive)
            except FileNotFoundError:
                continue
        raise FrameNotRecorded(
            f"{name.sealed(self._root)} does not exist: it was removed, probably by retention; refresh() "
            "the recording",
            path=name.sealed(self._root),
        )

    def _open_remote(self, remote: RemoteRecording, name: layout.SegmentName) -> OpenSegment:
        try:
            return OpenSegment(remote.open_segment(name), self.metadata, is_sealed=True)
        except FileNotFoundError:
            raise FrameNotRecorded(
                f"{remote.uri / name.relative()} does not exist: it was removed from the store, or is not "
                "uploaded yet; `tensorpool recording push` uploads it",
                path=remote.uri / name.relative(),
            ) from None

    def clear(self) -> None:
        """Closes all segments. Views of them stay valid."""
        self._segments.clear()
        if self._remote is not None:
            self._remote.close()
