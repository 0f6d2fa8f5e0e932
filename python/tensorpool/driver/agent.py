"""The driver at work: control stream → state machine → files, beacons, answers.

The same agent runs as a service and inside a program. One thread owns it, and so all of the state; file
work is done by the storage's threads, announces and activity by the conductor's.

What a driver decided, in its log: whoever lost a lease can be told why, also weeks later.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..discovery.config import DiscoverySettings
from ..errors import ClosedError, RegionRejected
from ..runtime.agent import AgentFinished
from ..runtime.config import Secret
from ..runtime.counters import GAUGE_TYPE_ID, CounterPublisher
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
from ..shm.epoch_files import is_hugetlbfs
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
    Withdraw,
)
from .config import DriverSettings
from .counters import DriverCounters
from .discovery import EmbeddedDiscovery
from .lock import DriverLock, Holder, check_no_other_driver, driver_counter_label, qualified_namespace
from .plan import Access, Plan
from .service import DriverService
from .state import DriverState
from .storage import Storage, group_id, owner_id

_LOG = logging.getLogger(__name__)


def log_decision(message: Message, *, is_repeat: bool = False) -> None:
    """A line for what matters to people. Refusals that a client may well ask for again are no warnings."""
    if is_repeat:
        return
    match message:
        case ShmAttachResponse() | ShmAttachResponseR2() as answer if answer.code is ResponseCode.OK:
            client = answer.correlation_id >> 32 & 0xFFFF_FFFF
            _LOG.info(
                "lease %d of stream %d, epoch %d, given to client %d",
                answer.lease_id,
                answer.stream_id,
                answer.epoch,
                client,
            )
        case ShmAttachResponse() | ShmAttachResponseR2() as answer:
            level = logging.WARNING if answer.code is ResponseCode.INTERNAL_ERROR else logging.INFO
            client = answer.correlation_id >> 32 & 0xFFFF_FFFF
            _LOG.log(level, "client %d refused, %s: %s", client, answer.code.name, answer.error_message)
        case ShmLeaseRevoked() as notice:
            why = f": {notice.error_message}" if notice.error_message else ""
            _LOG.info(
                "lease %d of stream %d, %s, client %d, has ended, %s%s",
                notice.lease_id,
                notice.stream_id,
                notice.role.name.lower(),
                notice.client_id,
                notice.reason.name.lower(),
                why,
            )
        case ShmDriverShutdown() as notice:
            _LOG.info(
                "telling all clients of the end: %s", notice.error_message or notice.reason.name.lower()
            )


_CHANNEL: Final = "aeron:ipc"
# Tethered: a driver that falls behind holds its clients up rather than lose a keepalive.
_TETHERED_CHANNEL: Final = "aeron:ipc?tether=true"
_POLL_LIMIT: Final = 1024
_MAX_POLLS: Final = 4
# More than the stream holds, so that not even a flood is waited for at the start.
_MAX_OLD_POLLS: Final = 256
_MAX_WAITING: Final = 4096
_GOODBYE_NS: Final = 2_000_000_000
_SWEEP_NS: Final = 60_000_000_000
# A thousand streams that are provisioned one after the other are not written a thousand times.
_SAVE_NS: Final = 100_000_000
# Announces stop when the duty cycle has stood still for this many leases' time: consumers then fail closed.
_STALL_LEASES: Final = 2


class DriverAgent:
    """Give it to a `Runner`, or to `run_role`; `EmbeddedDriver` runs it on a thread."""

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
        self._parts: _Resources | None = None
        self._waiting: deque[bytes] = deque()
        self._stop: Stop | None = None

    @property
    def place(self) -> str:
        """The namespace, with the instance id where there is one."""
        return qualified_namespace(self.namespace, self.settings.instance_id)

    @property
    def state(self) -> DriverState:
        """There while it runs."""
        return self._running.state

    @property
    def _running(self) -> _Resources:
        if self._parts is None:
            raise ClosedError("the driver has not started, or has ended")
        return self._parts

    def holder(self) -> Holder:
        """Who this driver is, for its lock."""
        return Holder.here(
            namespace=self.place,
            aeron_dir=self.aeron_dir,
            control_stream_id=self.stream_ids.control,
            embedded=self.embedded,
            clock=self.clock,
        )

    # --- the agent protocol

    def on_start(self) -> None:
        """Takes the namespace. Raises DriverHeld if somebody has it, ConfigError for unknown users."""
        _check_known(Access(group=self.settings.group), *(plan.access for plan in Plan(self.settings)))
        self._parts = _Resources(self)
        self._do(self.state.on_start(self.clock.monotonic_ns()))
        _LOG.info(
            "driver of namespace %r below %s, on %s, control stream %d",
            self.place,
            self.base_dir,
            self.aeron_dir,
            self.stream_ids.control,
        )

    def is_ready(self) -> bool:
        parts = self._parts
        if parts is None:
            return False
        is_open = parts.has_caught_up and parts.control.is_ready and parts.service.is_ready()
        is_open &= parts.discovery.is_ready
        # Who wants the files from the start wants to know when they are there.
        return is_open and (not self.settings.recreate_at_start or parts.storage.is_idle)

    def do_work(self) -> int:
        parts, now_ns = self._running, self.clock.monotonic_ns()
        parts.beacons.beat()
        work, drained = self._read(parts, now_ns)
        # After the messages: a producer that detaches gives up its lock too, and says so first.
        for stream_id, epoch in parts.beacons.deaths():
            self._do(parts.state.on_death(stream_id, epoch, now_ns))
        for result in parts.storage.poll():
            self._do(parts.state.on_files(result, now_ns))
            work += 1
        self._do(parts.state.on_tick(now_ns, drained=drained))
        parts.keep_house(now_ns)
        work += parts.service.do_work() + parts.discovery.do_work(now_ns)
        parts.exposure.do_work()
        work += self._publish(parts)
        if self._stop is not None:
            raise AgentFinished
        return work

    def _read(self, parts: _Resources, now_ns: int) -> tuple[int, bool]:
        """Reads what has arrived; says how much of it led to anything, and whether that was all.

        A keepalive leads to nothing: thousands of them a second would keep a strategy that backs off from
        ever resting.
        """
        if not parts.has_caught_up:
            self.counters.before_start.add(parts.catch_up())
            return 0, False
        work = 0
        for _ in range(_MAX_POLLS):
            messages = parts.requests.poll(_POLL_LIMIT)
            for message in messages:
                if parts.discovery.accept(message, now_ns):
                    continue
                actions = parts.state.on_message(message, now_ns)
                self._do(actions)
                work += bool(actions)
            if not messages:
                # Without a media driver nobody's keepalive can arrive.
                return work, parts.requests.is_ready
        return max(work, 1), False

    def on_close(self) -> None:
        """Says goodbye, removes every region, lets go of the namespace."""
        parts = self._parts
        if parts is None:
            return
        stop = self._stop or Stop(ShutdownReason.NORMAL, "")
        try:
            self._do(parts.state.on_stop(stop.reason, stop.words, self.clock.monotonic_ns()))
            self._say_goodbye(parts)
        finally:
            self._parts = None
            parts.close()

    # --- administration, from commands that are called in a turn of this agent

    def do(self, actions: list[Action]) -> None:
        """Does what a command came to."""
        self._do(actions)

    def discovery_counters(self) -> dict[str, Any]:
        """What discovery has counted."""
        return dict(self._running.discovery.counters.snapshot())

    def stop(self, text: str) -> None:
        """An orderly end after this turn."""
        self._stop = self._stop or Stop(ShutdownReason.ADMIN, text)

    # --- actions

    def _do(self, actions: list[Action]) -> None:
        parts, todo = self._running, deque(actions)
        while todo:
            match todo.popleft():
                case Send(message, is_repeat):
                    log_decision(message, is_repeat=is_repeat)
                    self._send(message)
                case MakeFiles() | AssignFiles() | RemoveFiles() as job:
                    parts.storage.submit(job)
                case Announce() as announce:
                    failure = parts.announce(announce)
                    now_ns = self.clock.monotonic_ns()
                    if failure is None:
                        parts.discovery.announced(announce, now_ns)
                    todo.extend(parts.state.on_announced(announce.stream_id, failure, now_ns))
                case Withdraw(stream_id):
                    parts.beacons.remove(stream_id)
                    parts.discovery.silenced(stream_id)
                case SaveProvisions():
                    parts.has_unsaved = True
                case Stop() as stop:
                    self._stop = self._stop or stop

    def _send(self, message: Message) -> None:
        self._waiting.append(message.encode())
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self.counters.unsent.add()

    def _publish(self, parts: _Resources) -> int:
        sent = 0
        while self._waiting and parts.control.offer(self._waiting[0]) == "sent":
            self._waiting.popleft()
            sent += 1
        return sent

    def _say_goodbye(self, parts: _Resources) -> None:
        """Tries for a while: a media driver that is gone takes no goodbye."""
        deadline_ns = self.clock.monotonic_ns() + _GOODBYE_NS
        while self._waiting and self.clock.monotonic_ns() < deadline_ns:
            if not self._publish(parts):
                # The stream may be full of what we have not read ourselves.
                parts.requests.poll(_POLL_LIMIT)
                self.clock.sleep(0.001)
        self.counters.unsent.add(len(self._waiting))
        self._waiting.clear()


class _Resources:
    """What a driver holds while it runs, and gives back in the reverse order."""

    def __init__(self, agent: DriverAgent) -> None:
        settings, conductor, control = agent.settings, agent.conductor, agent.stream_ids.control
        stale_ns = 3 * agent.announce_period_ns
        self._mlock = settings.mlock
        self._base_dir = str(agent.base_dir)
        self._next_sweep_ns = agent.clock.monotonic_ns() + stale_ns
        self._next_save_ns = 0
        self.has_unsaved = False
        self.has_caught_up = False
        self.state = DriverState(
            settings,
            counters=agent.counters,
            has_hugepages=is_hugetlbfs(agent.base_dir),
            # Lease ids of an earlier driver are never this one's.
            first_lease_id=secrets.randbits(47) << 16 | 1,
        )
        with ExitStack() as stack:
            lock = DriverLock(agent.base_dir, agent.place, agent.holder())
            stack.callback(lock.release)
            check_no_other_driver(agent.aeron_dir, agent.stream_ids.control)
            self.storage = Storage(
                agent.base_dir,
                agent.place,
                lock.state,
                stale_after_ns=stale_ns,
                prefault=agent.settings.prefault,
            )
            stack.callback(self.storage.close)
            self._load_provisions()
            self.storage.sweep(at_once=settings.recreate_at_start)
            self.beacons = _native.Beacons(
                conductor,
                period_ns=agent.announce_period_ns,
                stall_ns=_STALL_LEASES * settings.lease_ns,
            )
            stack.callback(self.beacons.close)
            self.control = _native.Publication(conductor, _CHANNEL, control)
            stack.callback(self.control.close)
            self.requests = _native.Subscription(conductor, _TETHERED_CHANNEL, control)
            stack.callback(self.requests.close)
            self.discovery = EmbeddedDiscovery(agent, self.state.plan)
            stack.callback(self.discovery.close)
            service = DriverService(agent, instance=settings.instance_id or None, token=agent.service_token)
            self.service = ServiceAgent(service, conductor, agent.service_streams, clock=agent.clock)
            stack.callback(self.service.on_close)
            self.exposure = CounterPublisher(conductor, agent.counters, clock=agent.clock)
            stack.callback(self.exposure.close)
            label = driver_counter_label(agent.place, control)
            presence = _native.AeronCounter(conductor, label, GAUGE_TYPE_ID, os.getpid())
            stack.callback(presence.close)
            self._stack = stack.pop_all()

    def catch_up(self) -> int:
        """Skips what was said before this driver was there; says how much that was.

        Aeron hands a new reader what the slowest one has not read, and that may be a driver that was killed
        seconds ago. Whoever sent those requests has given up, or asks again; granted, they would keep the
        producers out that are there.
        """
        # Our own publication is the stream's, so that its image is sure to come.
        if not (self.control.is_ready and self.requests.is_ready and self.requests.is_connected):
            return 0
        skipped = 0
        for _ in range(_MAX_OLD_POLLS):
            messages = self.requests.poll(_POLL_LIMIT)
            skipped += len(messages)
            if not messages:
                break
        self.has_caught_up = True
        return skipped

    def _load_provisions(self) -> None:
        dumped = self.storage.load_provisions()
        for fault in [] if dumped is None else self.state.plan.load(dumped):
            _LOG.warning("a provision was not taken over: %s", fault)

    def announce(self, wanted: Announce) -> str | None:
        """Why it cannot be done; None if it is."""
        files = wanted.files
        try:
            self.beacons.put(
                stream_id=wanted.stream_id,
                epoch=files.epoch,
                producer_id=wanted.producer_id,
                nslots=files.nslots,
                header_uri=files.header_uri,
                pools=files.pools,
                base_dirs=[self._base_dir],
                lock_memory=self._mlock,
            )
        except (RegionRejected, OSError) as error:
            return f"the driver cannot map the regions: {error}"
        return None

    def keep_house(self, now_ns: int) -> None:
        """What need not be done in every turn."""
        if self.has_unsaved and now_ns >= self._next_save_ns:
            self._next_save_ns = now_ns + _SAVE_NS
            self._save()
        if now_ns >= self._next_sweep_ns:
            # What a killed driver left is not yet stale when the next one starts, so it looks again.
            self._next_sweep_ns = now_ns + _SWEEP_NS
            self.storage.sweep()

    def _save(self) -> None:
        self.has_unsaved = False
        self.storage.save_provisions(self.state.plan.dump())

    def close(self) -> None:
        if self.has_unsaved:
            self._save()
        self._stack.close()


def _check_known(*accesses: Access) -> None:
    """Raises ConfigError for users and groups that this machine does not have."""
    for access in accesses:
        owner_id(access)
        group_id(access)
