"""Removes the oldest segments by size and age, and never what a reader's lease still covers.

A reader's claim on what it has still to read: a small file with a deadline, which retention respects.

A reader that dies stops renewing, and its claim ends by itself.

A replay's claim on what it has yet to play: a reader's lease, where the recording can be written to.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..durable import make_directories, replace_file, sync_directory, write_errors
from ..errors import ClosedError, WriteFailed
from . import layout, manifest, manifest_store
from .frame import Cursor
from .layout import check_root
from .manifest import Kind
from .manifest_store import locked

DEFAULT_TTL_NS: Final = 60_000_000_000
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """What a lease file says."""

    path: Path
    holder: str
    deadline_ns: int
    """By the time of day, so that it holds for readers on other hosts too."""
    cursors: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    """Stream → (epoch, sequence) behind which everything is claimed; None claims all of the stream."""
    claims_all: bool = False
    """Whether it cannot be read: it then stands for everything, until someone removes it."""

    def covers(self, stream_id: int, epoch: int, last_seq: int) -> bool:
        """Whether a segment that ends there holds something that is claimed."""
        if self.claims_all:
            return True
        if stream_id not in self.cursors:
            return False
        cursor = self.cursors[stream_id]
        return cursor is None or (epoch, last_seq) > cursor


class ReaderLease:
    """Keeps retention from what lies behind the given cursors, until its time is up."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        cursors: Iterable[Cursor | int],
        *,
        holder: str,
        ttl_ns: int = DEFAULT_TTL_NS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`cursors` are places behind which everything is needed, or stream ids of which all is."""
        self._root = Path(root)
        self._holder = holder
        self._ttl_ns = ttl_ns
        self._clock = clock
        self._cursors: dict[int, tuple[int, int] | None] = {}
        self._released = False
        check_root(self._root)
        directory = self._root / layout.LEASES_DIR
        self.path = directory / f"{secrets.token_hex(8)}{_SUFFIX}"
        self._put(cursors)
        with write_errors(directory), locked(self._root):
            # Under the lock: retention has either finished, and the manifest says so, or sees this lease.
            for parent in make_directories(directory, above=self._root):
                sync_directory(parent)
            self._write()

    def _put(self, cursors: Iterable[Cursor | int]) -> None:
        for one in cursors:
            if isinstance(one, Cursor):
                self._cursors[one.stream_id] = one.epoch, one.seq
            else:
                self._cursors[one] = None

    def _write(self) -> None:
        self.deadline_ns = self._clock.wall_ns() + self._ttl_ns
        content = {
            "holder": self._holder,
            "deadline_ns": str(self.deadline_ns),
            "cursors": {
                str(stream): None if cursor is None else {"epoch": str(cursor[0]), "seq": str(cursor[1])}
                for stream, cursor in self._cursors.items()
            },
        }
        replace_file(self.path, json.dumps(content).encode() + b"\n")

    def renew(self, cursors: Iterable[Cursor | int] = ()) -> None:
        """Starts the time anew, and lets go of what lies before the new cursors."""
        if self._released:
            raise ClosedError("the lease was released")
        self._put(cursors)
        with write_errors(self.path):
            self._write()

    def release(self) -> None:
        self._released = True
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def read_leases(root: Path) -> list[LeaseClaim]:
    """All leases, also those whose time is up."""
    found = []
    directory = root / layout.LEASES_DIR
    for path in sorted(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else ():
        try:
            found.append(_parse(path, json.loads(path.read_bytes())))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, KeyError, AttributeError):
            found.append(LeaseClaim(path, "unreadable", (1 << 63) - 1, claims_all=True))
    return found


def _parse(path: Path, content: Any) -> LeaseClaim:
    cursors = {
        int(stream): None if cursor is None else (int(cursor["epoch"]), int(cursor["seq"]))
        for stream, cursor in content["cursors"].items()
    }
    return LeaseClaim(path, str(content["holder"]), int(content["deadline_ns"]), cursors)


@dataclass(slots=True)
class RetentionResult:
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
) -> RetentionResult:
    """Removes sealed segments, oldest first, until the recording is at most so large and so old.

    Age is that of a segment's newest frame. Of each stream the beginning goes, never something from the
    middle; open segments stay.
    """
    root = Path(root)
    check_root(root)
    now_ns = clock.wall_ns()
    with manifest_store.locked(root):
        current = manifest_store.load_or_rebuild(root)
        leases = _in_force(root, now_ns)
        done = RetentionResult(kept_bytes=_size(root, current))
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
            manifest_store.append_locked(root, *manifest_store.removed(going))
            done.removed = [manifest.name_of(one) for one in going]
            for name in done.removed:
                name.sealed(root).unlink(missing_ok=True)
            manifest_store.compact_locked(root, manifest.load(root))
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


_LOG = logging.getLogger(__name__)
# A third of the time that a lease lasts.
_PERIOD_NS: Final = 20_000_000_000


class LeaseKeeper:
    """Keeps retention from the streams that are played. A recording that is read-only has no retention."""

    def __init__(self, root: Path, stream_ids: Iterable[int], clock: Clock) -> None:
        self._lease: ReaderLease | None = None
        self._next_ns = clock.monotonic_ns() + _PERIOD_NS
        try:
            self._lease = ReaderLease(root, stream_ids, holder="replay", clock=clock)
        except (WriteFailed, OSError) as error:
            _LOG.info("%s is played without a lease: %s", root, error)

    def keep(self, now_ns: int, played: Iterable[Cursor]) -> None:
        """Renews it when that is due, and lets go of what was played."""
        if self._lease is None or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _PERIOD_NS
        try:
            self._lease.renew(played)
        except (WriteFailed, OSError) as error:
            _LOG.warning("the lease on the recording could not be renewed: %s", error)

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
