"""Writing so that it is still there after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import DiskFull, WriteFailed

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_GO_ON: Final = "make room; what was written before is kept, and writing can go on"
RETRY_HINT: Final = "make room, or choose another place, and do it again: nothing of it is kept"


@contextmanager
def write_errors(path: Path, no_room: str = _GO_ON) -> Iterator[None]:
    """Turns what the operating system says into our own errors, which name the file.

    `no_room` says what to do about a full disk.
    """
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        kind, remedy = WriteFailed, "check the device and its permissions"
        if error.errno in _NO_ROOM:
            kind, remedy = DiskFull, no_room
        raise kind(f"{path}: {error.strerror or error}; {remedy}", path=path, code=error.errno) from error


def write_all(fd: int, parts: Sequence[memoryview]) -> int:
    """Writes all parts with as few calls as the kernel allows; gives the number of bytes."""
    waiting = [part.cast("B") for part in parts if part.nbytes]
    total = 0
    while waiting:
        written = os.writev(fd, waiting)
        total += written
        # One call moves at most 2 GiB, and less on a disk that is nearly full.
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.pop(0).nbytes
        if waiting and written:
            waiting[0] = waiting[0][written:]
    return total


def sync_file(path: Path) -> None:
    """Makes durable what anyone has written to a file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Makes names in a directory durable: creations, renames, removals."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, *, above: Path) -> list[Path]:
    """Makes a directory below `above`, and what is between; gives those that have to be synced for it."""
    missing = []
    while path != above and not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
    return [directory.parent for directory in missing]


def replace_file(path: Path, content: bytes) -> None:
    """The file has the old content or the new one, whatever happens."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, [memoryview(content)])
            os.fsync(fd)
        finally:
            os.close(fd)
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
