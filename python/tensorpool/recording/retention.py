"""Retention by size and age, and the reader leases that it respects.

A reader lease is a small file with a deadline: retention keeps the segments that its reader has yet to read.
A reader that crashes stops renewing its lease, and the lease expires.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..durable import JsonState, make_directories, sync_directory, write_errors
from ..errors import ClosedError, RecordingError
from ..units import INT64_LIMIT
from . import layout, manifest, manifest_store
from .archive import proven_segments
from .frame import Cursor
from .layout import check_root
from .manifest import RecordKind
from .manifest_store import locked
from .storage import archive_of

DEFAULT_TTL_NS: Final = 60_000_000_000
_SUFFIX: Final = ".json"
_NO_DEADLINE_NS: Final = INT64_LIMIT - 1
# A lease is renewed three times within its lifetime: two renewals may fail.
_RENEWALS_PER_TTL: Final = 3
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseFile:
    """The content of a lease file."""

    path: Path
    holder: str
    deadline_ns: int
    """Wall-clock time, so that it is valid for readers on other hosts too."""
    cursors: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    """Stream → (epoch, sequence) behind which all frames are claimed; None claims the whole stream."""
    claims_all: bool = False
    """Whether the file is unreadable: it then claims everything until it is removed by hand."""

    def covers(self, stream_id: int, epoch: int, last_seq: int) -> bool:
        """Whether a segment with this last frame has claimed frames."""
        if self.claims_all:
            return True
        if stream_id not in self.cursors:
            return False
        cursor = self.cursors[stream_id]
        return cursor is None or (epoch, last_seq) > cursor


def _position_json(epoch: int, seq: int) -> dict[str, str]:
    return {"epoch": str(epoch), "seq": str(seq)}


class ReaderLease:
    """A lease on the frames behind the given cursors. Retention keeps them until it expires."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        cursors: Iterable[Cursor | int],
        *,
        holder: str,
        ttl_ns: int = DEFAULT_TTL_NS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`cursors` are the positions behind which frames are needed, or stream ids for whole streams."""
        self._root = Path(root)
        self._holder = holder
        self._ttl_ns = ttl_ns
        self._clock = clock
        self._cursors: dict[int, tuple[int, int] | None] = {}
        self._released = False
        check_root(self._root)
        directory = self._root / layout.LEASES_DIR
        self.path = directory / f"{secrets.token_hex(8)}{_SUFFIX}"
        self._move(cursors)
        with write_errors(directory), locked(self._root):
            # Under the lock: retention has either finished and updated the manifest, or sees this lease.
            for parent in make_directories(directory, above=self._root):
                sync_directory(parent)
            self._write()

    def _move(self, cursors: Iterable[Cursor | int]) -> None:
        for cursor in cursors:
            if isinstance(cursor, Cursor):
                self._cursors[cursor.stream_id] = cursor.epoch, cursor.seq
            else:
                self._cursors[cursor] = None

    def _write(self) -> None:
        self.deadline_ns = self._clock.wall_ns() + self._ttl_ns
        content = {
            "holder": self._holder,
            "deadline_ns": str(self.deadline_ns),
            "cursors": {
                str(stream): None if position is None else _position_json(*position)
                for stream, position in self._cursors.items()
            },
        }
        JsonState(self.path).save(content)

    def renew(self, cursors: Iterable[Cursor | int] = ()) -> None:
        """Extends the lease by its full time. Frames up to the new cursors are no longer claimed."""
        if self._released:
            raise ClosedError("the lease was released")
        self._move(cursors)
        self._write()

    def release(self) -> None:
        """Removes the lease."""
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


def read_leases(root: Path) -> list[LeaseFile]:
    """All leases, expired ones too."""
    leases = []
    directory = root / layout.LEASES_DIR
    for path in sorted(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else ():
        try:
            leases.append(_parse_lease_file(path, json.loads(path.read_bytes())))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, KeyError, AttributeError):
            leases.append(LeaseFile(path, "unreadable", _NO_DEADLINE_NS, claims_all=True))
    return leases


def _parse_lease_file(path: Path, content: Any) -> LeaseFile:
    cursors = {
        int(stream): None if cursor is None else (int(cursor["epoch"]), int(cursor["seq"]))
        for stream, cursor in content["cursors"].items()
    }
    return LeaseFile(path, str(content["holder"]), int(content["deadline_ns"]), cursors)


class LeaseKeeper:
    """Keeps a reader lease alive: with `poll` in the caller's duty cycle, or in a thread after `start`.

    A recording that cannot be written to can still be read, so a lease that cannot be obtained is logged and
    not raised.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        holder: str,
        ttl_ns: int = DEFAULT_TTL_NS,
        clock: Clock = SYSTEM_CLOCK,
        missing_level: int = logging.WARNING,
    ) -> None:
        """`missing_level` is the log level for a lease that cannot be obtained."""
        self._root = Path(root)
        self._holder = holder
        self._ttl_ns = ttl_ns
        self._clock = clock
        self._missing_level = missing_level
        self._lease: ReaderLease | None = None
        self._due_ns = 0
        self._is_failing = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, cursors: Iterable[Cursor | int]) -> None:
        """Obtains the lease, or moves it to new cursors: frames up to them are no longer claimed."""
        with self._lock:
            self._due_ns = self._clock.monotonic_ns() + self._ttl_ns // _RENEWALS_PER_TTL
            if self._lease is not None:
                self._renew(self._lease, cursors)
                return
            try:
                self._lease = ReaderLease(
                    self._root, cursors, holder=self._holder, ttl_ns=self._ttl_ns, clock=self._clock
                )
                self._is_failing = False
            except (OSError, RecordingError) as error:
                self._log_failure(self._missing_level, error)

    def poll(self, now_ns: int, cursors: Iterable[Cursor | int]) -> None:
        """Renews the lease with new cursors if that is due. `now_ns` is monotonic time."""
        if self._lease is not None and now_ns >= self._due_ns:
            self.hold(cursors)

    def start(self) -> None:
        """Renews the lease in a thread until `release`, for callers that are busy longer than it lasts.

        The thread dies with the process, and the lease then expires.
        """
        if self._thread is None and self._lease is not None:
            self._thread = threading.Thread(target=self._run, name="reader-lease", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._ttl_ns / 1e9 / _RENEWALS_PER_TTL):
            with self._lock:
                if self._lease is not None:
                    self._renew(self._lease, ())

    def _renew(self, lease: ReaderLease, cursors: Iterable[Cursor | int]) -> None:
        try:
            lease.renew(cursors)
            self._is_failing = False
        except ClosedError:
            return
        except (OSError, RecordingError) as error:
            self._log_failure(logging.WARNING, error)

    def _log_failure(self, level: int, error: Exception) -> None:
        # Once per series of failures.
        if not self._is_failing:
            _LOG.log(
                level,
                "no lease on %s, retention may remove frames before they are read: %s",
                self._root,
                error,
            )
        self._is_failing = True

    def release(self) -> None:
        """Ends the thread and removes the lease."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._lease is not None:
                self._lease.release()


@dataclass(slots=True)
class RetentionResult:
    """The removals of one run of retention."""

    removed: list[layout.SegmentName] = field(default_factory=list)
    """Segments that were removed."""
    removed_bytes: int = 0
    """Their size."""
    kept_bytes: int = 0
    """The size of what is left."""
    held: list[layout.SegmentName] = field(default_factory=list)
    """Segments that a lease kept from being removed, or that are not proven to be in the archive."""
    holders: list[str] = field(default_factory=list)
    """Who holds the leases on those segments, or which archive lacks them."""


def apply_retention(
    root: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    max_age_ns: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RetentionResult:
    """Removes sealed segments, oldest first, until the recording is within `max_bytes` and `max_age_ns`.

    The age of a segment is that of its newest frame. Segments are removed from the start of each stream,
    never from the middle; open segments are kept. If the recording has an archive, a segment is kept until
    its upload was read back.
    """
    root = Path(root)
    check_root(root)
    now_ns = clock.wall_ns()
    with manifest_store.locked(root):
        current = manifest_store.load_or_rebuild(root)
        leases = _active_leases(root, now_ns)
        archive = archive_of(root)
        proven = proven_segments(root) if archive is not None else set()
        result = RetentionResult(kept_bytes=_size_bytes(root, current))
        streams: dict[int, deque[Any]] = {}
        for record in current.segments:
            if record["kind"] == RecordKind.SEALED:
                streams.setdefault(int(record["stream_id"]), deque()).append(record)
        to_remove = []
        while streams:
            stream_id = min(streams, key=lambda stream: int(streams[stream][0]["last_time_ns"]))
            oldest = streams[stream_id][0]
            too_large = max_bytes is not None and result.kept_bytes > max_bytes
            too_old = max_age_ns is not None and int(oldest["last_time_ns"]) < now_ns - max_age_ns
            if not too_large and not too_old:
                break
            holders = [lease.holder for lease in leases if _covers(lease, oldest)]
            key = manifest.record_key(oldest), int(oldest["size_bytes"])
            if archive is not None and key not in proven:
                holders.append(f"archive {archive}")
            if holders:
                result.held.append(manifest.segment_name(oldest))
                result.holders = sorted({*result.holders, *holders})
                # The later segments of this stream are claimed as well.
                del streams[stream_id]
                continue
            streams[stream_id].popleft()
            if not streams[stream_id]:
                del streams[stream_id]
            to_remove.append(oldest)
            result.kept_bytes -= int(oldest["size_bytes"])
            result.removed_bytes += int(oldest["size_bytes"])
        if to_remove:
            # The log entry first: a crash after it leaves files that the next snapshot removes.
            manifest_store.append_locked(root, *manifest_store.removal_records(to_remove))
            result.removed = [manifest.segment_name(record) for record in to_remove]
            for name in result.removed:
                name.sealed(root).unlink(missing_ok=True)
                name.index(root).unlink(missing_ok=True)
            manifest_store.compact_locked(root, manifest.load(root))
    return result


def _covers(lease: LeaseFile, record: Any) -> bool:
    return lease.covers(int(record["stream_id"]), int(record["epoch"]), int(record["last_seq"]))


def _active_leases(root: Path, now_ns: int) -> list[LeaseFile]:
    """The leases that have not expired. Removes the files of the others."""
    active = []
    for lease in read_leases(root):
        if lease.deadline_ns >= now_ns:
            active.append(lease)
        else:
            lease.path.unlink(missing_ok=True)
    return active


def _size_bytes(root: Path, current: manifest.Manifest) -> int:
    total = int(current.segments["size_bytes"].sum())
    for record in current.open_segments():
        try:
            total += manifest.segment_name(record).partial(root).stat().st_size
        except FileNotFoundError:
            continue
    return total
