"""The sign of life in a stream's memory (wire §15.14): read by whoever may read it.

An announce names the file, and an announce may come from anybody: only what lies in the canonical layout is
opened, no link is followed, and nothing but a region's first bytes is looked at.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from functools import cache
from typing import Final

from ..sbe import MAGIC
from ..sbe.wire import ShmRegionSuperblock
from ..shm.inspect import NotARegion, region_path
from .events import Activity

_CANONICAL: Final = re.compile(r"/tensorpool-[^/]+/[^/]+/(\d+)/(\d+)/header\.ring$")
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SUPERBLOCK_BYTES: Final = 64


def read_activity(stream_id: int, epoch: int, header_uri: str) -> Activity | None:
    """None where it cannot be read, or is another epoch's."""
    try:
        path, _ = region_path(header_uri)
    except NotARegion:
        return None
    found = _CANONICAL.search(str(path))
    if found is None or (int(found[1]), int(found[2])) != (stream_id, epoch):
        return None
    try:
        block = _first_bytes(str(path))
    except OSError:
        return None
    if block is None or len(block) < _SUPERBLOCK_BYTES:
        return None
    magic_at, epoch_at, activity_at = _offsets()
    magic, said, activity_ns = (
        struct.unpack_from("<Q", block, at)[0] for at in (magic_at, epoch_at, activity_at)
    )
    return Activity(stream_id, epoch, activity_ns) if (magic, said) == (MAGIC, epoch) else None


def _first_bytes(path: str) -> bytes | None:
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.pread(descriptor, _SUPERBLOCK_BYTES, 0)
    finally:
        os.close(descriptor)


@cache
def _offsets() -> tuple[int, int, int]:
    fields = {one.name: one.offset for one in ShmRegionSuperblock.layout().encoded_fields}
    return fields["magic"], fields["epoch"], fields["activityTimestampNs"]
