"""Epochs only grow: across restarts, wiped directories and clocks that were set back.

One owner a stream, whoever it is: a stand-alone producer or the SHM driver.

Whoever has files of a stream holds the stream's lock, and takes epochs from the stream's mark. Both lie
outside shared memory, in the same place for both kinds of owner: so the two exclude each other, and epochs
grow from one to the other.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import _native
from ..durable import replace_file
from ..errors import LockHeld, StreamBusy
from ..state_dir import state_dir


class EpochMark:
    """The highest epoch given out so far, in a small file that is replaced atomically."""

    def __init__(self, path: Path, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._wall_clock_ns = wall_clock_ns

    def last(self) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int(self._path.read_text("ascii"))
        return 0

    def next(self) -> int:
        """A new epoch, on disk before it is returned."""
        epoch = max(self.last() + 1, self._wall_clock_ns())
        replace_file(self._path, str(epoch).encode())
        return epoch


def base_digest(base: Path) -> str:
    """Stands for a base directory in the name of a state directory."""
    return hashlib.sha256(str(base.resolve()).encode()).hexdigest()[:16]


def stream_state(base: Path, namespace: str) -> Path:
    """Where marks and locks of a namespace live. Each base directory has streams of its own."""
    return state_dir("streams", base_digest(base), namespace)


def epoch_mark(state: Path, stream_id: int) -> EpochMark:
    """The mark that a stream's epochs grow from."""
    return EpochMark(state / f"{stream_id}.epoch")


def lock_stream(
    state: Path, namespace: str, stream_id: int, *, holder: str | None = None
) -> _native.FileLock:
    """Makes this process the stream's owner. Raises StreamBusy if there is another."""
    path = state / f"{stream_id}.lock"
    try:
        return _native.FileLock(path, holder or f"process {os.getpid()}")
    except LockHeld as error:
        message = (
            f"stream {stream_id} in namespace {namespace!r} has a producer already ({error.holder}); "
            "close that one, or choose another stream id or namespace"
        )
        raise StreamBusy(message, stream_id=stream_id, holder=error.holder) from None
