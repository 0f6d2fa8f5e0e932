"""Where marks and locks live: outside shared memory, so that a wiped /dev/shm forgets nothing."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir(*parts: str) -> Path:
    """A private directory below `$XDG_STATE_HOME/tensorpool`, made if it is missing."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(root, "tensorpool", *parts)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
