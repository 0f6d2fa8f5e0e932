"""Memory maps of segment files, and an optional cache of maps that outlive their readers.

Mapping and unmapping a file costs about as much as reading all of its bytes, because the kernel handles every
page. Spark's workers run many short tasks over the same segments, so they enable the cache. Not thread-safe.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

_MAX_FILES: Final = 64
_MAX_BYTES: Final = 4 << 30


class _CachedMap(NamedTuple):
    path: Path
    mapping: mmap.mmap


_cache: OrderedDict[tuple[int, int], _CachedMap] = OrderedDict()
"""By device and inode, which the kernel does not reuse while the file is mapped."""
_is_enabled = False


def map_file(fd: int, path: Path) -> mmap.mmap:
    """A read-only mapping of an open, non-empty file at its present size."""
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    cached = _cache.get(identity)
    if cached is not None and len(cached.mapping) == status.st_size:
        _cache.move_to_end(identity)
        return cached.mapping
    try:
        mapping = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    except OSError:
        if not _cache:
            raise
        # Probably a limit on address space: release the mappings that are only cached, and try again.
        _cache.clear()
        mapping = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    if _is_enabled:
        _cache[identity] = _CachedMap(path, mapping)
        _cache.move_to_end(identity)
        while len(_cache) > _MAX_FILES or _cached_bytes() > _MAX_BYTES:
            _cache.popitem(last=False)
    return mapping


def _cached_bytes() -> int:
    return sum(len(cached.mapping) for cached in _cache.values())


def enable_cache(enabled: bool = True) -> None:
    """Switches the cache on, or off and empties it."""
    global _is_enabled  # noqa: PLW0603  one address space per process
    _is_enabled = enabled
    if not enabled:
        _cache.clear()


def evict_removed() -> None:
    """Drops mappings of files that were removed or renamed: a mapping would keep their disk space in use."""
    for identity, cached in list(_cache.items()):
        try:
            status = os.stat(cached.path)
            is_present = (status.st_dev, status.st_ino) == identity
        except OSError:
            is_present = False
        if not is_present:
            del _cache[identity]
