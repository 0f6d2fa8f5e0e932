"""The connection to a media driver: conductor, stream ids and periods, which every role needs to use Aeron.

The native conductor thread owns the Aeron client. The objects made here (subscriptions, publications and
mailboxes) get their Aeron handles from that thread, some milliseconds after they are made.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from .. import _native
from ..errors import ConfigError, MediaDriverUnavailable
from .channels import SHARED_CHANNEL, ServiceStreams, StreamAddress, StreamIds, untethered
from .channels import tethered as tethered_channel
from .media_driver import MARK_FILE, embed_lock_path, network_driver_command

READY_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.001

Stream: TypeAlias = StreamAddress | int
"""A stream on its channel, or the id of a stream on `aeron:ipc`."""


class AeronHandle(Protocol):
    """Anything whose Aeron handle is registered by the conductor."""

    @property
    def is_ready(self) -> bool:
        """Whether the media driver has answered."""


_REAL_TIME: Final = "fifo"
_PRIORITY: Final = re.compile(r"(normal)|(nice):(-?\d+)|(fifo):(\d+)", re.ASCII)
_PRIORITY_LIMITS: Final = {"nice": (-20, 19), _REAL_TIME: (1, 99)}
_T = TypeVar("_T")


def priority_fault(priority: str) -> str | None:
    """Why a text names no priority; None if it does."""
    kind, level = _parse_priority(priority)
    least, most = _PRIORITY_LIMITS.get(kind, (0, 0))
    if kind and least <= level <= most:
        return None
    return "use normal, nice:-20 to nice:19 (lower goes first), or fifo:1 to fifo:99 (higher goes first)"


def is_real_time(priority: str | None) -> bool:
    """Whether threads of this priority run before all others, as long as they like. None: it is not known."""
    return priority is not None and _parse_priority(priority)[0] == _REAL_TIME


def _parse_priority(priority: str) -> tuple[str, int]:
    """Kind and level; an empty kind if the text names none."""
    match = _PRIORITY.fullmatch(priority)
    if match is None:
        return "", 0
    kind, _, level = priority.partition(":")
    return kind, int(level or 0)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Cores and priority of threads. The default changes nothing."""

    cpu_affinity: tuple[int, ...] = ()
    """The cores that the threads may use. Empty: those of the process."""
    priority: str = "normal"
    """`normal`, `nice:-5`, or `fifo:10` for real time."""

    def apply(self) -> None:
        """Applies it to the calling thread, and so to the threads that it starts. Raises ConfigError."""
        if self.cpu_affinity:
            self._set_affinity()
        kind, level = _parse_priority(self.priority)
        try:
            if kind == _REAL_TIME:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(level))
            elif kind == "nice":
                os.setpriority(os.PRIO_PROCESS, 0, level)
        except PermissionError:
            limit, unit, needed = _priority_limits(kind, level)
            raise ConfigError(
                f"priority {self.priority}: the system does not allow it to this process (ulimit -{limit} is "
                f"too low); raise the limit to {needed} in /etc/security/limits.conf or with {unit}={needed} "
                "in the systemd unit, or give the interpreter the right: setcap cap_sys_nice+ep "
                f"{os.path.realpath(sys.executable)}"
            ) from None

    def _set_affinity(self) -> None:
        cores, before = set(self.cpu_affinity), os.sched_getaffinity(0)
        with suppress(OSError, ValueError, OverflowError):
            os.sched_setaffinity(0, cores)
        # The kernel leaves out cores that are not there or not allowed, and refuses only if none is left.
        if os.sched_getaffinity(0) != cores:
            raise ConfigError(
                f"cpu_affinity {sorted(cores)}: this process may use the cores {sorted(before)}; choose of "
                "these, or allow others (taskset, AllowedCPUs= of systemd, the cpuset of the container)"
            )

    def start(self, start_threads: Callable[[], _T]) -> _T:
        """Calls a function that starts threads: they have this scheduling, and the caller keeps its own."""
        if self == Scheduling():
            return start_threads()
        result: Future[_T] = Future()

        def run() -> None:
            try:
                self.apply()
                result.set_result(start_threads())
            except BaseException as error:
                result.set_exception(error)

        # A thread of its own: one that has lowered its priority may not be allowed to raise it again.
        thread = threading.Thread(target=run, name="tp-scheduling")
        thread.start()
        thread.join()
        return result.result()


def _priority_limits(kind: str, level: int) -> tuple[str, str, int]:
    """The resource limit of a priority: its letter of `ulimit`, its name in systemd, and the value needed."""
    return ("r", "LimitRTPRIO", level) if kind == _REAL_TIME else ("e", "LimitNICE", 20 - level)


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """The state of the media driver for UDP channels."""

    connected: bool
    connections: int
    """How often it was connected: once, and once more after each restart."""
    dir: str | None
    """Its directory. None: no UDP channel was opened yet."""
    pid: int | None
    """Its process, if this program started it."""
    last_error: str | None


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a connection needs to know before it is opened."""

    aeron_dir: str
    embed_media_driver: bool
    aeron_dir_mode: int
    """Permission bits of the directory of an embedded media driver."""
    allowed_base_dirs: tuple[Path, ...]
    """Announced regions are mapped only below these directories."""
    stream_ids: StreamIds
    services: ServiceStreams
    connect_timeout_s: float
    driver_timeout_s: float
    """A media driver without activity for this long is taken to be dead."""
    announce_period_ns: int
    report_period_ns: int
    network_dir: str | None = None
    """Directory of the media driver for UDP channels. None: one in a process of its own, started when the
    first UDP channel is opened."""
    media_driver_idle: str = "rest"
    """How the threads of an embedded media driver wait."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    """Cores and priority of the conductor, of Aeron's client, and of an embedded media driver."""
    is_realtime_synced: bool = False
    """Whether announces, activity and frames have the time of a synchronised wall clock."""
    needs_driver: bool = False
    """Whether the connection is of no use without a running SHM driver, which usually has a media driver."""

    @property
    def remedy(self) -> str:
        """What a user can do if no media driver answers."""
        start = f"start one (tensorpool.MediaDriver({self.aeron_dir!r}) or aeronmd)"
        if self.embed_media_driver:
            return f"check that {self.aeron_dir} and its filesystem have space (`tensorpool doctor`)"
        if self.needs_driver:
            command = f"tensorpool driver --aeron-dir {self.aeron_dir}"
            return f"start both drivers with `{command}`, or check aeron_dir"
        return f"{start}, check aeron_dir, or let open() embed one with media_driver='auto'"


class Connection:
    """One Aeron client of this process, and the streams and periods that all its users share."""

    def __init__(
        self,
        conductor: _native.Conductor,
        *,
        aeron_dir: str,
        stream_ids: StreamIds,
        services: ServiceStreams,
        announce_period_ns: int,
        report_period_ns: int,
    ) -> None:
        self.conductor = conductor
        self.aeron_dir = aeron_dir
        self.stream_ids = stream_ids
        self.services = services
        self.announce_period_ns = announce_period_ns
        """Period of announces; a context replaces it by the period that its driver reports."""
        self.report_period_ns = report_period_ns
        """Period of ConsumerHello, QoS reports and status reports."""

    @classmethod
    def open(cls, options: ConnectionOptions) -> Connection:
        """Starts a conductor and waits until it is connected. Raises MediaDriverUnavailable.

        A directory that cannot become usable is refused at once; else a media driver may start meanwhile.
        """
        fault = _directory_fault(options.aeron_dir, creates=options.embed_media_driver)
        if fault is not None:
            raise MediaDriverUnavailable(fault, aeron_dir=options.aeron_dir)
        # Its thread starts the others, which inherit its scheduling.
        conductor = options.scheduling.start(
            lambda: _native.Conductor(
                options,
                announce_channel=SHARED_CHANNEL,
                media_driver_lock=embed_lock_path(options.aeron_dir),
                network_command=network_driver_command(
                    options.aeron_dir, mode=options.aeron_dir_mode, timeout_s=options.driver_timeout_s
                ),
                network_lock=None if options.network_dir is None else embed_lock_path(options.network_dir),
            )
        )
        if not conductor.wait_connected(options.connect_timeout_s):
            reason = conductor.status().last_error or "no answer"
            conductor.close()
            raise MediaDriverUnavailable(f"{reason}; {options.remedy}", aeron_dir=options.aeron_dir)
        return cls(
            conductor,
            aeron_dir=options.aeron_dir,
            stream_ids=options.stream_ids,
            services=options.services,
            announce_period_ns=options.announce_period_ns,
            report_period_ns=options.report_period_ns,
        )

    @property
    def connected(self) -> bool:
        """Whether the media driver answers at the moment. The conductor reconnects by itself."""
        return self.conductor.status().connected

    @property
    def embeds_media_driver(self) -> bool:
        """Whether the media driver runs inside this process."""
        return self.conductor.status().embeds_driver

    @property
    def network(self) -> NetworkStatus:
        """The media driver for UDP channels."""
        return NetworkStatus(**self.conductor.network_status().to_json())

    def check_process(self) -> None:
        """Raises ForkedError in a forked child, where no conductor runs."""
        self.conductor.status()

    def subscription(self, stream: Stream, *, tethered: bool = False) -> _native.Subscription:
        """A subscription to `stream`.

        An untethered subscription that is not polled in time loses messages; a tethered one holds back the
        publications of its stream.
        """
        address = _address(stream)
        channel = tethered_channel(address.channel) if tethered else untethered(address.channel)
        return _native.Subscription(self.conductor, channel, address.stream_id)

    def publication(self, stream: Stream) -> _native.Publication:
        """A publication on `stream`."""
        address = _address(stream)
        return _native.Publication(self.conductor, address.channel, address.stream_id)

    def mailbox(
        self, stream: StreamAddress, tags: Sequence[str], *, correlation_high: int | None = None
    ) -> _native.Mailbox:
        """The events with one of `tags` on a stream of the services; without tags, all events.

        `stream` is `services.control_address` or `services.status_address`. Only events whose correlation id
        has these upper 32 bits are kept if `correlation_high` is given.
        """
        return _native.Mailbox(self.conductor, stream.channel, stream.stream_id, tags, correlation_high)

    def wait_ready(self, *handles: AeronHandle, timeout: float = READY_TIMEOUT_S) -> None:
        """Waits until the media driver has registered all handles. Raises MediaDriverUnavailable."""
        deadline = time.monotonic() + timeout
        for handle in handles:
            while not handle.is_ready:
                if time.monotonic() > deadline:
                    raise MediaDriverUnavailable(
                        f"the media driver in {self.aeron_dir} registered no stream: "
                        f"{self._failure_of(handle)}; check that it runs and that its filesystem has space",
                        aeron_dir=self.aeron_dir,
                    )
                time.sleep(_POLL_S)

    def _failure_of(self, handle: AeronHandle) -> str:
        failure: str | None = getattr(handle, "failure", None)
        return failure or self.conductor.status().last_error or "it did not answer"

    def close(self) -> None:
        """Ends the conductor thread, the Aeron client and an embedded media driver."""
        self.conductor.close()


# All that a media driver puts into its directory, as `check_is_ours` of the native module has it.
_MEDIA_DRIVER_FILES: Final = frozenset({MARK_FILE, "loss-report.dat", "publications", "images"})


def _address(stream: Stream) -> StreamAddress:
    return StreamAddress(SHARED_CHANNEL, stream) if isinstance(stream, int) else stream


def _directory_fault(directory: str, *, creates: bool) -> str | None:
    """Why no media driver can be used in `directory`, and what to do; None if one can.

    `creates`: this process creates the directory, and so needs a directory above it that it may write to.
    """
    path = Path(directory)
    hint = "use a directory in shared memory that you may write to, as in aeron_dir='/dev/shm/aeron-lab'"
    existing = next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))
    if not existing.is_dir():
        return f"aeron_dir {directory}: {existing} is not a directory; {hint}"
    owner = existing.stat().st_uid
    if existing == path:
        if not os.access(path, os.R_OK | os.X_OK):
            return (
                f"{directory} belongs to user id {owner}, and you may not enter it; ask its owner for access "
                "(aeron.dir_mode), or use another aeron_dir"
            )
        if creates and not (path / MARK_FILE).exists():
            if not os.access(path, os.W_OK):
                return (
                    f"aeron_dir {directory} belongs to user id {owner}, and you may not write to it; {hint}"
                )
            # A media driver clears its directory when it starts, so it refuses this one.
            if foreign := sorted({entry.name for entry in path.iterdir()} - _MEDIA_DRIVER_FILES):
                return (
                    f"{path / foreign[0]} is no file of a media driver, and would be deleted; use a "
                    f"directory of its own, as in aeron_dir='{path / 'aeron'}'"
                )
    elif creates:
        # Tried, because the permissions say nothing about /proc, a read-only filesystem or a full one.
        probe = existing / f".tensorpool-{os.getpid()}-{time.monotonic_ns()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            return f"aeron_dir {directory} cannot be created in {existing} ({reason}); {hint}"
    return None
