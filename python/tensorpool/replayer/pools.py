"""How large the pools of a played stream are: as they were, or as the frames are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import pyarrow.compute as pc

from .. import sbe
from ..errors import CodecError
from ..recording import Recording

DEFAULT_NSLOTS: Final = 16
_SMALLEST, _LARGEST = 64, 1 << 31


def stride_for(nbytes: int) -> int:
    """The pool that a payload of this size needs."""
    return max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())


def announced(recording: Recording, stream_ids: Iterable[int]) -> dict[int, sbe.ShmPoolAnnounce]:
    """The last layout that each stream was announced with, as far as that was recorded."""
    table = recording.table("announces")
    found: dict[int, sbe.ShmPoolAnnounce] = {}
    for stream_id in stream_ids:
        # From the end: the table may be as long as the recording.
        for message in reversed(table.filter(pc.field("stream_id") == stream_id)["message"]):
            try:
                decoded = sbe.decode(message.as_py())
            except CodecError:
                continue
            if isinstance(decoded, sbe.ShmPoolAnnounce):
                found[stream_id] = decoded
                break
    return found


def pools_for(announce: sbe.ShmPoolAnnounce | None, records: Any, first_bytes: int) -> list[int]:
    """Strides for a stream: those it was announced with, and one for the largest frame that is known of.

    Frames are not all looked at for this: a larger one that comes later makes the stream begin anew.
    """
    strides = set()
    if announce is not None:
        sizes = (pool.stride_bytes for pool in announce.payload_pools)
        strides = {size for size in sizes if _SMALLEST <= size <= _LARGEST and size & (size - 1) == 0}
    rows = records["rows"]
    means = records["payload_bytes"][rows > 0] / rows[rows > 0]
    needed = stride_for(max(first_bytes, math.ceil(means.max(initial=0))))
    if not strides or max(strides) < needed:
        strides.add(needed)
    return sorted(strides)


def slots_for(announce: sbe.ShmPoolAnnounce | None, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    slots = announce.header_nslots if announce is not None else DEFAULT_NSLOTS
    return slots if 0 < slots <= 1 << 20 and slots & (slots - 1) == 0 else DEFAULT_NSLOTS
