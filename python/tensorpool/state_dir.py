"""Where marks and locks live: outside shared memory, so that a wiped /dev/shm forgets nothing."""

from __future__ import annotations

import os
from pathlib import Path


def state_path(*parts: str) -> Path:
    """A place below `$XDG_STATE_HOME/tensorpool`, for those who only look: nothing is made."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root, "tensorpool", *parts)


def state_dir(*parts: str) -> Path:
    """A private directory below `$XDG_STATE_HOME/tensorpool`, made if it is missing."""
    path = state_path(*parts)
    missing = [path]
    while missing and not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    # One by one: the mode that mkdir() is given is not that of the parents it makes.
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
    return path
