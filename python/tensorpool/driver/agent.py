"""The agent of the driver: control stream → state machine → files, announces, responses; decision log.

The same agent runs as a service and inside a program. One thread owns it and all its state. The storage's
threads do the file work; the conductor's thread sends announces and refreshes activity timestamps.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..discovery.config import DiscoverySettings
from ..errors import ClosedError, ConfigError, RegionRejected, RoleFailed
from ..runtime.agent import AgentFinished
from ..runtime.config import Secret
from ..runtime.counters import GAUGE_TYPE_ID, CounterPublisher, CounterSnapshot
from ..sbe.driver import (
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDriverShutdown,
    ShmLeaseRevoked,
    ShutdownReason,
)
from ..sbe.message import Message
from ..sbe.wire import ResponseCode
from ..service import ServiceAgent
from ..shm.numa import numa_nodes
from ..transport import StreamIds
from ..transport.channels import ServiceStreams
from .actions import (
    Action,
    Announce,
    AssignFiles,
    MakeFiles,
    RemoveFiles,
    SaveProvisions,
    Send,
    Stop,
    Warn,
    Withdraw,
)
from .config import DriverSettings
from .control_stream import ControlStream
from .counters import DriverCounters
from .discovery import EmbeddedDiscovery
from .lock import DriverLock, Holder, check_no_other_driver, driver_counter_label, qualified_namespace
from .plan import Access, Plan
from .requests import RateLimit
from .service import DriverService
from .state import DriverState
from .storage import BaseDirs, Storage, group_id, owner_id

_LOG = logging.getLogger(__name__)
_POLL_LIMIT: Final = 64
# In a flood every message is a request, and takes long. What the requests before it led to must not wait for
# all that has come meanwhile: answers are sent, and files that were made are announced, between two parts.
_MAX_READ_NS: Final = 10_000_000
_MAX_POLLS: Final = 64
_BACKLOG_POLL_LIMIT: Final = 1024
# Together more than the stream's buffer holds: one pass skips the whole backlog.
_MAX_BACKLOG_POLLS: Final = 256
# Decisions that are logged: a flood of requests must not fill the log.
_MAX_LOGGED_PER_SECOND: Final = 100
_MAX_LOGGED_BURST: Final = 5000
_SHUTDOWN_FLUSH_NS: Final = 2_000_000_000
_RETRY_S: Final = 0.001
_SWEEP_NS: Final = 60_000_000_000
# Provisions of a thousand streams in a row must not write the file a thousand times.
_SAVE_NS: Final = 100_000_000
_STORAGE_POLL_S: Final = 0.02
# Announces stop when the duty cycle stalls for this many lease durations: consumers then see a stale epoch.
_STALL_LEASES: Final = 2


def log_decision(message: Message, *, client_id: int | None = None, is_repeat: bool = False) -> None:
    """Logs a decision of the driver. A refusal that the client may retry is not a warning.

    `client_id` is the one of the request that the message answers; None: it could not be read.
    """
    if is_repeat:
        return
    match message:
        case ShmAttachResponse() | ShmAttachResponseR2() as response if response.code is ResponseCode.OK:
            _LOG.info(
                "lease %d of stream %d, epoch %d, granted to %s",
                response.lease_id,
                response.stream_id,
                response.epoch,
                _client_name(client_id),
            )
        case ShmAttachResponse() | ShmAttachResponseR2() as response:
            level = logging.WARNING if response.code is ResponseCode.INTERNAL_ERROR else logging.INFO
            client = _client_name(client_id)
            _LOG.log(level, "%s refused, %s: %s", client, response.code.name, response.error_message)
        case ShmLeaseRevoked() as notice:
            reason = f": {notice.error_message}" if notice.error_message else ""
            _LOG.info(
                "lease %d of stream %d, %s, client %d, has ended, %s%s",
                notice.lease_id,
                notice.stream_id,
                notice.role.name.lower(),
                notice.client_id,
                notice.reason.name.lower(),
                reason,
            )
        case ShmDriverShutdown() as notice:
            _LOG.info(
                "announcing the shutdown to all clients: %s",
                notice.error_message or notice.reason.name.lower(),
            )


def _client_name(client_id: int | None) -> str:
    return "a client whose request could not be read" if client_id is None else f"client {client_id}"


@dataclass(frozen=True, slots=True)
class AnnouncerOptions:
    """How the streams of a driver are announced, as `_native.StreamAnnouncer` takes it."""

    period_ns: int
    """Period of announces and of activity timestamps."""
    stall_ns: int
    """Announces stop once the driver has had no duty cycle for this long."""
    base_dirs: Sequence[Path]
    """Where the regions are."""
    lock_memory: bool = False
    """Whether the regions are locked into memory."""


class DriverAgent:
    """The duty cycle of a driver, for a `Runner` or `run_role`; `EmbeddedDriver` runs it on a thread."""

    name = "driver"

    def __init__(
        self,
        conductor: _native.Conductor,
        *,
        settings: DriverSettings,
        namespace: str,
        base_dir: Path,
        aeron_dir: str,
        stream_ids: StreamIds,
        service_streams: ServiceStreams,
        service_token: Secret | None,
        announce_period_ns: int,
        embedded: bool,
        discovery: DiscoverySettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self.namespace = namespace
        self.base_dir = base_dir
        self.aeron_dir = aeron_dir
        self.stream_ids = stream_ids
        self.announce_period_ns = announce_period_ns
        self.embedded = embedded
        self.clock = clock
        self.started_ns = clock.monotonic_ns()
        self.counters = DriverCounters(instance=settings.instance_id)
        self.conductor = conductor
        self.service_streams = service_streams
        self.service_token = service_token
        self.discovery = discovery or DiscoverySettings()
        self._opened: _Resources | None = None
        self._log_limit = RateLimit(_MAX_LOGGED_PER_SECOND, burst=_MAX_LOGGED_BURST)
        self._unlogged = 0
        self._stop: Stop | None = None

    @property
    def qualified_namespace(self) -> str:
        """The namespace, with the instance id if there is one."""
        return qualified_namespace(self.namespace, self.settings.instance_id)

    @property
    def state(self) -> DriverState:
        """The state machine of the running driver. Raises ClosedError before the start and after the end."""
        return self._resources.state

    @property
    def _resources(self) -> _Resources:
        if self._opened is None:
            raise ClosedError("the driver is not running; start it first")
        return self._opened

    def holder(self) -> Holder:
        """The identity of this driver, for its lock."""
        return Holder.for_this_process(
            namespace=self.qualified_namespace,
            aeron_dir=self.aeron_dir,
            control_stream_id=self.stream_ids.control,
            embedded=self.embedded,
            clock=self.clock,
        )

    # --- the agent protocol

    def on_start(self) -> None:
        """Locks the namespace. Raises DriverAlreadyRunning if another driver has it, ConfigError for unknown
        users."""
        _check_known(Access(group=self.settings.group), *(plan.access for plan in Plan(self.settings)))
        _check_nodes(Plan(self.settings))
        self._opened = _Resources(self)
        self.perform(self.state.on_start(self.clock.monotonic_ns()))
        _LOG.info(
            "driver of namespace %r below %s, on %s, control stream %d",
            self.qualified_namespace,
            self.base_dir,
            self.aeron_dir,
            self.stream_ids.control,
        )

    def is_ready(self) -> bool:
        """Whether all streams are open, and with `recreate_at_start` all files created."""
        resources = self._opened
        if resources is None:
            return False
        is_open = resources.has_skipped_backlog
        is_open = is_open and resources.service.is_ready() and resources.discovery.is_ready
        return is_open and (not self.settings.recreate_at_start or resources.storage.is_idle)

    def do_work(self) -> int:
        """One duty cycle. An error that ends the driver is the reason of its shutdown notice."""
        try:
            return self._do_work()
        except AgentFinished:
            raise
        except BaseException as error:
            # The runner continues after other errors, and ends the driver after these.
            if isinstance(error, RoleFailed) or not isinstance(error, Exception):
                self._stop = Stop(ShutdownReason.ERROR, f"{type(error).__name__}: {error}".removesuffix(": "))
            raise

    def _do_work(self) -> int:
        """Reads messages, results of file work and dead producers; performs the resulting actions."""
        resources, now_ns = self._resources, self.clock.monotonic_ns()
        resources.announcer.heartbeat()
        work, read_until_ns = self._read(resources, now_ns)
        # After the messages: a producer that detaches sends its request before it releases its lock.
        for dead in resources.announcer.dead_producers():
            self.perform(resources.state.on_producer_exit(dead.stream_id, dead.epoch, now_ns))
        for damaged in resources.announcer.damaged():
            stream_id, epoch, reason = damaged.stream_id, damaged.epoch, damaged.reason
            _LOG.warning("epoch %d of stream %d ends: %s", epoch, stream_id, reason)
            self.perform(resources.state.on_damaged(stream_id, epoch, reason, now_ns))
        for result in resources.storage.poll():
            self.perform(resources.state.on_files(result, now_ns))
            work += 1
        self.perform(resources.state.on_tick(now_ns, read_until_ns=read_until_ns))
        resources.do_housekeeping(now_ns)
        work += resources.service.do_work() + resources.discovery.do_work(now_ns)
        resources.counter_publisher.do_work()
        work += resources.control.publish()
        if self._stop is not None:
            raise AgentFinished
        return work

    def _read(self, resources: _Resources, now_ns: int) -> tuple[int, int | None]:
        """Handles received messages. Returns how many caused actions, and the time up to which all were read.

        Keepalives cause no actions and are not counted as work: thousands of them a second would keep a
        backoff idle strategy from ever sleeping.
        """
        if not resources.has_skipped_backlog:
            if (failure := resources.control.failure) is not None:
                raise RoleFailed(
                    f"the media driver refuses the control stream {self.stream_ids.control}: {failure}"
                )
            self.counters.before_start.add(resources.skip_backlog())
            return 0, None
        work, deadline_ns = 0, self.clock.monotonic_ns() + _MAX_READ_NS
        for _ in range(_MAX_POLLS):
            messages = resources.control.poll(_POLL_LIMIT)
            for received in messages:
                if resources.discovery.accept(received.message, now_ns):
                    continue
                actions = resources.state.on_message(received.message, now_ns, image=received.session_id)
                self.perform(actions)
                work += bool(actions)
            if not messages:
                # Without a media driver, keepalives cannot arrive: then not all were read.
                return work, resources.control.read_until_ns(now_ns)
            if self.clock.monotonic_ns() >= deadline_ns:
                break
        return max(work, 1), None

    def wait(self, seconds: float) -> None:
        """Waits until a client, a service or the announcer has something for the next duty cycle."""
        resources = self._resources
        # What the threads of the storage are done with ends no wait.
        resources.requests.wait(seconds if resources.storage.is_idle else _STORAGE_POLL_S)

    def end_wait(self) -> None:
        """Ends the present wait and every later one. For any thread."""
        resources = self._opened
        if resources is not None:
            resources.requests.interrupt()

    def on_close(self) -> None:
        """Announces the shutdown, removes all regions and releases the namespace."""
        resources = self._opened
        if resources is None:
            return
        stop = self._stop or Stop(ShutdownReason.NORMAL, "")
        try:
            self.perform(resources.state.on_stop(stop.reason, stop.message, self.clock.monotonic_ns()))
            resources.control.flush(_SHUTDOWN_FLUSH_NS, _RETRY_S)
        finally:
            self._opened = None
            resources.close()

    # --- administration, by commands of the service, on this agent's thread

    def discovery_counters(self) -> CounterSnapshot:
        """The counters of discovery."""
        return dict(self._resources.discovery.counters.snapshot())

    def control_fault(self) -> str | None:
        """Why the control stream does not work at the moment; None if it works."""
        control, now_ns = self._resources.control, self.clock.monotonic_ns()
        if full_s := control.full_s(now_ns):
            return f"full for {full_s:.1f} s: a tethered subscription does not poll"
        if blocked_s := control.blocked_s(now_ns):
            return f"blocked for {blocked_s:.1f} s: a client has ended, or is paused, inside an offer"
        return None

    def stop(self, message: str) -> None:
        """Stops the driver cleanly after this duty cycle."""
        self._stop = self._stop or Stop(ShutdownReason.ADMIN, message)

    # --- actions

    def perform(self, actions: list[Action]) -> None:
        """Performs actions of the state machine, and those that follow from them."""
        resources, todo = self._resources, deque(actions)
        while todo:
            match todo.popleft():
                case Send(message, is_repeat, client_id, is_awaited):
                    self._log(message, client_id=client_id, is_repeat=is_repeat)
                    resources.control.send(message.encode(), is_awaited=is_awaited)
                case MakeFiles() | AssignFiles() | RemoveFiles() as job:
                    resources.storage.submit(job)
                case Announce() as announce:
                    failure = resources.announce(announce)
                    now_ns = self.clock.monotonic_ns()
                    if failure is None:
                        resources.discovery.on_announce(announce, now_ns)
                    todo.extend(resources.state.on_announced(announce.stream_id, failure, now_ns))
                case Withdraw(stream_id):
                    resources.announcer.withdraw(stream_id)
                    resources.discovery.on_withdraw(stream_id)
                case SaveProvisions():
                    resources.has_unsaved = True
                case Stop() as stop:
                    self._stop = self._stop or stop
                case Warn(text):
                    _LOG.warning("%s", text)

    def _log(self, message: Message, *, client_id: int | None, is_repeat: bool) -> None:
        """Logs a decision, up to a limit per second that an operator can still read."""
        if not self._log_limit.take(self.clock.monotonic_ns()):
            self._unlogged += 1
            return
        if self._unlogged:
            _LOG.warning(
                "%d decisions were not logged, because there were too many; `tensorpool driver status` "
                "counts them",
                self._unlogged,
            )
            self._unlogged = 0
        log_decision(message, client_id=client_id, is_repeat=is_repeat)


class _Resources:
    """The locks, streams, storage and state of a running driver; closed in reverse order."""

    def __init__(self, agent: DriverAgent) -> None:
        settings, conductor, control = agent.settings, agent.conductor, agent.stream_ids.control
        stale_ns = 3 * agent.announce_period_ns
        bases = BaseDirs.probe(agent.base_dir, settings)
        self._next_sweep_ns = agent.clock.monotonic_ns() + stale_ns
        self._sweep_period_ns = stale_ns
        self._next_save_ns = 0
        self.has_unsaved = False
        self.has_skipped_backlog = False
        self.state = DriverState(
            settings,
            counters=agent.counters,
            bases=bases,
            numa_nodes=numa_nodes(),
            # Random: the lease ids of an earlier driver must not occur again.
            first_lease_id=secrets.randbits(47) << 16 | 1,
            quota_bytes=_share_of_filesystems(bases.all, settings.quota_percent),
        )
        with ExitStack() as stack:
            lock = DriverLock(agent.base_dir, agent.qualified_namespace, agent.holder())
            stack.callback(lock.release)
            check_no_other_driver(agent.aeron_dir, agent.stream_ids.control)
            self.storage = Storage(
                bases,
                agent.qualified_namespace,
                lock.state,
                stale_after_ns=stale_ns,
                prefault=agent.settings.prefault,
            )
            stack.callback(self.storage.close)
            self._load_provisions()
            self.storage.sweep(at_once=settings.recreate_at_start)
            self.announcer = _native.StreamAnnouncer(
                conductor,
                AnnouncerOptions(
                    period_ns=agent.announce_period_ns,
                    stall_ns=_STALL_LEASES * settings.lease_ns,
                    base_dirs=bases.all,
                    lock_memory=settings.mlock,
                ),
            )
            stack.callback(self.announcer.close)
            self.control = ControlStream(
                conductor,
                agent.stream_ids.control_channel,
                control,
                counters=agent.counters,
                clock=agent.clock,
            )
            stack.callback(self.control.close)
            self.discovery = EmbeddedDiscovery(agent, self.state.plan)
            stack.callback(self.discovery.close)
            service = DriverService(agent, instance=settings.instance_id or None, token=agent.service_token)
            self.service = ServiceAgent(service, conductor, agent.service_streams, clock=agent.clock)
            stack.callback(self.service.on_close)
            self.requests = _native.RequestWait(self.control.requests, self.service.commands, self.announcer)
            self.counter_publisher = CounterPublisher(conductor, agent.counters, clock=agent.clock)
            stack.callback(self.counter_publisher.close)
            label = driver_counter_label(agent.qualified_namespace, control)
            self._driver_counter = _native.AeronCounter(conductor, label, GAUGE_TYPE_ID, os.getpid())
            stack.callback(self._driver_counter.close)
            self._stack = stack.pop_all()

    def skip_backlog(self) -> int:
        """Skips messages that were sent before this driver started. Returns their number.

        Aeron delivers to a new subscription what the slowest one has not read; that may be a driver killed
        seconds ago. The clients of these requests have given up or will repeat them. Granted leases would
        block live producers.
        """
        # The driver's own publication is on this stream, so an image appears in any case. Clients know a
        # driver of this package by its counter: it must be there before the first response.
        counter = self._driver_counter
        has_counter = counter.counter_id is not None or counter.failure is not None
        if not (self.control.is_ready and has_counter):
            return 0
        skipped = 0
        for _ in range(_MAX_BACKLOG_POLLS):
            messages = self.control.poll(_BACKLOG_POLL_LIMIT)
            skipped += len(messages)
            if not messages:
                break
        self.has_skipped_backlog = True
        return skipped

    def _load_provisions(self) -> None:
        dumped = self.storage.load_provisions()
        for fault in [] if dumped is None else self.state.plan.load(dumped):
            _LOG.warning("a saved provision was not restored: %s", fault)

    def announce(self, action: Announce) -> str | None:
        """Starts announces of an epoch. Returns why that failed; None after success."""
        try:
            self.announcer.announce(action.stream_id, action.files, action.producer_id)
        except (RegionRejected, OSError) as error:
            return f"the driver cannot map the regions: {error}"
        return None

    def do_housekeeping(self, now_ns: int) -> None:
        """Saves provisions and removes leftovers, each once per period."""
        if self.has_unsaved and now_ns >= self._next_save_ns:
            self._next_save_ns = now_ns + _SAVE_NS
            self._save()
        if now_ns >= self._next_sweep_ns:
            # Files of a killed driver are not stale yet when the next driver starts, and producers refresh
            # them until they notice: sweep again soon, then less and less often.
            self._sweep_period_ns = min(2 * self._sweep_period_ns, _SWEEP_NS)
            self._next_sweep_ns = now_ns + self._sweep_period_ns
            self.storage.sweep()

    def _save(self) -> None:
        self.has_unsaved = False
        self.storage.save_provisions(self.state.plan.dump())

    def close(self) -> None:
        """Saves provisions and closes everything."""
        if self.has_unsaved:
            self._save()
        self._stack.close()


def _share_of_filesystems(base_dirs: Iterable[Path], percent: int) -> int | None:
    """That share of the filesystems' sizes; None for all of it, or if one of them has no fixed size."""
    if not 0 < percent < 100:
        return None
    sizes = {}
    for base_dir in base_dirs:
        try:
            statistics = os.statvfs(base_dir)
            sizes[base_dir.stat().st_dev] = statistics.f_blocks * statistics.f_frsize
        except OSError:
            return None
    return sum(sizes.values()) * percent // 100 if all(sizes.values()) else None


def _check_known(*accesses: Access) -> None:
    """Raises ConfigError for users and groups that this machine does not have."""
    for access in accesses:
        owner_id(access)
        group_id(access)


def _check_nodes(plans: Plan) -> None:
    """Raises ConfigError for NUMA nodes that this machine does not have."""
    nodes = numa_nodes()
    for plan in plans:
        if plan.numa_node is not None and plan.numa_node not in nodes:
            known = ", ".join(str(node) for node in sorted(nodes))
            raise ConfigError(
                f"stream {plan.stream_id}: numa_node {plan.numa_node}; this machine has nodes {known} only"
            )
