"""The lock of a recorded stream: one writer at a time."""

from __future__ import annotations

import os
from pathlib import Path

from .. import _native
from ..errors import LockHeld
from . import layout


def lock_stream(directory: Path, who: str) -> _native.FileLock:
    """Takes the lock of the stream in `directory`, in the name of `who`; LockHeld says who has it."""
    try:
        return _native.FileLock(directory / layout.WRITER_LOCK, f"process {os.getpid()} ({who})")
    except LockHeld as error:
        raise LockHeld(
            f"{directory} is being written by {error.holder}; stop that one first, or use another directory",
            holder=error.holder,
        ) from None
