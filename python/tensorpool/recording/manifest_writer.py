"""Changes the manifest: appends to its log, makes snapshots, builds it anew from the files.

Every change holds the manifest's lock, so several writers can share one root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..durable import replace_file, sync_directory, sync_file, write_errors
from . import layout, manifest
from .index import add_unlisted, find_unlisted, scan_files, settle_open
from .manifest import DamagedManifest, Kind, Manifest, Records

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
