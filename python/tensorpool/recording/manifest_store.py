"""What a recording holds, from the manifest where it can be used, and from the files where not.

Changes the manifest: appends to its log, makes snapshots, builds it anew from the files.

Every change holds the manifest's lock, so several writers can share one root.
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
from . import layout, manifest
from .manifest import DamagedManifest, Kind, Manifest, Records
from .segment_file import SegmentFile
from .segment_writer import SegmentStats

# Directories of older epochs do not change any more, and there may be thousands.
_EPOCHS_WATCHED: Final = 16


def load_index(root: Path, before: Manifest | None = None) -> Manifest:
    """The manifest with what it did not know yet. Changes nothing on disk. `before` is what was last known:
    the next look is quicker then.
    """
    try:
        known = manifest.load(root, before=before.snapshot if before is not None else None)
    except DamagedManifest:
        return scan_files(root)
    settle_open(root, known)
    add_unlisted(root, known)
    return known


def add_unlisted(root: Path, known: Manifest) -> None:
    if unlisted := find_unlisted(root, known):
        fresh = np.concatenate(unlisted)
        known.segments = manifest.replaced(known.segments, [_key(one) for one in fresh], fresh)


def _key(one: Any) -> tuple[int, int, int]:
    return int(one["stream_id"]), int(one["epoch"]), int(one["first_seq"])


def settle_open(root: Path, known: Manifest) -> None:
    """Looks at the segments that were open when the manifest last heard of them."""
    keys, fresh = [], [np.empty(0, manifest.RECORD)]
    for one in known.open_segments():
        name = manifest.name_of(one)
        # In this order: it may be sealed between the two looks, but never the other way round.
        if name.partial(root).exists():
            continue
        keys.append(_key(one))
        if name.sealed(root).exists():
            fresh.append(describe(root, name))
    if keys:
        known.segments = manifest.replaced(known.segments, keys, np.concatenate(fresh))


def find_unlisted(root: Path, known: Manifest, *, but: Collection[tuple[int, int]] = ()) -> list[Records]:
    """Segments that the manifest does not know, except those of the given streams and epochs.

    A writer changes the manifest after every change of a directory, so a directory that changed later than
    the manifest tells of something else: a crash, a copy, a restored manifest.
    """
    changes: list[Records] = []
    for stream_id, stream_dir in layout.stream_dirs(root).items():
        epochs = sorted(layout.epoch_dirs(stream_dir).items())[-_EPOCHS_WATCHED:]
        for epoch, epoch_dir in epochs:
            if (stream_id, epoch) in but or epoch_dir.stat().st_mtime_ns <= known.changed_ns:
                continue
            listed = set(known.of(stream_id, epoch)["first_seq"].tolist())
            gone = {key[2] for key in known.removed if key[:2] == (stream_id, epoch)}
            for first_seq in layout.segments_in(epoch_dir):
                if first_seq not in listed and first_seq not in gone:
                    changes.append(describe(root, layout.SegmentName(stream_id, epoch, first_seq)))
    return changes


def scan_files(
    root: Path,
    *,
    known: Manifest | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Looks at every segment. What `known` says of a sealed one of the same size is believed."""
    names = [
        layout.SegmentName(stream_id, epoch, first_seq)
        for stream_id, stream_dir in layout.stream_dirs(root).items()
        for epoch, epoch_dir in layout.epoch_dirs(stream_dir).items()
        for first_seq in layout.segments_in(epoch_dir)
    ]
    believed = {_key(one): one for one in known.segments if one["kind"] == Kind.SEALED} if known else {}
    found = Manifest(known.generation if known else 0)
    found.trimmed = dict(known.trimmed) if known else {}
    records: list[Records] = []
    for number, name in enumerate(names):
        one = believed.get((name.stream_id, name.epoch, name.first_seq))
        path = name.sealed(root)
        if one is not None and path.exists() and path.stat().st_size == one["size_bytes"]:
            records.append(np.array([one], manifest.RECORD))
        else:
            records.append(describe(root, name))
        if progress is not None:
            progress(number + 1, len(names))
    if records:
        found.segments = manifest.sort(np.concatenate(records))
    return found


def describe(root: Path, name: layout.SegmentName) -> Records:
    """A manifest's record of a segment, from its file. One that cannot be read is listed with no rows."""
    sealed = name.sealed(root)
    kind, path = (Kind.SEALED, sealed) if sealed.exists() else (Kind.OPEN, name.partial(root))
    stats = SegmentStats()
    if kind is Kind.SEALED:
        try:
            stats = file_stats(SegmentFile(path))
        except FileNotFoundError:
            pass
        except (CorruptRecording, NotARecording):
            stats.size_bytes = path.stat().st_size
    return manifest.record(kind, name, stats)


def file_stats(file: SegmentFile) -> SegmentStats:
    """What is in a segment, by looking at every batch of it."""
    from .rows import RowBlock

    scan = file.scan_more(resume=True)
    stats = SegmentStats(rows=scan.rows, size_bytes=len(file.data))
    blocks = [RowBlock(file, place) for place in scan.batches]
    if blocks:
        stats.last_seq = scan.batches[-1].last_seq
        stats.payload_bytes = sum(int(block.payload_bytes.sum()) for block in blocks)
        stats.first_time_ns = min(int(block.receive_time_ns.min()) for block in blocks)
        stats.last_time_ns = max(int(block.receive_time_ns.max()) for block in blocks)
    return stats


# So many records in the log, and a snapshot is made of them: what a reader has to replay stays small.
COMPACT_AT: Final = 256


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Holds the manifest's lock. It is held for moments only, so waiting for it is short."""
    fd = os.open(root / layout.MANIFEST_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def append(root: Path, *records: Records, durably: bool = True) -> None:
    """Adds records. Those that a look at the directories would find again need not wait for the disk."""
    with locked(root):
        path = append_locked(root, *records, durably=False)
    if not durably:
        return
    # Not under the lock: other writers would wait for the disk. A log that is gone by now has become a
    # snapshot, which is durable.
    with write_errors(path), contextlib.suppress(FileNotFoundError):
        sync_file(path)
        if path.stat().st_size < COMPACT_AT * manifest.RECORD.itemsize:
            return
    with locked(root):
        compact_locked(root, load_or_rebuild(root))


def append_locked(root: Path, *records: Records, durably: bool = True) -> Path:
    """The same for a caller that holds the lock; gives the log. It may grow without bound: see `append`."""
    current = load_or_rebuild(root)
    # From now on the manifest is newer than every directory, so what it did not know yet has to be in it. The
    # directories of these records are newer because of them.
    own = {(int(one["stream_id"][0]), int(one["epoch"][0])) for one in records}
    records = (*find_unlisted(root, current, but=own), *records)
    path = manifest.log_path(root, current)
    with write_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            # What a crash left of a record goes first: everything behind it would be out of step.
            os.ftruncate(fd, current.log_records * manifest.RECORD.itemsize)
            content = b"".join(one.tobytes() for one in records)
            try:
                written = os.write(fd, content)
                if written < len(content):
                    os.write(fd, content[written:])
            except OSError:
                os.ftruncate(fd, current.log_records * manifest.RECORD.itemsize)
                raise
            if durably:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        if current.log_records == 0:
            # Once for each log: the name of a new file is not made durable by syncing the file.
            sync_directory(root)
    return path


def compact_locked(root: Path, current: Manifest) -> None:
    """Makes a snapshot of what is known. The old log goes last: until then the old pair is complete."""
    settle_open(root, current)
    add_unlisted(root, current)
    for key in current.removed:
        # A crash between saying and doing left the file; after the snapshot nobody would know of it.
        name = layout.SegmentName(*key)
        name.sealed(root).unlink(missing_ok=True)
    with write_errors(root / layout.MANIFEST_FILE):
        replace_file(root / layout.MANIFEST_FILE, manifest.snapshot(current.generation + 1, current))
    for path in manifest.logs(root):
        if path != root / f"{layout.MANIFEST_FILE}.{current.generation + 1}.log":
            path.unlink(missing_ok=True)


def load_or_rebuild(root: Path) -> Manifest:
    """The manifest, made anew from the files where it cannot be used. The caller holds the lock."""
    try:
        return manifest.load(root)
    except DamagedManifest:
        return rebuild_locked(root)


def rebuild_locked(
    root: Path, *, progress: Callable[[int, int], None] | None = None, known: Manifest | None = None
) -> Manifest:
    """Writes a manifest that says what the files say. What `known` says of sealed files is believed."""
    found = scan_files(root, known=known, progress=progress)
    # A number that no log has: an old log beside the new snapshot would be replayed into it.
    used = [
        int(path.name.split(".")[-2]) for path in manifest.logs(root) if path.name.split(".")[-2].isdigit()
    ]
    found.generation = max([found.generation, *used, 0])
    compact_locked(root, found)
    return manifest.load(root)


def removed(records: Iterable[Any]) -> list[Records]:
    """The records that say that these segments are gone."""
    made = []
    for one in records:
        gone = one.copy()
        gone["kind"] = Kind.REMOVED
        gone["crc32c"] = manifest.record_checksum(gone)
        made.append(np.array([gone], manifest.RECORD))
    return made
