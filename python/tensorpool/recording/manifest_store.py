"""The manifest and the segment files together: the list of segments, and changes of the manifest on disk.

Readers get the manifest with the changes that it does not contain yet, or a scan of the files where it is
damaged. Writers append to its log, write snapshots and rebuild it. Every change holds the manifest's lock, so
several writers can share one recording.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..durable import replace_file, sync_directory, sync_file, write_errors
from ..errors import CorruptRecording, NotARecording
from ..text import parse_number
from . import layout, manifest
from .manifest import DamagedManifest, LogCount, Manifest, RecordKind, Records
from .segment_file import SegmentFile
from .segment_writer import SegmentStats

# Directories of older epochs do not change any more, and there may be thousands.
_MAX_EPOCHS_CHECKED: Final = 16
COMPACT_RECORDS: Final = 256
"""Log length at which a snapshot is written: it limits what a reader has to apply."""


def load_index(root: Path, previous: Manifest | None = None) -> Manifest:
    """The manifest, brought up to date with the files. Changes nothing on disk.

    `previous` is an earlier result: with it loading is faster.
    """
    try:
        known = manifest.load(root, previous=previous.snapshot if previous is not None else None)
    except DamagedManifest as error:
        return scan_files(root, known=error.known)
    update_open(root, known)
    add_unlisted(root, known)
    return known


def add_unlisted(root: Path, known: Manifest) -> None:
    """Adds segments to the manifest in memory that are on disk only."""
    if unlisted := find_unlisted(root, known):
        new = np.concatenate(unlisted)
        keys = [manifest.record_key(record) for record in new]
        known.segments = manifest.replace_segments(known.segments, keys, new)


def update_open(root: Path, known: Manifest) -> None:
    """Updates the segments that the manifest in memory lists as open: they may be sealed or removed."""
    keys, new = [], [np.empty(0, manifest.RECORD)]
    for record in known.open_segments():
        name = manifest.segment_name(record)
        # In this order: a segment may be sealed between the two checks, but never unsealed.
        if name.partial(root).exists():
            continue
        keys.append(manifest.record_key(record))
        if name.sealed(root).exists():
            new.append(read_record(root, name))
    if keys:
        known.segments = manifest.replace_segments(known.segments, keys, np.concatenate(new))


def find_unlisted(root: Path, known: Manifest, *, exclude: Collection[tuple[int, int]] = ()) -> list[Records]:
    """Records of segments on disk that the manifest does not list; not of the (stream, epoch) in `exclude`.

    A writer changes the manifest after every change of a directory. So a directory that is newer than the
    manifest was changed otherwise: by a crash, a copy or a restored manifest.
    """
    unlisted: list[Records] = []
    for stream_id, stream_dir in layout.stream_dirs(root).items():
        epochs = sorted(layout.epoch_dirs(stream_dir).items())[-_MAX_EPOCHS_CHECKED:]
        for epoch, epoch_dir in epochs:
            if (stream_id, epoch) in exclude or epoch_dir.stat().st_mtime_ns <= known.changed_ns:
                continue
            listed = set(known.segments_of(stream_id, epoch)["first_seq"].tolist())
            removed = {
                key.first_seq for key in known.removed if (key.stream_id, key.epoch) == (stream_id, epoch)
            }
            for first_seq in layout.segments_in(epoch_dir):
                if first_seq not in listed and first_seq not in removed:
                    unlisted.append(read_record(root, layout.SegmentName(stream_id, epoch, first_seq)))
    return unlisted


def scan_files(
    root: Path,
    *,
    known: Manifest | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """A manifest made from the files. `known` only adds what no file contains: the removals of retention."""
    names = list(layout.all_segments(root))
    scanned = Manifest(known.generation if known else 0)
    scanned.trimmed = dict(known.trimmed) if known else {}
    records: list[Records] = []
    for number, name in enumerate(names):
        records.append(read_record(root, name))
        if progress is not None:
            progress(number + 1, len(names))
    if records:
        scanned.segments = manifest.sort_records(np.concatenate(records))
    return scanned


def read_record(root: Path, name: layout.SegmentName) -> Records:
    """The manifest record of a segment, made from its file. An unreadable segment is listed with no rows.

    No record for a file that holds another segment than its name says: a copy would be counted twice.
    """
    sealed = name.sealed(root)
    kind, path = (RecordKind.SEALED, sealed) if sealed.exists() else (RecordKind.OPEN, name.partial(root))
    stats = SegmentStats()
    if kind is RecordKind.SEALED:
        try:
            file = SegmentFile(path)
            stats = file_stats(file)
            if file.name_fault(name) is not None:
                return np.empty(0, manifest.RECORD)
        except FileNotFoundError:
            pass
        except (CorruptRecording, NotARecording):
            stats.size_bytes = path.stat().st_size
    return manifest.make_record(kind, name, stats)


def file_stats(file: SegmentFile) -> SegmentStats:
    """The totals of a segment, from all of its batches."""
    from .rows import RowBlock

    scan = file.scan_more(resume=True)
    stats = SegmentStats(rows=scan.rows, size_bytes=len(file.data), head_crc32c=file.head_crc32c)
    blocks = [RowBlock(file, location) for location in scan.batches]
    if blocks:
        stats.last_seq = scan.batches[-1].last_seq
        stats.payload_bytes = sum(int(block.payload_bytes.sum()) for block in blocks)
        stats.first_time_ns = min(int(block.receive_time_ns.min()) for block in blocks)
        stats.last_time_ns = max(int(block.receive_time_ns.max()) for block in blocks)
    return stats


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Holds the manifest's lock. Every holder keeps it for a short time only."""
    fd = os.open(root / layout.MANIFEST_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def append(root: Path, *records: Records, sync: bool = True) -> None:
    """Adds records to the log. Without `sync` for changes that `find_unlisted` would find again."""
    with locked(root):
        path = append_locked(root, *records, sync=False)
    if not sync:
        return
    # Not under the lock: other writers would wait for the disk. If the log was removed meanwhile, its records
    # are in a snapshot, which is durable.
    with write_errors(path), contextlib.suppress(FileNotFoundError):
        sync_file(path)
        if path.stat().st_size < COMPACT_RECORDS * manifest.RECORD.itemsize:
            return
    with locked(root):
        compact_locked(root, load_or_rebuild(root))


def append_locked(root: Path, *records: Records, sync: bool = True) -> Path:
    """`append` for a caller that holds the lock. Returns the log, which may grow without limit."""
    current = load_or_rebuild(root)
    # After this write the manifest is newer than every directory, so unlisted segments must be added now.
    # The directories of the given records are newer because of these records.
    own = {(int(record["stream_id"][0]), int(record["epoch"][0])) for record in records}
    records = (*find_unlisted(root, current, exclude=own), *records)
    path = manifest.log_path(root, current.generation)
    with write_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            # A crash may have left a part of a record: every record behind it would be misaligned.
            os.ftruncate(fd, current.log_records * manifest.RECORD.itemsize)
            content = b"".join(record.tobytes() for record in records)
            try:
                written = os.write(fd, content)
                if written < len(content):
                    os.write(fd, content[written:])
            except OSError:
                os.ftruncate(fd, current.log_records * manifest.RECORD.itemsize)
                raise
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        _write_count(root, LogCount(current.generation, current.log_records + len(records)))
        if current.log_records == 0:
            # Once per log: syncing a new file does not make its name durable.
            sync_directory(root)
    return path


def compact_locked(root: Path, current: Manifest) -> None:
    """Writes a snapshot. The old log is removed last: until then snapshot and log are consistent."""
    update_open(root, current)
    add_unlisted(root, current)
    for key in current.removed:
        # A crash after the log entry may have left the file, and the snapshot no longer names it.
        name = layout.SegmentName(*key)
        name.sealed(root).unlink(missing_ok=True)
        name.index(root).unlink(missing_ok=True)
    # A generation that no file has: otherwise a copied log would be applied to the new snapshot.
    generation = max([current.generation, *_known_generations(root)]) + 1
    with write_errors(root / layout.MANIFEST_FILE):
        replace_file(root / layout.MANIFEST_FILE, manifest.encode_snapshot(generation, current))
    _write_count(root, LogCount(generation, 0))
    for path in manifest.log_files(root):
        path.unlink(missing_ok=True)


def _known_generations(root: Path) -> list[int]:
    numbers = [parse_number(path.name.split(".")[-2]) for path in manifest.log_files(root)]
    count = manifest.read_count(root)
    return [*(number for number in numbers if number is not None), count.generation if count else 0]


def _write_count(root: Path, count: LogCount) -> None:
    """Counts the records of the log, after they were written. A count that is behind does no harm."""
    with contextlib.suppress(OSError):
        fd = os.open(root / layout.MANIFEST_COUNT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            content = manifest.encode_count(count)
            # In place, by one call: a new file for each segment would cost a sync of the directory.
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        finally:
            os.close(fd)


def load_or_rebuild(root: Path) -> Manifest:
    """The manifest, rebuilt from the files if it is damaged. The caller holds the lock."""
    try:
        return manifest.load(root)
    except DamagedManifest as error:
        return rebuild_locked(root, known=error.known)


def rebuild_locked(
    root: Path, *, progress: Callable[[int, int], None] | None = None, known: Manifest | None = None
) -> Manifest:
    """Writes a manifest made from the files: see `scan_files`. The caller holds the lock."""
    scanned = scan_files(root, known=known, progress=progress)
    compact_locked(root, scanned)
    return manifest.load(root)


def removal_records(records: Iterable[Any]) -> list[Records]:
    """Records that mark segments as removed."""
    removals = []
    for record in records:
        removal = record.copy()
        removal["kind"] = RecordKind.REMOVED
        removal["crc32c"] = manifest.record_checksum(removal)
        removals.append(np.array([removal], manifest.RECORD))
    return removals
