"""A reader's claim on what it has still to read: a small file with a deadline, which retention respects.

A reader that dies stops renewing, and its claim ends by itself.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..durable import make_directories, replace_file, sync_directory, write_errors
from ..errors import ClosedError
from . import layout
from .frame import Cursor
from .manifest_writer import locked
from .root import check_root

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
