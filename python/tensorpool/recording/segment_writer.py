"""One segment while it is written: batches go to its end, and it is sealed under its final name.

Owned by whoever holds the stream's lock. `sync` may run in another thread beside `write`.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import InvalidFrames, WriteFailed
from . import layout
from .batch import FrameBatch
from .encode import BatchEncoder
from .message import END_OF_STREAM


@dataclass(slots=True)
class SegmentStats:
    """What is in a segment, as the manifest keeps it."""

    rows: int = 0
    last_seq: int = 0
    size_bytes: int = 0
    payload_bytes: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0

    def add(self, frames: FrameBatch, size_bytes: int) -> None:
        first, last = int(frames.receive_time_ns.min()), int(frames.receive_time_ns.max())
        self.first_time_ns = min(self.first_time_ns, first) if self.rows else first
        self.last_time_ns = max(self.last_time_ns, last) if self.rows else last
        self.rows += len(frames)
        self.last_seq = frames.last_seq
        self.payload_bytes += int(frames.payload_bytes.sum())
        self.size_bytes = size_bytes


class SegmentWriter:
    """Writes `<first-seq>.arrows.partial`, and renames it when it is sealed.

    A batch is written whole or not at all: what a full disk left of it is cut off again, and the same batch
    can be written later.
    """

    def __init__(self, root: Path, name: layout.SegmentName) -> None:
        self.name = name
        self.root = root
        self.path = name.partial(root)
        self.stats = SegmentStats()
        self._encoder = BatchEncoder(name.stream_id, name.epoch)
        self._synced_bytes = 0
        self._broken: WriteFailed | None = None
        # Guards the descriptor: it must not be closed, and its number given to another file, during a sync.
        self._closing = threading.Lock()
        self._fd = -1
        with write_errors(self.path):
            self._names_to_sync = [name.directory(root), *make_directories(name.directory(root), above=root)]
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            try:
                self._end = write_all(self._fd, [memoryview(self._encoder.head())])
            except OSError:
                self.path.unlink(missing_ok=True)
                self.abandon()
                raise
        self.stats.size_bytes = self._end

    @property
    def end(self) -> int:
        """Bytes of the file that hold complete batches."""
        return self._end

    @property
    def is_dirty(self) -> bool:
        return self._synced_bytes < self._end

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def write(self, frames: FrameBatch) -> None:
        """Appends a batch. It survives the process from here on, and the machine after the next `sync`."""
        if self._broken is not None:
            raise self._broken
        if problem := frames.problem():
            raise InvalidFrames(f"stream {self.name.stream_id}: {problem}", path=self.path)
        parts = self._encoder.encode(frames)
        with write_errors(self.path):
            try:
                written = write_all(self._fd, parts)
            except OSError:
                self._cut()
                raise
        self._end += written
        self.stats.add(frames, self._end)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            # The torn batch stays, so nothing may follow it in this file.
            self._broken = WriteFailed(f"{self.path}: {error.strerror}", path=self.path, code=error.errno)

    def sync(self) -> None:
        """Returns when everything written before the call is on the disk."""
        with self._closing:
            if self.closed or not self.is_dirty:
                return
            end = self._end
            with write_errors(self.path):
                try:
                    os.fdatasync(self._fd)
                    # Not when they were made: rotation happens between two writes, and must be quick.
                    while self._names_to_sync:
                        sync_directory(self._names_to_sync[-1])
                        self._names_to_sync.pop()
                except OSError as error:
                    # The kernel may have dropped the pages and forgotten the error: nothing since the last
                    # sync can be relied upon, and a second sync would only pretend.
                    self._broken = WriteFailed(
                        f"{self.path}: {error.strerror}", path=self.path, code=error.errno
                    )
                    raise
            self._synced_bytes = end

    def seal(self) -> Path:
        """Ends the segment under its final name, durably. An empty one is removed instead."""
        if self._broken is not None:
            self.abandon()
            raise self._broken
        with self._closing, write_errors(self.path):
            if self.stats.rows == 0:
                self.path.unlink(missing_ok=True)
            else:
                try:
                    self._end += write_all(self._fd, [memoryview(END_OF_STREAM)])
                except OSError:
                    # A stream may end without its mark, and a full disk is no reason to leave it open.
                    os.ftruncate(self._fd, self._end)
                self.stats.size_bytes = self._end
                os.fsync(self._fd)
                self.path.rename(self.name.sealed(self.root))
            os.close(self._fd)
            self._fd = -1
            for directory in {self.path.parent, *self._names_to_sync}:
                sync_directory(directory)
        return self.name.sealed(self.root)

    def abandon(self) -> None:
        """Lets go of the file as it is; the next writer of the stream recovers what is complete."""
        with self._closing:
            if not self.closed:
                os.close(self._fd)
                self._fd = -1
