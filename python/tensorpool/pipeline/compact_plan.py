"""Which small files of a partition become one. Pure.

Files are merged with others of about their size, when there are enough of them: a row is written again once
for each step in size, however often files are added. `whole` merges all that are small, once and for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FAN: Final = 16
"""So many files of about one size become one."""
_SMALLEST: Final = 4096
_CHUNK: Final = 8
"""A task writes about so many files of the target's size: large partitions are merged by several."""

Sized = tuple[str, int]
"""A file's name, and its bytes."""


def plan(files: Sequence[Sized], target_bytes: int, *, whole: bool) -> list[list[str]]:
    """Groups of names, each to be merged by itself, in the order of the files."""
    tiers: dict[int, list[Sized]] = {}
    for name, size in files:
        if size < target_bytes // 2:
            tiers.setdefault(0 if whole else tier(size), []).append((name, size))
    least = 2 if whole else FAN
    groups = [group for _, group in sorted(tiers.items()) if len(group) >= least]
    return [part for group in groups for part in _chunks(group, target_bytes * _CHUNK)]


def tier(size: int) -> int:
    """Sizes of one tier are within a factor of `FAN`."""
    found = 0
    while size >= _SMALLEST * FAN:
        size //= FAN
        found += 1
    return found


def _chunks(group: Sequence[Sized], most_bytes: int) -> list[list[str]]:
    found: list[list[str]] = [[]]
    size = 0
    for name, more in group:
        if size + more > most_bytes and len(found[-1]) > 1:
            found.append([])
            size = 0
        found[-1].append(name)
        size += more
    return [names for names in found if len(names) > 1]
