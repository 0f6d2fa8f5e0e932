"""Payloads by reference: from mapped files, or from an object store by ranges.

Used in an executor's Python process. The segments used last stay open, because neighbouring rows are in the
same segment.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from ...errors import FrameNotRecorded
from ...recording.layout import PARTIAL, SEALED
from ...recording.mmap_cache import map_file

_MAX_SEGMENTS: Final = 64
# Payloads this close together are fetched in one request: a request costs more than its bytes.
_READ_AHEAD_BYTES: Final = 8 << 20


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
    """An object in a store, read by ranges with a few megabytes of read-ahead."""

    def __init__(self, store: Any, path: str) -> None:
        self._store = store
        self._path = path
        self._start = 0
        self._data = memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
        """A range of the object."""
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._data):
            self._data = memoryview(self._fetch(offset, max(length, _READ_AHEAD_BYTES)))
            self._start, begin = offset, 0
        return self._data[begin : begin + length]

    def _fetch(self, offset: int, length: int) -> bytes:
        if hasattr(self._store, "cat_file"):  # fsspec
            end = min(offset + length, int(self._store.size(self._path)))
            return bytes(self._store.cat_file(self._path, start=offset, end=end))
        with self._store.open_input_file(self._path) as file:  # pyarrow
            return bytes(file.read_at(min(length, max(file.size() - offset, 0)), offset))


class Segments:
    """Reads payloads of segments, and keeps the segments used last open.

    `root` replaces the recording's directory: another mount, or a URI as in `s3://bucket/recording`.
    `filesystem` is one of pyarrow or fsspec; without it the URI determines it.
    """

    def __init__(self, root: str | None = None, filesystem: Any = None) -> None:
        self._root = root
        self._filesystem = filesystem
        self._open: OrderedDict[str, PayloadSource] = OrderedDict()

    def read(self, segment: str, offset: int, length: int) -> memoryview:
        """A range of a segment."""
        opened = self._open.get(segment)
        if opened is None:
            opened = self._open[segment] = self._open_segment(segment)
            if len(self._open) > _MAX_SEGMENTS:
                self._open.popitem(last=False)
        return opened.read(offset, length)

    def _open_segment(self, segment: str) -> PayloadSource:
        path = segment
        if self._root is not None:
            # stream=…/epoch=…/<first-seq>.arrows is the same at every location of the recording.
            path = "/".join([self._root.rstrip("/"), *segment.split("/")[-3:]])
        if self._filesystem is not None:
            return RangedSegment(self._filesystem, path)
        if "://" not in path:
            return MappedSegment(Path(path))
        store, inside = filesystem_of(path)
        return MappedSegment(Path(inside)) if store is None else RangedSegment(store, inside)


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The filesystem of a URI and the path in it; None for local files."""
    if uri.startswith("file://"):
        return None, uri.removeprefix("file://")
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        store, path = FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, NotImplementedError, OSError):
        # Unknown to pyarrow: fsspec supports more filesystems, if it is installed.
        try:
            import fsspec
        except ImportError:
            raise ValueError(
                f"{uri}: pyarrow does not support this filesystem; pip install fsspec and its driver"
            ) from None
        store, path = fsspec.core.url_to_fs(uri)
    return store, path
