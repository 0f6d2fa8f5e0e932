"""Crash-safe files: complete writes, syncs, atomic replacement, small JSON state; the state directory.

The state directory has epoch marks and locks. It is outside shared memory, so that a wiped
/dev/shm loses none.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from .errors import DiskFull, WriteFailed

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The codes of errors of a full disk."""
RESUME_HINT: Final = "free some disk space; data written before is kept, and writing can continue"
RETRY_HINT: Final = "free some disk space or choose another directory, then start again: no output is kept"


@contextmanager
def write_errors(path: Path, disk_full_hint: str = RESUME_HINT) -> Iterator[None]:
    """Turns an OSError into WriteFailed or DiskFull, with the path in its message.

    `disk_full_hint` ends the message of DiskFull: what to do about it.
    """
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        kind, hint = WriteFailed, "check the device and its permissions"
        if error.errno in DISK_FULL:
            kind, hint = DiskFull, disk_full_hint
        raise kind(f"{path}: {error.strerror or error}; {hint}", path=path, code=error.errno) from error


def write_all(fd: int, parts: Sequence[memoryview]) -> int:
    """Writes all parts with as few system calls as possible. Returns the number of bytes."""
    remaining = [part.cast("B") for part in parts if part.nbytes]
    total = 0
    while remaining:
        written = os.writev(fd, remaining)
        total += written
        # One call writes at most 2 GiB, and less on a disk that is nearly full.
        while remaining and written >= remaining[0].nbytes:
            written -= remaining.pop(0).nbytes
        if remaining and written:
            remaining[0] = remaining[0][written:]
    return total


def sync_file(path: Path) -> None:
    """Makes the content of a file durable, whichever process wrote it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: creations, renames, removals."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, *, above: Path) -> list[Path]:
    """Creates a directory below `above` and its missing parents.

    Returns the directories that must be synced to make the new names durable.
    """
    missing = []
    while path != above and not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
    return [directory.parent for directory in missing]


def replace_file(path: Path, content: bytes, *, sync: bool = True, mode: int = 0o644) -> None:
    """Writes a file atomically: a reader finds the old content or the new one, never a part.

    With `sync` the new content also survives a power failure once this returns. A failed write leaves the
    old file, and no temporary one.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        # Not through a link: in a directory that others can write to, the name could be guessed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, mode)
        try:
            write_all(fd, [memoryview(content)])
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


class JsonState:
    """A small JSON file that is replaced atomically at each save."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Any:
        """The saved value; None if there is no file yet. ValueError if the file is not JSON."""
        try:
            return json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def save(self, value: Any) -> None:
        """Makes a new value durable. Raises WriteFailed or DiskFull."""
        with write_errors(self.path):
            replace_file(self.path, json.dumps(value).encode() + b"\n")


def state_path(*parts: str) -> Path:
    """A path below `$XDG_STATE_HOME/tensorpool`, for reading: creates no directories."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root, "tensorpool", *parts)


def state_dir(*parts: str) -> Path:
    """A private directory below `$XDG_STATE_HOME/tensorpool`, created if it is missing."""
    path = state_path(*parts)
    missing = [path]
    while missing and not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    # One directory at a time: mkdir(parents=True) does not apply the mode to the parents.
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
    return path
