"""The counts of one program in a mapped file: a program that is killed leaves them, too."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

_FORMAT = struct.Struct("<6Q")


class Counts(NamedTuple):
    """What one program has done so far."""

    published: int = 0
    checked: int = 0
    torn: int = 0
    """Of the checked frames, those that are not what was published."""
    recorded: int = 0
    runs: int = 0
    """Of a pipeline, those that ended well."""
    full: int = 0
    """Runs of a pipeline that ended because its disk was full."""


class Tally:
    """The counts of the program that runs. Each is written at once, so others can read it from the file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_FORMAT.size))
        with path.open("r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), _FORMAT.size)).cast("Q")

    def add(self, field: str) -> None:
        """One more."""
        self._counters[Counts._fields.index(field)] += 1

    def set(self, field: str, number: int) -> None:
        """The count is now this one."""
        self._counters[Counts._fields.index(field)] = number


def read_counts(path: Path) -> Counts:
    """The counts of a program, running or not; all zero if it was killed before it had any."""
    try:
        return Counts(*_FORMAT.unpack(path.read_bytes()))
    except (FileNotFoundError, struct.error):
        return Counts()
