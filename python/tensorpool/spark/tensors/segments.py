"""Payload bytes by reference: mapped where the segment is a file, fetched by range where it is not.

Lives in an executor's Python process. What was opened last is kept: neighbouring rows lie in one segment.
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

_KEPT: Final = 64
# Payloads that lie so close together are fetched in one request: the way there costs more than the bytes.
_READ_AHEAD_BYTES: Final = 8 << 20


class Bytes(Protocol):
    """A segment that is open for reading."""

    def read(self, offset: int, length: int) -> memoryview: ...


class MappedSegment:
    """A file in memory, as far as it was there when it was opened, and anew when more is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
        if offset + length > len(self._data):
            self._map()
        return self._data[offset : offset + length]

    def _map(self) -> None:
        self._data = memoryview(mapping_of(self._path))


def mapping_of(path: Path) -> mmap.mmap:
    """A segment's file, under the name it has now."""
    # Sealed between the two looks, maybe, but never the other way round.
    for one in (path.with_name(path.name.removesuffix(SEALED) + PARTIAL), path):
        try:
            fd = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            return map_file(fd, one)
        finally:
            os.close(fd)
    raise FrameNotRecorded(
        f"{path} is gone: retention removed it, or this host does not see it; say where it is with root=…",
        path=path,
    )


_shared: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()


def read_shared(segment: str, offset: int, length: int) -> memoryview:
    """Bytes of a file of this host. Its mapping is shared by all views of it, and goes with the last one."""
    found = _shared.get(segment)
    if found is None or offset + length > len(found):
        found = _shared[segment] = mapping_of(Path(segment))
    return memoryview(found)[offset : offset + length]


class RangedSegment:
    """An object of a store, read by ranges, a few megabytes ahead."""

    def __init__(self, store: Any, path: str) -> None:
        self._store = store
        self._path = path
        self._start = 0
        self._data = memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
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
    """Opens segments where the executors find them.

    `root` replaces the recording's directory: another mount, or a URI as in `s3://bucket/recording`.
    `filesystem` is one of pyarrow's or fsspec's; without it the URI says which.
    """

    def __init__(self, root: str | None = None, filesystem: Any = None) -> None:
        self._root = root
        self._filesystem = filesystem
        self._kept: OrderedDict[str, Bytes] = OrderedDict()

    def read(self, segment: str, offset: int, length: int) -> memoryview:
        found = self._kept.get(segment)
        if found is None:
            found = self._kept[segment] = self._open(segment)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found.read(offset, length)

    def _open(self, segment: str) -> Bytes:
        path = segment
        if self._root is not None:
            # stream=…/epoch=…/<first-seq>.arrows is the same wherever the recording lies.
            path = "/".join([self._root.rstrip("/"), *segment.split("/")[-3:]])
        if self._filesystem is not None:
            return RangedSegment(self._filesystem, path)
        if "://" not in path:
            return MappedSegment(Path(path))
        store, inside = filesystem_of(path)
        return MappedSegment(Path(inside)) if store is None else RangedSegment(store, inside)


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The filesystem of a URI and the path in it; None for files of this host."""
    if uri.startswith("file://"):
        return None, uri.removeprefix("file://")
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        store, path = FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, NotImplementedError, OSError):
        # Not one of Arrow's: fsspec knows more kinds, if it is there.
        try:
            import fsspec
        except ImportError:
            raise ValueError(
                f"{uri}: pyarrow knows no such filesystem; pip install fsspec and its driver"
            ) from None
        store, path = fsspec.core.url_to_fs(uri)
    return store, path
