"""The state directory of epoch marks and locks, outside shared memory so that a wiped /dev/shm loses none."""

from __future__ import annotations

import os
from pathlib import Path


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
