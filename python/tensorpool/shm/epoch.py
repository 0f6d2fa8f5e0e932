"""Epochs only grow: across restarts, wiped directories and clocks that were set back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


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
        fresh = self._path.with_suffix(f".{os.getpid()}")
        with open(fresh, "w", encoding="ascii") as file:
            file.write(str(epoch))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        return epoch
