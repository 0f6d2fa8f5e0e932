"""Removes the oldest segments by size and age, and never what a reader's lease still covers."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from . import layout, manifest, manifest_writer
from .leases import LeaseClaim, read_leases
from .manifest import Kind
from .root import check_root


@dataclass(slots=True)
class Retained:
    """What a round of retention did."""

    removed: list[layout.SegmentName] = field(default_factory=list)
    removed_bytes: int = 0
    kept_bytes: int = 0
    held: list[layout.SegmentName] = field(default_factory=list)
    """Segments that would have gone, had no lease covered them."""
    holders: list[str] = field(default_factory=list)


def retain(
    root: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    max_age_ns: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Retained:
    """Removes sealed segments, oldest first, until the recording is at most so large and so old.

    Age is that of a segment's newest frame. Of each stream the beginning goes, never something from the
    middle; open segments stay.
    """
    root = Path(root)
    check_root(root)
    now_ns = clock.wall_ns()
    with manifest_writer.locked(root):
        current = manifest_writer.load_or_rebuild(root)
        leases = _in_force(root, now_ns)
        done = Retained(kept_bytes=_size(root, current))
        streams: dict[int, deque[Any]] = {}
        for one in current.segments:
            if one["kind"] == Kind.SEALED:
                streams.setdefault(int(one["stream_id"]), deque()).append(one)
        going = []
        while streams:
            stream_id = min(streams, key=lambda stream: int(streams[stream][0]["last_time_ns"]))
            oldest = streams[stream_id][0]
            too_large = max_bytes is not None and done.kept_bytes > max_bytes
            too_old = max_age_ns is not None and int(oldest["last_time_ns"]) < now_ns - max_age_ns
            if not too_large and not too_old:
                break
            holders = [lease.holder for lease in leases if _covers(lease, oldest)]
            if holders:
                done.held.append(manifest.name_of(oldest))
                done.holders = sorted({*done.holders, *holders})
                # What follows in this stream is claimed as well.
                del streams[stream_id]
                continue
            streams[stream_id].popleft()
            if not streams[stream_id]:
                del streams[stream_id]
            going.append(oldest)
            done.kept_bytes -= int(oldest["size_bytes"])
            done.removed_bytes += int(oldest["size_bytes"])
        if going:
            # Said first, done second: a crash in between leaves files that the next snapshot removes.
            manifest_writer.append_locked(root, *manifest_writer.removed(going))
            done.removed = [manifest.name_of(one) for one in going]
            for name in done.removed:
                name.sealed(root).unlink(missing_ok=True)
            manifest_writer.compact_locked(root, manifest.load(root))
    return done


def _covers(lease: LeaseClaim, one: Any) -> bool:
    return lease.covers(int(one["stream_id"]), int(one["epoch"]), int(one["last_seq"]))


def _in_force(root: Path, now_ns: int) -> list[LeaseClaim]:
    """The leases that count; files of the others go."""
    found = []
    for lease in read_leases(root):
        if lease.deadline_ns >= now_ns:
            found.append(lease)
        else:
            lease.path.unlink(missing_ok=True)
    return found


def _size(root: Path, current: manifest.Manifest) -> int:
    total = int(current.segments["size_bytes"].sum())
    for one in current.open_segments():
        try:
            total += manifest.name_of(one).partial(root).stat().st_size
        except FileNotFoundError:
            continue
    return total
