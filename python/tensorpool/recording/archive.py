"""Copies of recordings in object stores: `push`, `pull` and `list_recordings`, and the recorder's archiver.

A push uploads sealed segments with their indexes, then the tables, then `_archive.json` which lists the
tables, and the manifest last: a reader sees a segment when everything about it is there. Every upload is read
back and compared with the local file before the manifest names it; retention removes a local segment only
after that. A push that was interrupted at any point is continued by the next one. The local directory
remembers its archive (`_archive.json`) and what is proven to be there (`_archive.manifest`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import _native
from ..durable import make_directories, replace_file, sync_directory, sync_file, write_errors
from ..errors import (
    ConfigError,
    CorruptRecording,
    LockHeld,
    NotARecording,
    RecordingError,
    StorageFailed,
)
from . import layout, manifest, segment_index
from .manifest import DamagedManifest, LogCount, Manifest, RecordKind, SegmentKey
from .manifest_store import load_index
from .rows import RowBlock
from .segment_file import SegmentFile
from .storage import (
    ARCHIVE_FILE,
    CONNECTIONS,
    PART_BYTES,
    ArchiveList,
    OpenFrom,
    RemoteRecording,
    StorageUri,
    StoredTable,
    archive_of,
    list_names,
    local_path,
    open_object_store,
    read_object,
    request,
)

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total."""
_LOG: Final = logging.getLogger(__name__)
_PROVEN_FILE: Final = "_archive.manifest"
_LOCK_FILE: Final = "_archive.lock"
_UPLOAD_ATTEMPTS: Final = 4
# A push of many segments publishes what it has, so that readers and retention need not wait for its end.
_CHECKPOINT_BYTES: Final = 1 << 30
_CHECKPOINT_S: Final = 30.0
_PERIOD_S: Final = 2.0
_MAX_PAUSE_S: Final = 60.0
_CLOSE_S: Final = 30.0
# An index may be behind the table that it describes, never ahead: indexes are read first.
_TABLE_ORDER: Final = (".tables", ".versions", ".copy", layout.SEALED)


class PushStopped(Exception):
    """A push was asked to end. The next one continues it."""


@dataclass(slots=True)
class PushResult:
    """What a push uploaded, and what was there already."""

    uri: str
    """The archive."""
    segments: int = 0
    """Segments that this push added to the archive."""
    uploaded_bytes: int = 0
    """Bytes that were uploaded."""
    resumed: int = 0
    """Segments that an earlier push had uploaded, and this one proved."""
    repeated: int = 0
    """Uploads that did not read back as they were written, and were repeated."""
    tables: int = 0
    """Tables that were uploaded."""
    archived: int = 0
    """Segments in the archive now."""


@dataclass(slots=True)
class PullResult:
    """What a pull copied."""

    path: Path
    """The directory of the copy."""
    segments: int = 0
    """Segments that were copied."""
    present: int = 0
    """Segments that were there already."""
    size_bytes: int = 0
    """Bytes that were copied."""


@dataclass(frozen=True, slots=True)
class ArchivedRecording:
    """A recording in a store, as `list_recordings` finds it."""

    uri: str
    """Where it is."""
    streams: tuple[int, ...]
    """Ids of its streams."""
    segments: int
    """How many segments it has."""
    rows: int
    """How many frames it has."""
    size_bytes: int
    """The size of its segments."""
    first_time_ns: int | None
    """When its first frame was received; None if it has none."""
    last_time_ns: int | None
    """When its last frame was received; None if it has none."""


# --- what a local recording knows of its archive


def set_archive(root: Path, uri: StorageUri) -> None:
    """Remembers the archive of a local recording: from now on retention keeps what is not proven there."""
    known = archive_of(root)
    if known == uri:
        return
    if known is not None:
        raise ConfigError(
            f"{root} is archived at {known}, not at {uri}; to begin a new archive, remove "
            f"{root / ARCHIVE_FILE} and {root / _PROVEN_FILE} first"
        )
    with write_errors(root / ARCHIVE_FILE):
        replace_file(root / ARCHIVE_FILE, json.dumps({"uri": str(uri)}).encode() + b"\n")


def proven_segments(root: Path) -> set[tuple[SegmentKey, int]]:
    """(key, size) of the segments that were read back from the archive as they are here."""
    try:
        proven = manifest.decode_snapshot((root / _PROVEN_FILE).read_bytes())
    except (FileNotFoundError, DamagedManifest):
        return set()
    return {(manifest.record_key(record), int(record["size_bytes"])) for record in proven.segments}


# --- push


def push(
    root: str | os.PathLike[str],
    uri: str | None = None,
    *,
    progress: Progress | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    attempts: int = 8,
) -> PushResult:
    """Uploads the sealed segments and the tables of a local recording that its archive does not have.

    `uri` is the archive; a recording that was pushed before knows it. `attempts` is how often a request is
    tried; then StorageFailed is raised, and nothing is lost: the next push continues.
    """
    path = local_path(root)
    if path is None:
        raise ConfigError(f"{root} is not a local directory: push copies a local recording to a store")
    layout.check_root(path)
    target = StorageUri.parse(uri) if uri is not None else archive_of(path)
    if target is None:
        raise ConfigError(f"{path} has no archive yet: name it, as in s3://bucket/{path.name}")
    if local_path(str(target)) is not None:
        raise ConfigError(
            f"{target} is a local directory: use the URI of a store, as in s3://bucket/{path.name}"
        )
    with _locked(path):
        set_archive(path, target)
        return _Push(path, target, progress, is_stopped, attempts).run()


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / _LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(
                f"another push of {root} is running: a recorder with an archive, or `tensorpool recording "
                "push`; wait for it, or stop it",
                holder="push",
            ) from None
        yield


class _Push:
    """One run of a push. The archive has no other writer: the caller holds the lock."""

    def __init__(
        self,
        root: Path,
        uri: StorageUri,
        progress: Progress | None,
        is_stopped: Callable[[], bool],
        attempts: int,
    ) -> None:
        self._root, self._uri = root, uri
        self._progress, self._is_stopped, self._attempts = progress, is_stopped, attempts
        self._result = PushResult(str(uri))
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="recording-push")
        self._done = self._total = 0
        self._unpublished = 0
        self._published_s = time.monotonic()

    def run(self) -> PushResult:
        """Uploads what is missing."""
        try:
            self._check_marker()
            self._archived = self._read_manifest()
            self._tables = self._read_tables()
            known = {
                (manifest.record_key(record), int(record["size_bytes"])) for record in self._archived.segments
            }
            sealed = [
                record
                for record in load_index(self._root).segments
                if record["kind"] == RecordKind.SEALED and record["rows"]
            ]
            missing = [
                record
                for record in sealed
                if (manifest.record_key(record), int(record["size_bytes"])) not in known
            ]
            self._total = sum(int(record["size_bytes"]) for record in missing)
            for record in missing:
                self._push_segment(record)
                waited = time.monotonic() - self._published_s
                if self._unpublished >= _CHECKPOINT_BYTES or waited >= _CHECKPOINT_S:
                    self._publish()
            self._publish()
        finally:
            self._pool.shutdown(cancel_futures=True)
        self._result.archived = len(self._archived.segments)
        return self._result

    def _check_marker(self) -> None:
        marker = (self._root / layout.MARKER_FILE).read_bytes()
        uri = self._uri / layout.MARKER_FILE
        try:
            found = read_object(uri, attempts=self._attempts)
        except FileNotFoundError:
            self._upload(uri, memoryview(marker))
            return
        if found != marker:
            raise ConfigError(
                f"{self._uri} has another recording than {self._root}: choose another URI; one recording has "
                "one archive"
            )

    def _read_manifest(self) -> Manifest:
        uri = self._uri / layout.MANIFEST_FILE
        try:
            return manifest.decode_snapshot(read_object(uri, attempts=self._attempts))
        except FileNotFoundError:
            return Manifest()
        except (DamagedManifest, CorruptRecording) as error:
            _LOG.warning("%s: %s; every segment is proven again", uri, error)
            return Manifest()

    def _read_tables(self) -> dict[str, StoredTable]:
        try:
            content = read_object(self._uri / ARCHIVE_FILE, attempts=self._attempts)
            return {table.path: table for table in ArchiveList.decode(content).tables}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # Damage is a ValueError too: all tables are uploaded again.
            return {}

    def _push_segment(self, record: Any) -> None:
        name = manifest.segment_name(record)
        try:
            file = SegmentFile(name.sealed(self._root))
            index = segment_index.encode(name, file)
        except FileNotFoundError:
            # Retention removed it meanwhile: it was not meant to be archived when that began.
            return
        except (CorruptRecording, NotARecording) as error:
            _LOG.warning("not archived: %s", error)
            return
        if len(file.data) != int(record["size_bytes"]) or file.tail() is not None:
            _LOG.warning("not archived: %s is not as it was sealed; repair it", file.path)
            return
        if self._upload(self._uri / name.relative(), file.data, is_segment=True):
            self._result.uploaded_bytes += len(file.data)
        else:
            self._result.resumed += 1
        self._upload(self._uri / name.relative(layout.INDEX), memoryview(index))
        self._archived.segments = manifest.replace_segments(
            self._archived.segments, [manifest.record_key(record)], np.array([record], manifest.RECORD)
        )
        self._result.segments += 1
        self._unpublished += len(file.data)

    # --- uploads

    def _upload(self, uri: StorageUri, content: memoryview, *, is_segment: bool = False) -> bool:
        """Writes an object and proves it. Returns False if the store had it already."""
        if is_segment and self._is_proven(uri, content):
            self._advance(len(content))
            return False
        for attempt in range(_UPLOAD_ATTEMPTS):
            self._result.repeated += attempt > 0
            request(uri, lambda: self._write(uri, content), attempts=self._attempts)
            if self._is_proven(uri, content):
                self._advance(len(content) if is_segment else 0)
                return True
            _LOG.warning("%s does not read back as it was written; it is uploaded again", uri)
        raise StorageFailed(
            f"{uri} does not read back as it was written, {_UPLOAD_ATTEMPTS} times; check the store", path=uri
        )

    def _write(self, uri: StorageUri, content: memoryview) -> None:
        store, path = open_object_store(uri)
        store.write(path, self._parts(content))

    def _parts(self, content: memoryview) -> Iterator[memoryview]:
        for start in range(0, len(content), PART_BYTES):
            self._check_stopped()
            yield content[start : start + PART_BYTES]

    def _is_proven(self, uri: StorageUri, content: memoryview) -> bool:
        """Whether the object has exactly these bytes."""

        def opened() -> Any:
            store, path = open_object_store(uri)
            return store.open_reader(path)

        try:
            reader = request(uri, opened, attempts=self._attempts)
        except FileNotFoundError:
            return False
        if reader.size_bytes != len(content):
            return False

        def is_equal(start: int) -> bool:
            self._check_stopped()
            expected = content[start : start + PART_BYTES]
            read = request(uri, lambda: reader.read(start, len(expected)), attempts=self._attempts)
            return _native.crc32c(read) == _native.crc32c(expected) and len(read) == len(expected)

        try:
            return all(self._pool.map(is_equal, range(0, len(content), PART_BYTES)))
        except CorruptRecording:
            return False

    def _check_stopped(self) -> None:
        if self._is_stopped():
            raise PushStopped

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)

    # --- publishing

    def _publish(self) -> None:
        """Uploads tables and the manifest, in this order, if anything has changed."""
        tables = self._push_tables()
        content = ArchiveList(tuple(tables.values()), self._open_from(), str(self._root.absolute())).encode()
        if self._result.segments or self._result.tables or not self._archived.generation:
            self._upload(self._uri / ARCHIVE_FILE, memoryview(content))
            self._tables = tables
            self._archived.generation += 1
            snapshot = manifest.encode_snapshot(self._archived.generation, self._archived)
            self._upload(self._uri / layout.MANIFEST_FILE, memoryview(snapshot))
        else:
            snapshot = manifest.encode_snapshot(self._archived.generation, self._archived)
        # Retention relies on this file alone, so it is written after all of the archive was read back.
        with write_errors(self._root / _PROVEN_FILE):
            replace_file(self._root / _PROVEN_FILE, snapshot)
        self._unpublished, self._published_s = 0, time.monotonic()

    def _open_from(self) -> tuple[OpenFrom, ...]:
        """The first sequence, by stream and epoch, from which on the archive lacks frames."""
        known = {manifest.record_key(record) for record in self._archived.segments}
        first: dict[tuple[int, int], int] = {}
        for record in load_index(self._root).segments:
            key = manifest.record_key(record)
            if key not in known:
                epoch = key.stream_id, key.epoch
                first[epoch] = min(first.get(epoch, key.first_seq), key.first_seq)
        return tuple(OpenFrom(stream, epoch, seq) for (stream, epoch), seq in sorted(first.items()))

    def _push_tables(self) -> dict[str, StoredTable]:
        tables: dict[str, StoredTable] = dict(self._tables)
        paths = [path for path in (self._root / layout.TABLES_DIR).rglob("*") if path.suffix in _TABLE_ORDER]
        for path in sorted(paths, key=lambda path: (_TABLE_ORDER.index(path.suffix), path)):
            content = path.read_bytes()
            relative = str(path.relative_to(self._root))
            table = StoredTable(relative, len(content), _native.crc32c(content))
            if tables.get(relative) != table:
                self._upload(self._uri / relative, memoryview(content))
                self._result.tables += 1
            tables[relative] = table
        return tables


# --- pull


def pull(uri: str, target: str | os.PathLike[str], *, progress: Progress | None = None) -> PullResult:
    """Copies a recording from a store into a local directory, where it is an ordinary recording.

    Every segment is checked against its checksums before it gets its name. A pull that was interrupted is
    continued by the next one.
    """
    root = local_path(target)
    if root is None:
        raise ConfigError(f"{target} is not a local directory: pull copies from a store to a local recording")
    source = StorageUri.parse(uri)
    if local_path(uri) is not None:
        raise ConfigError(f"{uri} is a local directory: copy it with cp, or `tensorpool recording cut`")
    remote = RemoteRecording(source)
    try:
        return _pull(remote, root, progress)
    finally:
        remote.close()


def _pull(remote: RemoteRecording, root: Path, progress: Progress | None) -> PullResult:
    marker = (remote.root / layout.MARKER_FILE).read_bytes()
    if (root / layout.MARKER_FILE).exists():
        if (root / layout.MARKER_FILE).read_bytes() != marker:
            raise ConfigError(f"{root} is another recording than {remote.uri}: choose another directory")
    else:
        layout.create_root(root, created_ns=0)
        with write_errors(root):
            replace_file(root / layout.MARKER_FILE, marker)
    result = PullResult(root)
    records = [
        record for record in manifest.load(remote.root).segments if record["kind"] == RecordKind.SEALED
    ]
    total = sum(int(record["size_bytes"]) for record in records)
    for record in records:
        name = manifest.segment_name(record)
        size = int(record["size_bytes"])
        if name.sealed(root).exists() and name.sealed(root).stat().st_size == size:
            result.present += 1
        else:
            _pull_segment(remote, root, record)
            result.segments += 1
        result.size_bytes += size
        if progress is not None:
            progress(result.size_bytes, total)
    remote.require_tables()
    for table in remote.list.tables:
        path = root / table.path
        make_directories(path.parent, above=root)
        with write_errors(path):
            replace_file(path, (remote.root / table.path).read_bytes())
    with write_errors(root):
        # Last: until then readers find the segments that are there, and the next pull continues.
        snapshot = manifest.load(remote.root)
        replace_file(root / layout.MANIFEST_FILE, manifest.encode_snapshot(snapshot.generation, snapshot))
        replace_file(root / layout.MANIFEST_COUNT, manifest.encode_count(LogCount(snapshot.generation, 0)))
    return result


def _pull_segment(remote: RemoteRecording, root: Path, record: Any) -> None:
    name = manifest.segment_name(record)
    uri = remote.uri / name.relative()
    try:
        file = remote.open_segment(name, whole=True)
    except FileNotFoundError:
        raise CorruptRecording(
            f"{uri} is in the manifest, but not in the store; push the recording again", path=uri
        ) from None
    scan = file.scan_more()
    is_intact = (
        len(file.data) == int(record["size_bytes"])
        and file.tail() is None
        and scan.rows == int(record["rows"])
        and int(record["head_crc32c"]) in (0, file.head_crc32c)
        and not any(len(RowBlock(file, location).damaged_rows()) for location in scan.batches)
    )
    if not is_intact:
        raise CorruptRecording(
            f"{uri} is not as it was sealed; `tensorpool recording verify {remote.uri}` lists all damage",
            path=uri,
        )
    path = name.sealed(root)
    for directory in make_directories(path.parent, above=root):
        sync_directory(directory)
    temporary = path.with_name(f"{path.name}.pull")
    with write_errors(path):
        temporary.write_bytes(file.data)
        sync_file(temporary)
        segment_index.write(root, name, temporary)
        temporary.rename(path)
        sync_directory(path.parent)


# --- ls


def list_recordings(uri: str | os.PathLike[str]) -> list[ArchivedRecording]:
    """The recording at a place, or those directly below it."""
    local = local_path(uri)
    if local is not None:
        if (local / layout.MARKER_FILE).exists():
            return [_local_summary(local)]
        below = sorted(local.iterdir()) if local.is_dir() else []
        return [_local_summary(path) for path in below if (path / layout.MARKER_FILE).is_file()]
    place = StorageUri.parse(str(uri))
    found = _remote_summary(place)
    if found is not None:
        return [found]
    names = [name for name, is_directory in list_names(place) if is_directory]
    return [summary for name in names if (summary := _remote_summary(place / name)) is not None]


def _local_summary(root: Path) -> ArchivedRecording:
    return _summary(str(root), load_index(root))


def _remote_summary(uri: StorageUri) -> ArchivedRecording | None:
    try:
        content = read_object(uri / layout.MANIFEST_FILE)
        read_object(uri / layout.MARKER_FILE)
    except FileNotFoundError:
        return None
    try:
        return _summary(str(uri), manifest.decode_snapshot(content))
    except DamagedManifest as error:
        raise CorruptRecording(f"{uri / layout.MANIFEST_FILE}: {error}", path=uri) from None


def _summary(uri: str, known: Manifest) -> ArchivedRecording:
    segments = known.segments
    counted = segments[segments["rows"] > 0]
    return ArchivedRecording(
        uri,
        tuple(np.unique(segments["stream_id"]).tolist()),
        len(segments),
        int(counted["rows"].sum()),
        int(segments["size_bytes"].sum()),
        int(counted["first_time_ns"].min()) if len(counted) else None,
        int(counted["last_time_ns"].max()) if len(counted) else None,
    )


# --- the recorder's archiver


@dataclass(slots=True)
class ArchiverStatus:
    """What the archiver of a recorder has done, and what is wrong now."""

    archived: int = 0
    """Segments in the archive."""
    problem: str | None = None
    """Why the last push failed; None if it did not."""
    repeated: int = field(default=0)


class Archiver:
    """Pushes the sealed segments of a recording again and again, in a thread of its own.

    A store that does not answer costs time and nothing else: the segments wait on the local disk.
    """

    def __init__(self, root: Path, uri: str) -> None:
        self._root = root
        self._uri = StorageUri.parse(uri)
        set_archive(root, self._uri)
        self.status = ArchiverStatus()
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording-archiver", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = _PERIOD_S
        while not self._stop.wait(pause):
            pause = _PERIOD_S if self._push() else min(2 * pause, _MAX_PAUSE_S)

    def _push(self) -> bool:
        try:
            result = push(
                self._root,
                str(self._uri),
                is_stopped=lambda: self._stop.is_set() and self._abort.is_set(),
                attempts=2,
            )
        except PushStopped:
            return False
        except (OSError, RecordingError, ConfigError, LockHeld) as error:
            if self.status.problem is None:
                # Once per series of failures.
                _LOG.warning("the archive has to wait: %s", error)
            self.status.problem = str(error)
            return False
        if self.status.problem is not None:
            _LOG.info("the archive is up to date again")
        self.status = ArchiverStatus(result.archived, None, self.status.repeated + result.repeated)
        return True

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Pushes what was sealed last, for as long as the time allows."""
        self._stop.set()
        timer = threading.Timer(timeout_s, self._abort.set)
        timer.start()
        try:
            self._thread.join()
            if not self._push():
                _LOG.warning(
                    "not everything is archived: `tensorpool recording push %s` continues it", self._root
                )
        finally:
            timer.cancel()
            timer.join()
