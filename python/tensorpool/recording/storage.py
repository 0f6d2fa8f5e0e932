"""Recordings in object stores and other remote filesystems: URIs, requests, and segments read by ranges.

A recording is named by a path or by a URI. Local files are mapped. Of a remote recording the small files
(marker, manifest, tables) are copied into a private directory when they are needed, so that all other code
reads them as files. A segment is reserved as address space: its index fills in the columns of all batches
with one request, and the payloads of a batch are fetched when a frame of it is used, with the batches behind
it ahead of time. Keys are not listed: the manifest names the segments, `_archive.json` the tables.

Credentials come from the environment or the platform's chain (instance roles, profiles), never from a URI.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import shutil
import tempfile
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from .. import _native
from ..durable import replace_file
from ..errors import ConfigError, CorruptRecording, NotARecording, RecordingError, StorageFailed
from . import arrow_format, layout, manifest, segment_index
from .arrow_format import TABLES
from .manifest import HEADER_BYTES, LogCount
from .segment_file import BatchLocation, SegmentFile
from .segment_index import InvalidIndex, SegmentIndex

ARCHIVE_FILE: Final = "_archive.json"
"""The object that lists the tables of an archived recording."""
CONNECTIONS: Final = 8
"""Requests of one recording at the same time."""
PART_BYTES: Final = 4 << 20
"""Bytes of one request: a larger range is divided, smaller ones are joined."""
READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes that are requested before they are used, in a read in order."""
_HUGE_FROM_BYTES: Final = 4 << 20
"""Adjacent bytes from which on memory for them is asked for in huge pages."""
_ATTEMPTS: Final = 6
_FIRST_PAUSE_S: Final = 0.1
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*)://")
# Of a text or of a path, which has one slash behind the colon.
_URI_OF_A_PATH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)
_SECRET_NAMES: Final = re.compile(
    r"secret|access_?key|password|token|credential|sig(nature)?$|sas", re.IGNORECASE
)
_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_CLOUD_SETTINGS: Final = ("AWS_", "AZURE_", "GOOGLE_", "GCS_", "HADOOP_")
_MIRROR_PREFIX: Final = "tensorpool-recording-"
# What the client of S3 says of bytes that the store has a checksum of.
_WRONG_CHECKSUM: Final = "checksums mismatch"
T = TypeVar("T")


# --- names


def is_uri(root: str | os.PathLike[str]) -> bool:
    """Whether a text names a recording by a URI, not by a path."""
    return isinstance(root, str) and _SCHEME.match(root) is not None


def local_path(root: str | os.PathLike[str]) -> Path | None:
    """The path of a local recording, given by a path or as a `file:` URI; None for any other URI.

    Spark's catalog writes `file:/path`, with one slash.
    """
    text = os.fspath(root)
    if not isinstance(root, str) or not (is_uri(text) or text.lower().startswith("file:/")):
        return Path(root)
    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{text} is not the URI of a local path: use file:///path")
    return Path(unquote(parts.path))


def local_directory(text: str | os.PathLike[str]) -> Path:
    """The directory that a path or a `file:` URI names. Raises ConfigError for another URI.

    A path would become a directory `s3:` on the local disk, and the loss would show much later.
    """
    given = os.fspath(text)
    match = _URI_OF_A_PATH.match(given)
    if match is None:
        return Path(given)
    if match[1].lower() == "file":
        parts = urlsplit(given)
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{given} names the host {parts.netloc}; use a path on this host")
        return Path(unquote(parts.path))
    raise ConfigError(
        f"{given} is on an object store, and a directory on this host is needed: use a path as in "
        "/data/tables, or file:///data/tables"
    )


@dataclass(frozen=True, slots=True)
class StorageUri(os.PathLike[str]):
    """The URI of a remote directory or file, with the options behind its `?`."""

    base: str
    options: str = ""

    @classmethod
    def parse(cls, text: str) -> StorageUri:
        """Raises ConfigError for a URI with credentials: rows, logs and tables would carry them on."""
        parts = urlsplit(text)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        if parts.password or any(_SECRET_NAMES.search(name) for name in names):
            shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
            raise ConfigError(
                f"the URI of {shown} contains credentials: leave them out, and set them in the environment "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://), or use the platform's own chain"
            )
        scheme = _ALIASES.get(parts.scheme.lower(), parts.scheme.lower())
        return cls(f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.query)

    def __truediv__(self, name: str) -> StorageUri:
        """A file or directory below this one; options stay behind the path."""
        return StorageUri(f"{self.base}/{name}", self.options)

    def __str__(self) -> str:
        return f"{self.base}?{self.options}" if self.options else self.base

    def __fspath__(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.base.rpartition("/")[2]


SegmentPath = Path | StorageUri
"""Where a segment is."""


# --- requests


class Store(Protocol):
    """A remote filesystem, of pyarrow or fsspec. Paths are as in its own URIs, without the scheme."""

    def open_reader(self, path: str) -> RangeReader:
        """A file, opened for reading by ranges. FileNotFoundError if there is none."""
        ...

    def write(self, path: str, parts: Iterable[memoryview | bytes]) -> None:
        """Writes a whole file; it appears at its end, or not at all where the store can do that."""
        ...

    def names(self, path: str) -> list[tuple[str, bool]]:
        """(name, whether it is a directory) of the entries of a directory."""
        ...


class RangeReader(Protocol):
    """A remote file that is open for reading. Any thread may read."""

    size_bytes: int

    def read(self, start: int, length: int) -> bytes:
        """A range of the file; shorter at its end."""
        ...

    def read_into(self, start: int, target: memoryview) -> int:
        """Reads a range into memory, without a copy where the filesystem can; returns its bytes."""
        ...


class _ArrowReader:
    """Arrow reads into given memory only at the position of a handle: each thread has one of its own."""

    def __init__(self, open_file: Callable[[], Any]) -> None:
        self._open_file = open_file
        file = open_file()
        self.size_bytes = int(file.size())
        self._idle = [file]

    def read(self, start: int, length: int) -> bytes:
        content = bytearray(max(min(length, self.size_bytes - start), 0))
        return bytes(memoryview(content)[: self.read_into(start, memoryview(content))])

    def read_into(self, start: int, target: memoryview) -> int:
        size = min(len(target), self.size_bytes - start)
        if size <= 0:
            # Arrow refuses to read behind the end, even nothing.
            return 0
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open_file()
        file.seek(start)
        count = int(file.readinto(target[:size]))
        # After an error it is not used again.
        self._idle.append(file)
        return count


class ArrowStore:
    """A filesystem of pyarrow: S3, Google Cloud Storage, Azure, HDFS."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def open_reader(self, path: str) -> RangeReader:
        """A file, opened for reading by ranges."""
        return _ArrowReader(partial(self._filesystem.open_input_file, path))

    def write(self, path: str, parts: Iterable[memoryview | bytes]) -> None:
        """Writes a whole object."""
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            for part in parts:
                stream.write(part)

    def names(self, path: str) -> list[tuple[str, bool]]:
        """The entries of a prefix."""
        from pyarrow.fs import FileSelector, FileType

        entries = self._filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted((entry.base_name, entry.type == FileType.Directory) for entry in entries)


class _FsspecReader:
    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self.size_bytes = int(filesystem.size(path))

    def read(self, start: int, length: int) -> bytes:
        end = min(start + length, self.size_bytes)
        return bytes(self._filesystem.cat_file(self._path, start=start, end=end)) if end > start else b""

    def read_into(self, start: int, target: memoryview) -> int:
        content = self.read(start, len(target))
        target[: len(content)] = content
        return len(content)


class FsspecStore:
    """A filesystem of fsspec: whatever else has a driver."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def open_reader(self, path: str) -> RangeReader:
        """A file, opened for reading by ranges."""
        return _FsspecReader(self._filesystem, path)

    def write(self, path: str, parts: Iterable[memoryview | bytes]) -> None:
        """Writes a whole file."""
        self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._filesystem.open(path, "wb") as stream:
            for part in parts:
                stream.write(part)

    def names(self, path: str) -> list[tuple[str, bool]]:
        """The entries of a directory."""
        try:
            entries = self._filesystem.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(
            (str(entry["name"]).rstrip("/").rpartition("/")[2], entry["type"] == "directory")
            for entry in entries
        )


def open_object_store(uri: StorageUri) -> tuple[Store, str]:
    """The store of a URI and the path in it. Raises ConfigError for a scheme that nothing here knows."""
    parts = urlsplit(uri.base)
    # One client a process: it has the connections. A forked child cannot use those of its parent, and other
    # settings in the environment are another client.
    settings = hash(tuple(item for item in sorted(os.environ.items()) if item[0].startswith(_CLOUD_SETTINGS)))
    store, prefix = _open_object_store(
        f"{parts.scheme}://{parts.netloc}", uri.options, (os.getpid(), settings)
    )
    return store, f"{prefix}{unquote(parts.path)}" if prefix else unquote(parts.path)


@lru_cache(16)
def _open_object_store(base: str, options: str, _client: tuple[int, int]) -> tuple[Store, str]:
    if base.startswith("s3://"):
        # A small object by one request instead of three.
        options = f"{options}&allow_delayed_open=true" if options else "allow_delayed_open=true"
    text = f"{base}/?{options}" if options else f"{base}/"
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(text)
        return ArrowStore(filesystem), path.rstrip("/")
    except (pa.ArrowInvalid, NotImplementedError, OSError) as error:
        reason = str(error).partition("\n")[0]
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(base + "/")
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{base}: neither pyarrow ({reason}) nor fsspec ({error}) can open this URI; install fsspec and "
            "the driver of the filesystem, or use s3://, gs://, abfs://, hdfs:// or file:///path"
        ) from None
    return FsspecStore(filesystem), str(path).rstrip("/")


def request(uri: StorageUri, work: Callable[[], T], *, attempts: int = _ATTEMPTS) -> T:
    """The result of a request, which is repeated after an error of the network. FileNotFoundError is raised
    at once; StorageFailed after the last attempt.
    """
    pause = _FIRST_PAUSE_S
    for attempt in range(1, attempts + 1):
        try:
            return work()
        except (FileNotFoundError, ConfigError):
            raise
        except (OSError, pa.ArrowException) as error:
            if _WRONG_CHECKSUM in str(error) and attempt > 1:
                raise CorruptRecording(
                    f"{uri} is damaged: the store's own checksum does not match; `tensorpool recording push` "
                    "uploads it again",
                    path=uri,
                ) from None
            if attempt == attempts or isinstance(error, PermissionError):
                raise StorageFailed(
                    f"{uri}: {_first_line(error)}; check the network, and the credentials in the environment",
                    path=uri,
                ) from None
        time.sleep(pause)
        pause *= 2
    raise AssertionError("the last attempt returns or raises")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__


def read_object(uri: StorageUri, *, attempts: int = _ATTEMPTS) -> bytes:
    """All bytes of a file. FileNotFoundError if there is none."""

    def read() -> bytes:
        store, path = open_object_store(uri)
        reader = store.open_reader(path)
        return reader.read(0, reader.size_bytes)

    return request(uri, read, attempts=attempts)


def list_names(uri: StorageUri) -> list[tuple[str, bool]]:
    """(name, whether it is a directory) of the entries of a remote directory."""

    def read() -> list[tuple[str, bool]]:
        store, path = open_object_store(uri)
        return store.names(path)

    return request(uri, read)


# --- segments by ranges


class _Window:
    """The address space of a segment, with the bytes of some batches. Unfilled pages take no memory."""

    def __init__(self, size: int, filled: int = 0) -> None:
        """`filled`: how many bytes will be filled in, if they are known to be adjacent."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._mapping = mmap.mmap(-1, max(size, 1), flags=flags)
        if filled >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            # A page fault for every 4 KiB takes as long as the copy. A kernel without huge pages refuses.
            with contextlib.suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._mapping, np.uint8)
        self.data = memoryview(self._mapping)[:size].toreadonly()
        self.parts: list[Future[None]] = []

    def fill(self, start: int, content: bytes | memoryview) -> None:
        """Writes bytes at their position in the file."""
        # By numpy, which lets other threads run meanwhile.
        self._bytes[start : start + len(content)] = np.frombuffer(content, np.uint8)

    def space(self, start: int, length: int) -> memoryview:
        """The memory of a range of the file, to be filled."""
        return memoryview(self._mapping)[start : start + length]

    def wait(self) -> memoryview:
        """The address space, once all requested parts have arrived."""
        for part in self.parts:
            part.result()
        return self.data


class RemoteSegment(SegmentFile):
    """A sealed segment in a store. Columns are in memory from the start, payloads when they are used."""

    def __init__(self, recording: RemoteRecording, name: layout.SegmentName, *, whole: bool = False) -> None:
        """With `whole` every byte is read, and the index is not used."""
        self._recording = recording
        self._name = name
        self._whole = whole
        self._windows: dict[int, _Window] = {}
        """By number of the batch; small batches that are neighbours have one."""
        self._next = self._fetched = 0
        self._reader: RangeReader | None = None
        self._index: SegmentIndex | None = None
        super().__init__(recording.uri / name.relative())

    @cached_property
    def _starts(self) -> list[int]:
        return [batch.start for batch in self.scan_more().batches]

    def _open(self) -> None:
        self.identity = 0
        self._index = None if self._whole else self._read_index()
        index = self._index
        if index is None or index.heads is None:
            reader = self._open_reader()
            window = _Window(reader.size_bytes)
            self._request(window, 0, reader.size_bytes)
            window.wait()
        else:
            window = _Window(index.size_bytes)
            window.fill(0, index.schema)
            for record, head in zip(index.batches, index.heads, strict=True):
                window.fill(int(record["start"]), head)
            end = int(index.batches["end"][-1]) if len(index.batches) else len(index.schema)
            if index.size_bytes - end == len(arrow_format.END_OF_STREAM):
                window.fill(end, arrow_format.END_OF_STREAM)
        self.data = window.data
        self.bytes = np.frombuffer(self.data, np.uint8)

    @property
    def has_payloads(self) -> bool:
        """Whether the payloads are in memory already."""
        return self._index is None or self._index.heads is None

    def _read_index(self) -> SegmentIndex | None:
        try:
            return segment_index.decode(
                read_object(self._recording.uri / self._name.relative(layout.INDEX)), self._name
            )
        except (FileNotFoundError, InvalidIndex, CorruptRecording):
            # Every byte of it is in the segment too.
            return None

    def _open_reader(self) -> RangeReader:
        if self._reader is None:
            uri = self._recording.uri / self._name.relative()

            def opened() -> RangeReader:
                store, path = open_object_store(uri)
                return store.open_reader(path)

            self._reader = request(uri, opened)
        return self._reader

    def reference(self) -> str:
        """The text by which rows refer to the segment."""
        self._recording.require_list()
        return reference(self.path, self._recording.list.source)

    def refresh(self) -> None:
        """Does nothing: a sealed segment does not change."""

    def load_payloads(self, location: BatchLocation, data: memoryview) -> memoryview:
        """The segment with the payloads of a batch. In a read in order, requests those behind it too."""
        if self.has_payloads:
            return data
        number = bisect_left(self._starts, location.start)
        is_in_order, self._next = number == self._next, number + 1
        window = self._windows.get(number) or self._fetch(number, PART_BYTES if is_in_order else 0)
        if is_in_order:
            self.read_ahead(location.end, READ_AHEAD_BYTES)
        for past in [at for at in self._windows if at < number]:
            # The rows that use it keep it alive.
            del self._windows[past]
        return window.wait()

    def read_ahead(self, position: int, size_bytes: int) -> None:
        """Requests the payloads of so many bytes from a position on, those of the next segment among them."""
        batches = self.scan.batches
        end = min(position + size_bytes, len(self.data))
        while self._fetched < len(batches) and batches[self._fetched].start < end:
            if self._fetched in self._windows:
                self._fetched += 1
            else:
                self._fetch(self._fetched, PART_BYTES)
        if position + size_bytes > end and self.following is not None:
            self._recording.prepare(self.following)

    def _fetch(self, number: int, size_bytes: int) -> _Window:
        """Requests a batch, and those behind it as long as they are of no more bytes together."""
        batches, first = self.scan.batches, self.scan.batches[number]
        start, stop = segment_index.head_end(self, first), number + 1
        while stop < len(batches) and batches[stop].end - start <= size_bytes and stop not in self._windows:
            stop += 1
        end = batches[stop - 1].end
        window = _Window(len(self.data), end - start)
        window.fill(first.start, self.data[first.start : start])
        self._request(window, start, end)
        self._windows.update(dict.fromkeys(range(number, stop), window))
        self._fetched = stop
        return window

    def _request(self, window: _Window, start: int, end: int) -> None:
        reader, uri = self._open_reader(), self._recording.uri / self._name.relative()

        def fetch(at: int, length: int) -> None:
            got = request(uri, lambda: reader.read_into(at, window.space(at, length)))
            if got != length:
                raise CorruptRecording(
                    f"{uri}, byte {at + got}: the file is shorter than it was; "
                    "`tensorpool recording push` uploads it again",
                    path=uri,
                    offset=at + got,
                )

        for at in range(start, end, PART_BYTES):
            window.parts.append(self._recording.submit(fetch, at, min(PART_BYTES, end - at)))


# --- recordings


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A file of tables in an archive, as `_archive.json` lists it."""

    path: str
    size_bytes: int
    crc32c: int


class OpenFrom(NamedTuple):
    """The first sequence of an epoch that is in an open segment: from there on the archive lacks frames."""

    stream_id: int
    epoch: int
    first_seq: int


@dataclass(frozen=True, slots=True)
class ArchiveList:
    """The content of `_archive.json`: the tables, and from which sequence on a writer had frames that are not
    in the archive yet.
    """

    tables: tuple[StoredTable, ...] = ()
    open_from: tuple[OpenFrom, ...] = ()
    source: str = ""
    """The directory from which it was pushed."""

    def encode(self) -> bytes:
        """The bytes of the file; the last key is the checksum of the others."""
        content: dict[str, object] = {
            "format": "tensorpool-archive",
            "version": 1,
            "source": self.source,
            "open": [list(map(str, part)) for part in self.open_from],
            "tables": [[table.path, table.size_bytes, table.crc32c] for table in self.tables],
        }
        return json.dumps(content | {"crc32c": _native.crc32c(json.dumps(content).encode())}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> ArchiveList:
        """Raises ValueError if it was changed."""
        content = json.loads(data)
        claimed = content.pop("crc32c")
        if claimed != _native.crc32c(json.dumps(content).encode()):
            raise ValueError("its checksum does not match")
        tables = tuple(StoredTable(str(path), int(size), int(crc)) for path, size, crc in content["tables"])
        for table in tables:
            if not _TABLE_PATH.fullmatch(table.path):
                raise ValueError(f"it lists {table.path!r}, which is not a file of tables")
        open_from = tuple(OpenFrom(*map(int, part)) for part in content["open"])
        return cls(tables, open_from, str(content["source"]))


_TABLE_PATH: Final = re.compile(
    rf"{layout.TABLES_DIR}/(?:(?:{'|'.join(TABLES)})/)?[0-9A-Za-z\-]+\.(?:arrows|copy|tables|versions)",
    re.ASCII,
)
"""Nothing that an untrusted list names may leave the directory of the copy."""


class RemoteRecording:
    """The files of a recording in a store, with copies of the small ones in a private directory."""

    def __init__(self, uri: StorageUri) -> None:
        self.uri = uri
        self.root = _make_mirror(self)
        """The directory of the copies. It looks like a recording without segments."""
        self.list = ArchiveList()
        self._tables: dict[str, StoredTable] = {}
        self._is_listed = False
        self._pool: ThreadPoolExecutor | None = None
        self._prepared: tuple[layout.SegmentName, Future[RemoteSegment]] | None = None
        self._header = b""
        self._has_log = True
        try:
            self._copy(layout.MARKER_FILE)
        except FileNotFoundError:
            raise NotARecording(
                f"{uri} contains no recording; `tensorpool recording push DIR {uri}` puts one there", path=uri
            ) from None
        self.refresh()

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a request in one of the recording's threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="recording-reader")
        return self._pool.submit(work, *arguments)

    def close(self) -> None:
        """Ends the threads. The recording can be used again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._prepared = None

    def __getstate__(self) -> object:
        raise TypeError("a remote recording cannot be pickled: open its URI again")

    def refresh(self) -> None:
        """Reads the manifest again if it has changed."""
        uri = self.uri / layout.MANIFEST_FILE

        def read() -> tuple[bytes, bytes] | None:
            store, path = open_object_store(uri)
            reader = store.open_reader(path)
            header = reader.read(0, HEADER_BYTES)
            if header == self._header:
                return None
            return header, header + reader.read(HEADER_BYTES, reader.size_bytes)

        try:
            content = request(uri, read)
        except FileNotFoundError:
            raise NotARecording(
                f"{self.uri} has no manifest: it is not a recording, or its first push has not ended; "
                "`tensorpool recording push` continues it",
                path=self.uri,
            ) from None
        self._is_listed = False
        if content is not None:
            header, manifest = content
            replace_file(self.root / layout.MANIFEST_FILE, manifest, sync=False)
            self._header = header
        if self._has_log:
            self._copy_log()

    def _copy_log(self) -> None:
        """Copies the log that a recording has which another program copied; an archive has none."""
        generation = manifest.decode_generation(self._header)
        if generation < 0:
            # Truncated, which the reader of the copied manifest reports.
            return
        try:
            self._copy(layout.MANIFEST_COUNT)
        except FileNotFoundError:
            self._has_log = False
            count = manifest.encode_count(LogCount(generation, 0))
            replace_file(self.root / layout.MANIFEST_COUNT, count, sync=False)
            return
        with contextlib.suppress(FileNotFoundError):
            self._copy(manifest.log_name(generation))

    def _copy(self, name: str) -> None:
        content = read_object(self.uri / name)
        path = self.root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, content, sync=False)

    def require_tables(self, *names: str) -> None:
        """Copies the files of some tables that are new or have grown; without names, of all."""
        self.require_list()
        for table in self.list.tables:
            parts = table.path.split("/")
            if names and len(parts) == 3 and parts[1] not in names:
                continue
            if self._tables.get(table.path) != table:
                self._copy_table(table)
                self._tables[table.path] = table

    def require_list(self) -> None:
        """Reads the list of tables, if it was not read since the last `refresh`."""
        if self._is_listed:
            return
        uri = self.uri / ARCHIVE_FILE
        try:
            self.list = ArchiveList.decode(read_object(uri))
        except FileNotFoundError:
            self.list = ArchiveList(tuple(self._find_tables()))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecording(
                f"{uri} is damaged ({error}); `tensorpool recording push` writes it again", path=uri
            ) from None
        self._is_listed = True

    def _find_tables(self) -> Iterator[StoredTable]:
        """The tables of a recording that another program copied: only here keys are listed."""
        for directory in ("", *(f"/{table}" for table in TABLES)):
            prefix = f"{layout.TABLES_DIR}{directory}"
            for name, is_directory in list_names(self.uri / prefix):
                if not is_directory and _TABLE_PATH.fullmatch(f"{prefix}/{name}"):
                    yield StoredTable(f"{prefix}/{name}", -1, 0)

    def _copy_table(self, table: StoredTable) -> None:
        uri = self.uri / table.path
        content = read_object(uri)
        if table.size_bytes >= 0:
            # A table only grows: a later push may have written more than this list knows.
            content = content[: table.size_bytes]
            if len(content) < table.size_bytes or _native.crc32c(content) != table.crc32c:
                raise CorruptRecording(
                    f"{uri} was changed: its checksum does not match; `tensorpool recording push` uploads "
                    "it again",
                    path=uri,
                )
        path = self.root / table.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, content, sync=False)

    def open_segment(self, name: layout.SegmentName, *, whole: bool = False) -> RemoteSegment:
        """A sealed segment. FileNotFoundError if the store does not have it."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared_name, segment = prepared
            if prepared_name == name and not whole:
                return segment.result()
        return RemoteSegment(self, name, whole=whole)

    def prepare(self, name: layout.SegmentName) -> None:
        """Opens a segment in another thread and requests its first payloads: it will be read next."""
        if self._prepared is None or self._prepared[0] != name:
            self._prepared = name, self.submit(self._open_ahead, name)

    def _open_ahead(self, name: layout.SegmentName) -> RemoteSegment:
        segment = RemoteSegment(self, name)
        if not segment.has_payloads:
            segment.scan_more()
            segment.read_ahead(0, READ_AHEAD_BYTES)
        return segment


def open_remote(root: str | os.PathLike[str]) -> RemoteRecording | None:
    """The remote recording of a URI; None for a local one."""
    if local_path(root) is not None:
        return None
    return RemoteRecording(StorageUri.parse(str(root)))


def archive_of(root: Path) -> StorageUri | None:
    """The archive of a local recording; None if it has none."""
    try:
        content = json.loads((root / ARCHIVE_FILE).read_bytes())
        return StorageUri.parse(content["uri"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NotARecording(
            f"{root / ARCHIVE_FILE} is damaged ({error}); remove it, and push the recording again", path=root
        ) from None


def reference(path: Path | os.PathLike[str], source: str) -> str:
    """The text by which rows refer to a segment: its URI, and behind `#` a directory that has it too."""
    return f"{os.fspath(path)}#{quote(source)}" if source else os.fspath(path)


def resolve_reference(text: str) -> Path | StorageUri:
    """Where this host finds a segment: the local file, if this host has the recording, else the store."""
    if not is_uri(text):
        return Path(text)
    uri, _, source = text.partition("#")
    local = local_path(uri)
    if local is not None:
        return local
    parsed = StorageUri.parse(uri)
    if source:
        root, parts = Path(unquote(source)), parsed.base.split("/")
        archive = StorageUri("/".join(parts[:-3]), parsed.options)
        path = root.joinpath(*parts[-3:])
        # Another recording may be at this path here: it is used only if it says that this is its archive.
        if _is_archived_at(root, archive) and (
            path.exists() or path.with_name(path.name.removesuffix(layout.SEALED) + layout.PARTIAL).exists()
        ):
            return path
    return parsed


@lru_cache(64)
def _is_archived_at(root: Path, archive: StorageUri) -> bool:
    try:
        return archive_of(root) == archive
    except (RecordingError, ConfigError, OSError):
        return False


def _make_mirror(owner: object) -> Path:
    """A private directory that is removed with its owner. Removes those that killed processes left."""
    base = Path(tempfile.gettempdir())
    for path in base.glob(f"{_MIRROR_PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_left_mirror(path)
    root = Path(tempfile.mkdtemp(prefix=_MIRROR_PREFIX))
    lock = (root / ".lock").open("wb")
    # Released by the kernel if the process is killed.
    fcntl.flock(lock, fcntl.LOCK_EX)
    weakref.finalize(owner, _remove_mirror, root, lock, os.getpid())
    return root


def _remove_left_mirror(path: Path) -> None:
    """Removes a mirror of this user if no process has it any more."""
    if path.lstat().st_uid != os.geteuid():
        return
    # A FIFO that lies here by accident or by malice must not hold up this process.
    lock = os.open(path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_mirror(root: Path, lock: IO[bytes], process: int) -> None:
    lock.close()
    # A forked child has a copy of the owner.
    if os.getpid() == process:
        shutil.rmtree(root, ignore_errors=True)
