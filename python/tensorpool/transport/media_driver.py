"""Aeron's media driver inside this process.

What a media driver says of itself in its mark file, `cnc.dat`, without being its client.

The layout is Aeron's own, the same for its C and Java drivers. Only read, and never mapped: the file may be
removed or cut short at any time.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .. import _native
from ..errors import ForkedError, MediaDriverError
from ..state_dir import state_dir


def default_aeron_dir() -> str:
    """`$AERON_DIR` as everywhere in Aeron, else Aeron's own default for this user."""
    return os.environ.get("AERON_DIR") or _native.default_aeron_dir()


def embed_lock_path(aeron_dir: str) -> Path:
    """The lock that the process embedding a driver in `aeron_dir` holds."""
    digest = hashlib.sha256(str(Path(aeron_dir).absolute()).encode()).hexdigest()[:16]
    return state_dir("locks") / f"media-driver-{digest}.lock"


class MediaDriver(_native.MediaDriver):
    """A media driver that runs in this process until closed.

    with tp.MediaDriver("/dev/shm/aeron-lab") as driver:
        ...                                   # others attach with aeron_dir=driver.aeron_dir

    Its directory is private to the user, and gone after the close. A driver that is running there already
    is an error that says who runs it; what a dead one left is removed.
    """

    def __new__(
        cls,
        aeron_dir: str | Path | None = None,
        *,
        dedicated_threads: bool = False,
        idle_strategy: str = "backoff",
        ipc_term_length: int = 4 << 20,
        dir_mode: int = 0o700,
        driver_timeout: float = 5.0,
    ) -> Self:
        directory = str(aeron_dir or default_aeron_dir())
        return super().__new__(
            cls,
            aeron_dir=directory,
            lock_path=embed_lock_path(directory),
            dedicated_threads=dedicated_threads,
            idle_strategy=idle_strategy,
            ipc_term_length=ipc_term_length,
            dir_mode=dir_mode,
            driver_timeout_ms=int(driver_timeout * 1000),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            self.close()


_META: Final = struct.Struct("<iiiiiiqqq")
# The mark file's own fields take two cache lines; the ring of commands to the driver follows them. Behind
# the ring stand its positions, and among them when its reader, the driver's conductor, last looked.
_META_BYTES: Final = 128
_TRAILER_BYTES: Final = 768
_HEARTBEAT: Final = 640
_MAX_SAMPLES: Final = 25


@dataclass(frozen=True, slots=True)
class MarkFile:
    """The fields of a mark file that tell who wrote it."""

    path: Path
    pid: int
    started_ms: int
    client_liveness_timeout_ns: int
    owner_uid: int
    mode: int
    """Permission bits of the directory."""
    heartbeat_ms: int
    """When the driver last gave a sign of life, by the wall clock. Negative: it ended in good order."""

    def age_s(self, wall_ns: int) -> float:
        return wall_ns / 1e9 - self.heartbeat_ms / 1e3

    def is_in_use(self) -> bool:
        """Whether the process that wrote it still has it mapped. False too if that may not be seen.

        Its number alone proves nothing: another process may have it by now.
        """
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                return any(line.rstrip("\n").endswith(f" {self.path.absolute()}") for line in maps)
        except OSError:
            return False


def read_mark_file(aeron_dir: str | Path) -> MarkFile | None:
    """None where no media driver ever was, or it is only just starting. Raises MediaDriverError if the file
    is there and may not, or cannot, be read."""
    directory = Path(aeron_dir)
    path = directory / "cnc.dat"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MediaDriverError(f"{path}: {error.strerror}", aeron_dir=str(aeron_dir)) from None
    try:
        head = os.pread(fd, _META.size, 0)
        if len(head) < _META.size:
            return None
        version, commands, _, _, _, _, liveness, started, pid = _META.unpack(head)
        if version == 0:
            return None
        status = os.fstat(fd)
        if commands < _TRAILER_BYTES or _META_BYTES + commands > status.st_size:
            raise MediaDriverError(f"{path} is no mark file of a media driver", aeron_dir=str(aeron_dir))
        beat = os.pread(fd, 8, _heartbeat_at(commands))
        return MarkFile(
            path=path,
            pid=pid,
            started_ms=started,
            client_liveness_timeout_ns=liveness,
            owner_uid=status.st_uid,
            mode=directory.stat().st_mode & 0o7777,
            heartbeat_ms=int.from_bytes(beat, "little", signed=True),
        )
    except OSError as error:
        raise MediaDriverError(f"{path}: {error.strerror}", aeron_dir=str(aeron_dir)) from None
    finally:
        os.close(fd)


def measure_timer_interval(
    path: Path,
    *,
    patience: float = 2.5,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Seconds between two looks of a media driver at its timers: the heartbeat is written at each.

    The setting itself stands nowhere. None if the heartbeat did not move twice in time. Heartbeats count
    milliseconds, so one of 2 ms is seen as 1 to 3 ms.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        commands = _META.unpack(os.pread(fd, _META.size, 0))[1]
        seen: list[int] = []
        deadline = now() + patience
        while len(seen) < _MAX_SAMPLES and now() < deadline:
            beat = int.from_bytes(os.pread(fd, 8, _heartbeat_at(commands)), "little", signed=True)
            if not seen or beat != seen[-1]:
                seen.append(beat)
            # An interval of half a second or more is known once it was seen: there is no need for 25.
            if len(seen) >= 3 and seen[-1] - seen[1] >= 400:
                break
            sleep(0.0005)
    except (OSError, struct.error):
        return None
    finally:
        os.close(fd)
    # The first one may have stood there for a while: whole intervals begin with the second.
    if len(seen) < 3:
        return None
    return (seen[-1] - seen[1]) / 1e3 / (len(seen) - 2)


def _heartbeat_at(commands_bytes: int) -> int:
    return _META_BYTES + commands_bytes - _TRAILER_BYTES + _HEARTBEAT
