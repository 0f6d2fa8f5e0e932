"""Files as mapped memory, and mappings that outlive their readers in a process that wants it so.

A mapping costs about as much as a look at all of its bytes: the kernel enters page by page, and takes them
out again. A process that does one short task after the other over the same segments, as Spark's workers do,
keeps the ones used last. Not for two threads at once.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 64
_MOST_BYTES: Final = 4 << 30

_kept: OrderedDict[tuple[int, int], tuple[Path, mmap.mmap]] = OrderedDict()
"""By device and inode, which is no other file's as long as it is mapped."""
_keeps = False


def map_file(fd: int, path: Path) -> mmap.mmap:
    """An open file that is not empty, as far as it goes now."""
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    held = _kept.get(identity)
    if held is not None and len(held[1]) == status.st_size:
        _kept.move_to_end(identity)
        return held[1]
    try:
        found = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    except OSError:
        if not _kept:
            raise
        # A limit on address space, maybe: what is only kept makes room.
        _kept.clear()
        found = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    if _keeps:
        _kept[identity] = path, found
        _kept.move_to_end(identity)
        while len(_kept) > _MOST_FILES or sum(len(one) for _, one in _kept.values()) > _MOST_BYTES:
            _kept.popitem(last=False)
    return found


def enable_cache(wanted: bool = True) -> None:
    """From now on mappings are kept; or no longer, and none is left."""
    global _keeps  # noqa: PLW0603  one address space a process
    _keeps = wanted
    if not wanted:
        _kept.clear()


def evict_removed() -> None:
    """Lets go of files that are gone, or have another name by now: a mapping would hold their disk space."""
    for identity, (path, _) in list(_kept.items()):
        try:
            status = os.stat(path)
            is_there = (status.st_dev, status.st_ino) == identity
        except OSError:
            is_there = False
        if not is_there:
            del _kept[identity]
