"""Tensors of collected rows and of Arrow batches, from references or from inline payloads.

Payloads by reference are read from mapped files, or from an object store by ranges. Used in an executor's
Python process. The segments used last stay open, because neighbouring rows are in the same segment.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ... import _native
from ...errors import CorruptRecording, FrameNotRecorded
from ...recording.layout import PARTIAL, SEALED
from ...recording.segment_file import map_file
from ...recording.storage import (
    CONNECTIONS,
    PART_BYTES,
    ArrowStore,
    FsspecStore,
    RangeReader,
    StorageUri,
    is_uri,
    local_path,
    open_object_store,
    request,
    resolve_reference,
)
from ...recording.tensors import as_array

__all__ = ["as_array", "row_label", "to_numpy", "verify_payload"]

_MAX_SEGMENTS: Final = 64
# A read behind the last one takes as much again ahead, up to this: neighbouring rows are read in order.
_MIN_READ_BYTES: Final = 1 << 20
_MAX_READ_BYTES: Final = 32 << 20


class PayloadSource(Protocol):
    """A segment that is open for reading."""

    def read(self, offset: int, length: int) -> memoryview:
        """A range of its bytes."""
        ...


class MappedSegment:
    """A mapped file. It is mapped again when a range lies behind its former end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
        """A view of a range."""
        if offset + length > len(self._data):
            self._data = memoryview(map_segment(self._path))
        return self._data[offset : offset + length]


def map_segment(path: Path) -> mmap.mmap:
    """A mapping of a segment's file, under its partial or its final name."""
    # The partial name first: a segment may be sealed between the two attempts, but never unsealed.
    for candidate in (path.with_name(path.name.removesuffix(SEALED) + PARTIAL), path):
        try:
            fd = os.open(candidate, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            return map_file(fd, candidate)
        finally:
            os.close(fd)
    raise FrameNotRecorded(
        f"{path} does not exist: retention removed it, or this host has no access to it; give its location "
        "with root=…",
        path=path,
    )


_shared: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()


def read_shared(segment: str, offset: int, length: int) -> memoryview:
    """A view of a range of a local file. All views share one mapping, which is released with the last."""
    mapping = _shared.get(segment)
    if mapping is None or offset + length > len(mapping):
        mapping = _shared[segment] = map_segment(Path(segment))
    return memoryview(mapping)[offset : offset + length]


class RangedSegment:
    """A segment in a store, read by ranges: in order with read-ahead, several requests at a time."""

    def __init__(self, reader: RangeReader, uri: StorageUri, pool: ThreadPoolExecutor) -> None:
        self._reader, self._uri, self._pool = reader, uri, pool
        self._start = 0
        self._data = memoryview(b"")
        self._ahead = _MIN_READ_BYTES

    def read(self, offset: int, length: int) -> memoryview:
        """A range of the object."""
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._data):
            is_next = 0 <= begin <= len(self._data) and len(self._data) > 0
            self._ahead = min(2 * self._ahead, _MAX_READ_BYTES) if is_next else _MIN_READ_BYTES
            self._data = self._fetch(offset, max(length, self._ahead))
            self._start, begin = offset, 0
        return self._data[begin : begin + length]

    def _fetch(self, offset: int, length: int) -> memoryview:
        end = min(offset + length, self._reader.size_bytes)
        parts = (
            list(self._pool.map(self._request, *zip(*_parts(offset, end), strict=True)))
            if end > offset
            else []
        )
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def _request(self, start: int, length: int) -> bytes:
        return request(self._uri, lambda: self._reader.read(start, length))


def _parts(start: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(PART_BYTES, end - at)) for at in range(start, end, PART_BYTES)]


class Segments:
    """Reads payloads of segments, and keeps the segments used last open.

    `root` replaces the recording's directory: another mount, or a URI as in `s3://bucket/recording`.
    `filesystem` is one of pyarrow or fsspec; without it the URI determines it.
    """

    def __init__(self, root: str | None = None, filesystem: Any = None) -> None:
        self._root = root
        self._filesystem = filesystem
        self._open: OrderedDict[str, PayloadSource] = OrderedDict()
        # Its threads start with the first request, and end with this object.
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="payload-reader")

    def read(self, segment: str, offset: int, length: int) -> memoryview:
        """A range of a segment."""
        opened = self._open.get(segment)
        if opened is None:
            opened = self._open[segment] = self._open_segment(segment)
            if len(self._open) > _MAX_SEGMENTS:
                self._open.popitem(last=False)
        return opened.read(offset, length)

    def _open_segment(self, segment: str) -> PayloadSource:
        place = self._find(segment)
        if isinstance(place, Path) and self._filesystem is None:
            return MappedSegment(place)
        uri = place if isinstance(place, StorageUri) else StorageUri(str(place))
        try:
            return RangedSegment(request(uri, lambda: self._open_reader(uri)), uri, self._pool)
        except FileNotFoundError:
            raise FrameNotRecorded(
                f"{uri} does not exist: it was removed from the store, or is not uploaded yet; `tensorpool "
                "recording push` uploads it",
                path=uri,
            ) from None

    def _find(self, segment: str) -> Path | StorageUri:
        if self._root is None:
            return resolve_reference(segment)
        # stream=…/epoch=…/<first-seq>.arrows is the same at every location of the recording.
        below = "/".join(segment.partition("#")[0].partition("?")[0].split("/")[-3:])
        if not is_uri(self._root):
            return Path(self._root) / below
        local = local_path(self._root)
        return local / below if local is not None else StorageUri.parse(self._root) / below

    def _open_reader(self, uri: StorageUri) -> RangeReader:
        if self._filesystem is None:
            store, path = open_object_store(uri)
        else:
            is_fsspec = hasattr(self._filesystem, "cat_file")
            store = FsspecStore(self._filesystem) if is_fsspec else ArrowStore(self._filesystem)
            path = uri.base
        return store.open_reader(path)


def verify_payload(data: memoryview, crc32c: int, label: object, segment: str) -> None:
    """Raises CorruptRecording, with the row's label, if a payload does not match its checksum."""
    if _native.crc32c(data) != crc32c:
        raise CorruptRecording(
            f"{label}: the payload in {segment} does not match its checksum; `tensorpool recording verify` "
            "lists all damage",
            path=segment,
        )


def row_label(row: Any) -> str:
    """Text that identifies a row in an error."""
    return f"stream {row['stream_id']}, epoch {row['epoch']}, frame {row['seq']}"


def to_numpy(
    row: Any, *, verify: bool = True, root: str | None = None, filesystem: Any = None
) -> npt.NDArray[Any]:
    """The tensor of one collected row: a read-only view of its bytes, or of the mapped segment."""
    values = row.asDict() if hasattr(row, "asDict") else dict(row)
    label = row_label(values)
    if values.get("payload") is not None:
        data = memoryview(values["payload"])
    elif (segment := values.get("segment")) is not None:
        offset, length = values["payload_offset"], values["payload_bytes"]
        if root is None and filesystem is None and "://" not in segment:
            data = read_shared(segment, offset, length)
        else:
            data = Segments(root, filesystem).read(segment, offset, length)
        if verify:
            verify_payload(data, values["crc32c"], label, segment)
    else:
        raise ValueError(f"{label}: the row has no payload; read with option payload=ref or payload=inline")
    return as_array(data, values["dtype"], values["shape"], values.get("strides"), label)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """The row of a frame, as a function with `with_row` gets it."""

    stream_id: int
    epoch: int
    seq: int
    dtype: str
    shape: tuple[int, ...]
    kept: Mapping[str, Any]
    """The columns named in `keep`. Their types are those of the user's table."""

    def __str__(self) -> str:
        return f"stream {self.stream_id}, epoch {self.epoch}, frame {self.seq}"


@dataclass(slots=True)
class TensorView:
    """The tensor of a row, with the row's number in its batch."""

    batch: pa.RecordBatch
    number: int
    row: TensorRow
    data: memoryview
    array: npt.NDArray[Any]
    segment: str | None
    offset: int


def views(
    rows: pa.RecordBatch, segments: Segments, keep: Sequence[str], *, verify: bool, skip_damage: bool
) -> Iterator[TensorView]:
    """The frames of a batch, without gap rows. A damaged frame is an error, or left out."""
    values = {name: rows.column(name).to_pylist() for name in rows.schema.names if name != "payload"}
    by_reference = "segment" in values
    payloads = None if by_reference else rows.column("payload")
    sizes = values["payload_bytes"]
    for number in range(len(rows)):
        if sizes[number] is None:
            continue
        shape = tuple(values["shape"][number])
        row = TensorRow(
            values["stream_id"][number],
            values["epoch"][number],
            values["seq"][number],
            values["dtype"][number],
            shape,
            {name: values[name][number] for name in keep},
        )
        segment, offset = None, 0
        try:
            if payloads is None:
                segment, offset = values["segment"][number], values["payload_offset"][number]
                data = segments.read(segment, offset, sizes[number])
                if verify:
                    verify_payload(data, values["crc32c"][number], row, segment)
            else:
                data = memoryview(payloads[number].as_buffer())
        except (CorruptRecording, FrameNotRecorded):
            if skip_damage:
                continue
            raise
        array = as_array(data, row.dtype, shape, values["strides"][number], row)
        yield TensorView(rows, number, row, data, array, segment, offset)


def stack(frames: Sequence[TensorView], *, is_one_segment: bool) -> npt.NDArray[Any]:
    """Tensors of one type and shape as one array: a view if they are evenly spaced in one mapping."""
    first = frames[0]
    if len(frames) == 1:
        return first.array[np.newaxis]
    base = first.data.obj
    steps = {b.offset - a.offset for a, b in itertools.pairwise(frames)}
    is_even = (
        is_one_segment and len(steps) == 1 and min(steps) > 0 and all(f.data.obj is base for f in frames)
    )
    if not is_even:
        return np.stack([frame.array for frame in frames])
    whole = memoryview(base)
    # The mapping may begin at another position than the file.
    start = np.frombuffer(first.data, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    stacked: npt.NDArray[Any] = np.ndarray(
        (len(frames), *first.array.shape),
        first.array.dtype,
        whole,
        start,
        (steps.pop(), *first.array.strides),
    )
    stacked.flags.writeable = False
    return stacked
