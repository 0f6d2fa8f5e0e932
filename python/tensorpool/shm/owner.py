"""One owner a stream, whoever it is: a stand-alone producer or the SHM driver.

Whoever has files of a stream holds the stream's lock, and takes epochs from the stream's mark. Both lie
outside shared memory, in the same place for both kinds of owner: so the two exclude each other, and epochs
grow from one to the other.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .. import _native
from ..errors import LockHeld, StreamBusy
from ..state_dir import state_dir
from .epoch import EpochMark


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
