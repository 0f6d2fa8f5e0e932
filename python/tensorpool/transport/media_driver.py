"""Media drivers: embedded, in a process of its own for UDP, and the mark file `cnc.dat` of any.

The layout of the mark file is Aeron's, the same for its C and Java drivers. The file is read and never
mapped, because it may be removed or truncated at any time.

A datagram reaches the code of the media driver that has the channel, and a fault there ends its process. So
UDP channels never share a process with an SHM driver or with a user's program. A conductor starts this
process when the first UDP channel is opened, and starts it again when it ends. It ends with its parent.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from .. import _native
from ..durable import state_dir
from ..errors import ForkedError, LockHeld, MediaDriverBusy, MediaDriverError


def default_aeron_dir() -> str:
    """`$AERON_DIR`, as for all Aeron programs, or Aeron's default for this user."""
    return os.environ.get("AERON_DIR") or _native.default_aeron_dir()


def embed_lock_path(aeron_dir: str) -> Path:
    """The lock file of a process that embeds a media driver in `aeron_dir`."""
    digest = hashlib.sha256(str(Path(aeron_dir).absolute()).encode()).hexdigest()[:16]
    return state_dir("locks") / f"media-driver-{digest}.lock"


@dataclass(frozen=True, slots=True)
class MediaDriverOptions:
    """A media driver to be started, as `_native.MediaDriver` takes it."""

    aeron_dir: str
    lock_path: Path
    """Locked while it runs, so that two processes do not embed one in the same directory."""
    dedicated_threads: bool
    idle_strategy: str
    ipc_term_length: int
    dir_mode: int
    driver_timeout_ms: int
    udp: bool


class MediaDriver(_native.MediaDriver):
    """A media driver that runs in this process until closed.

        with tp.MediaDriver("/dev/shm/aeron-lab") as driver:
            ...    # other programs connect with aeron_dir=driver.aeron_dir

    Its directory is private to the user and removed by the close. The remains of a dead media driver there
    are removed first. All its files have their memory from the start, so that a full filesystem ends no
    process. `ipc_term_length`: terms of IPC publications whose channel sets none; each takes three.
    `idle_strategy` is `rest`, which costs next to nothing when idle, or Aeron's `backoff`, `yield` or `spin`:
    see `[aeron] idle`. With UDP `rest` is `backoff`, because datagrams would wait.

    It refuses UDP channels: a datagram that ends a media driver would end this process with it. `udp=True` is
    for a process that does nothing else, as `tensorpool media-driver`.

    Raises MediaDriverBusy, with the process, if a media driver runs there already.
    """

    def __new__(
        cls,
        aeron_dir: str | Path | None = None,
        *,
        dedicated_threads: bool = False,
        idle_strategy: str = "rest",
        ipc_term_length: int = 1 << 20,
        dir_mode: int = 0o700,
        driver_timeout: float = 5.0,
        udp: bool = False,
    ) -> Self:
        directory = str(aeron_dir or default_aeron_dir())
        options = MediaDriverOptions(
            aeron_dir=directory,
            lock_path=embed_lock_path(directory),
            dedicated_threads=dedicated_threads,
            idle_strategy=idle_strategy,
            ipc_term_length=ipc_term_length,
            dir_mode=dir_mode,
            driver_timeout_ms=int(driver_timeout * 1000),
            udp=udp,
        )
        return super().__new__(cls, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the media driver belongs to the parent process: there is nothing to close.
        with suppress(ForkedError):
            self.close()


MARK_FILE: Final = "cnc.dat"
"""The name of the mark file in the directory of a media driver."""


class _Meta(NamedTuple):
    """The fields at the beginning of a mark file (aeron-client, `CncFileDescriptor`)."""

    version: int
    commands_bytes: int
    """Size of the ring buffer of commands to the driver."""
    client_commands_bytes: int
    counter_labels_bytes: int
    counter_values_bytes: int
    error_log_bytes: int
    client_liveness_timeout_ns: int
    started_ms: int
    pid: int


_META: Final = struct.Struct("<iiiiiiqqq")
# The fields take two cache lines. The ring buffer of commands to the driver follows them, and behind it its
# trailer, which contains the time when its reader, the driver's conductor, last polled it.
_META_BYTES: Final = 128
_TRAILER_BYTES: Final = 768
_HEARTBEAT_OFFSET: Final = 640
_HEARTBEAT_BYTES: Final = 8
_MAX_SAMPLES: Final = 25
_LONG_INTERVALS_MS: Final = 400
_SAMPLE_PERIOD_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class MarkFile:
    """The fields of a mark file that identify its media driver."""

    path: Path
    pid: int
    started_ms: int
    client_liveness_timeout_ns: int
    owner_uid: int
    mode: int
    """Permission bits of the directory."""
    heartbeat_ms: int
    """Time of the driver's last activity by the wall clock. Negative: it has shut down."""

    def age_s(self, wall_ns: int) -> float:
        """Seconds since the driver's last activity."""
        return wall_ns / 1e9 - self.heartbeat_ms / 1e3

    def is_in_use(self) -> bool:
        """Whether the process that wrote the file has it mapped; False if this user may not know.

        The process id alone proves nothing: another process may have it by now.
        """
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                return any(line.rstrip("\n").endswith(f" {self.path.absolute()}") for line in maps)
        except OSError:
            return False


def read_mark_file(aeron_dir: str | Path) -> MarkFile | None:
    """The mark file in `aeron_dir`; None if there is none, or its media driver is just starting.

    Raises MediaDriverError if the file cannot be read.
    """
    directory = Path(aeron_dir)
    path = directory / MARK_FILE
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
        meta = _Meta(*_META.unpack(head))
        if meta.version == 0:
            return None
        status = os.fstat(fd)
        if meta.commands_bytes < _TRAILER_BYTES or _META_BYTES + meta.commands_bytes > status.st_size:
            raise MediaDriverError(f"{path} is not a mark file of a media driver", aeron_dir=str(aeron_dir))
        heartbeat = os.pread(fd, _HEARTBEAT_BYTES, _heartbeat_offset(meta.commands_bytes))
        return MarkFile(
            path=path,
            pid=meta.pid,
            started_ms=meta.started_ms,
            client_liveness_timeout_ns=meta.client_liveness_timeout_ns,
            owner_uid=status.st_uid,
            mode=directory.stat().st_mode & 0o7777,
            heartbeat_ms=int.from_bytes(heartbeat, "little", signed=True),
        )
    except OSError as error:
        raise MediaDriverError(f"{path}: {error.strerror}", aeron_dir=str(aeron_dir)) from None
    finally:
        os.close(fd)


def measure_timer_interval(
    path: Path,
    *,
    timeout: float = 2.5,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Seconds between two timer checks of a media driver, measured by its heartbeat.

    The media driver writes its heartbeat at each check and publishes the interval nowhere. None if the
    heartbeat did not change twice within `timeout` seconds. Heartbeats count milliseconds: an interval of
    2 ms is measured as 1 to 3 ms.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        heartbeat_at = _heartbeat_offset(_Meta(*_META.unpack(os.pread(fd, _META.size, 0))).commands_bytes)
        heartbeats: list[int] = []
        deadline = now() + timeout
        while len(heartbeats) < _MAX_SAMPLES and now() < deadline:
            heartbeat = int.from_bytes(os.pread(fd, _HEARTBEAT_BYTES, heartbeat_at), "little", signed=True)
            if not heartbeats or heartbeat != heartbeats[-1]:
                heartbeats.append(heartbeat)
            # A long interval is exact enough after one measurement.
            if len(heartbeats) >= 3 and heartbeats[-1] - heartbeats[1] >= _LONG_INTERVALS_MS:
                break
            sleep(_SAMPLE_PERIOD_S)
    except (OSError, struct.error):
        return None
    finally:
        os.close(fd)
    # The first heartbeat may be old: whole intervals begin with the second.
    if len(heartbeats) < 3:
        return None
    return (heartbeats[-1] - heartbeats[1]) / 1e3 / (len(heartbeats) - 2)


def _heartbeat_offset(commands_bytes: int) -> int:
    return _META_BYTES + commands_bytes - _TRAILER_BYTES + _HEARTBEAT_OFFSET


_MAX_DRIVERS: Final = 256
"""Programs of one media driver directory that use UDP at the same time."""
_PARENT_CHECK_S: Final = 0.5
# The package is found where it was found here, whatever the working directory.
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from tensorpool.transport.media_driver import main; main(sys.argv[1:])"
)


def network_driver_command(aeron_dir: str, *, mode: int, timeout_s: float) -> list[str]:
    """The command line of the process; empty if this interpreter has no program file to start."""
    if not sys.executable:
        return []
    root = str(Path(__file__).parents[2])
    return [sys.executable, "-c", _START, root, aeron_dir, str(mode), str(timeout_s)]


def network_dir(aeron_dir: str, number: int) -> str:
    """The directory of one of the media drivers for UDP beside `aeron_dir`."""
    return f"{aeron_dir}-udp-{number}"


def network_dirs(aeron_dir: str) -> list[str]:
    """The directories of media drivers for UDP beside `aeron_dir`, of live ones and of dead ones."""
    found = (network_dir(aeron_dir, number) for number in range(_MAX_DRIVERS))
    return [directory for directory in found if os.path.isdir(directory)]


def _remove_leftovers(aeron_dir: str) -> None:
    """Removes the directories that killed media drivers for UDP have left. Their memory is not small."""
    for directory in network_dirs(aeron_dir):
        with suppress(LockHeld, OSError, MediaDriverError):
            # With the lock no media driver starts there meanwhile.
            lock = _native.FileLock(embed_lock_path(directory), f"process {os.getpid()}")
            try:
                mark = read_mark_file(directory)
                if mark is not None and mark.owner_uid == os.getuid() and not mark.is_in_use():
                    shutil.rmtree(directory)
            finally:
                lock.release()


def main(arguments: list[str]) -> None:
    """Runs a media driver until the parent ends or closes the standard input."""
    aeron_dir, mode, timeout_s = arguments
    parent = os.getppid()
    # A service manager signals all processes of a service. The parent needs this one until it has closed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        driver = _start(aeron_dir, int(mode), float(timeout_s))
    except MediaDriverError as error:
        sys.exit(f"media driver for UDP: {error}")
    with driver:
        print(driver.aeron_dir, flush=True)
        _remove_leftovers(aeron_dir)
        while os.getppid() == parent:
            if select.select([sys.stdin], [], [], _PARENT_CHECK_S)[0] and not os.read(0, 1):
                break


def _start(aeron_dir: str, mode: int, timeout_s: float) -> MediaDriver:
    """A media driver in the first directory that no other one uses."""
    for number in range(_MAX_DRIVERS):
        try:
            return MediaDriver(
                network_dir(aeron_dir, number), dir_mode=mode, driver_timeout=timeout_s, udp=True
            )
        except MediaDriverBusy:
            continue
    raise MediaDriverError(
        f"{_MAX_DRIVERS} programs use UDP beside {aeron_dir}; let them share one: tensorpool media-driver",
        aeron_dir=aeron_dir,
    )
