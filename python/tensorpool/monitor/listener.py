"""The listener and the monitor of a running system: subscriptions, their polling, and a model on top.

`SystemListener` subscribes to the announce, metadata, QoS, control and status streams of a connection and
passes every message to its observers. It takes no lease, and no publication waits for it. The thread that
polls a listener owns it.
"""

from __future__ import annotations

import gc
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cache
from types import TracebackType
from typing import Final, Protocol, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock, monotonic_time_ns
from ..sbe import MAGIC
from ..sbe.wire import ShmPoolAnnounce, ShmRegionSuperblock
from ..service import Event
from ..shm.epoch_files import SUPERBLOCK_BYTES
from ..shm.inspect import NotARegion, region_path
from ..transport import SHARED_CHANNEL, Connection, StreamAddress
from .ledger import LedgerRow, Verdict
from .model import SystemModel
from .reports import (
    Activity,
    ListenerPaused,
    MessageReader,
    RejectedMessage,
    read_status_event,
)
from .services import ServicePoller, read_decision
from .snapshot import Snapshot
from .streams import ModelLimits

_BATCH: Final = 512
_MAX_MESSAGES_A_TURN: Final = 8192
"""Messages that are read of one stream before it is the turn of the next one."""
_POLL_S: Final = 0.005
_CACHE_NS: Final = 15_000_000_000
_HEADER_RING: Final = re.compile(r"/tensorpool-[^/]+/[^/]+/(\d+)/(\d+)/header\.ring$")
"""The canonical layout: stream id and epoch are directories (wire §15.21a.3)."""
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_VERDICTS: Final = frozenset({Verdict.SETTLING, Verdict.WAITING})
_SETTLE_PERIODS: Final = 2.5
"""After this long every endpoint has reported at least twice."""
_GC_THRESHOLD: Final = 100_000


class StreamKind(StrEnum):
    """The kinds of streams that a listener can subscribe to."""

    ANNOUNCE = "announce"
    METADATA = "metadata"
    QOS = "qos"
    CONTROL = "control"
    STATUS = "status"


ALL_STREAMS: Final = frozenset(StreamKind)


class Observer(Protocol):
    """A receiver of decoded messages and of the listener's own events."""

    def observe(self, event: object, now_ns: int) -> None:
        """Takes an event and the time of its receipt."""


class RawObserver(Protocol):
    """A receiver of messages as bytes."""

    def observe_message(self, kind: StreamKind, message: bytes, now_ns: int) -> None:
        """Takes a message of a stream of that kind and the time of its receipt."""


class SystemListener:
    """Subscriptions to the streams of a connection; `poll` passes every message to the observers.

    Without decoding observers no message is decoded: raw observers get the bytes only. `polls_services`
    says whether the listener asks services for their status, which needs the status stream.
    """

    def __init__(
        self,
        connection: Connection,
        observers: Iterable[Observer] = (),
        *,
        raw_observers: Iterable[RawObserver] = (),
        streams: Collection[StreamKind] = ALL_STREAMS,
        limits: ModelLimits | None = None,
        polls_services: bool = True,
        reads_decisions: bool = False,
        max_messages: int = _MAX_MESSAGES_A_TURN,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`max_messages`: messages that one `poll` reads of each stream; the next `poll` reads the others.
        `reads_decisions`: decisions of a supervisor become notices; a supervisor knows its own."""
        limits = model_limits(connection) if limits is None else limits
        self._clock = clock
        self._max_messages = max_messages
        self._reads_decisions = reads_decisions
        self._observers = tuple(observers)
        self._raw_observers = tuple(raw_observers)
        self._notify = self._observers[0].observe if len(self._observers) == 1 else self._notify_all
        self._reader = MessageReader()
        self._regions: dict[int, tuple[int, str]] = {}
        """Epoch and header ring URI by stream."""
        self._activity_period_ns = limits.announce_period_ns
        self._max_streams = limits.max_streams
        self._pause_ns = limits.pause_ns
        self._polled_ns: int | None = None
        self._next_activity_ns = 0
        self._next_clear_ns = 0
        self._overflowed = 0
        has_status = StreamKind.STATUS in streams
        services = connection.services
        ids = connection.stream_ids
        addresses = {
            StreamKind.ANNOUNCE: [StreamAddress(SHARED_CHANNEL, ids.announce)],
            StreamKind.METADATA: ids.metadata_addresses,
            StreamKind.QOS: ids.qos_addresses,
            StreamKind.CONTROL: ids.control_addresses,
        }
        # Two kinds may share a stream: one subscription receives both, as the first of the two.
        kinds: dict[StreamAddress, StreamKind] = {}
        for kind, of_kind in addresses.items():
            for address in of_kind if kind in streams else ():
                kinds.setdefault(address, kind)
        self._poller: ServicePoller | None = None
        self._queries: _native.Publication | None = None
        self._status: _native.Mailbox | None = None
        with ExitStack() as stack:
            self._subscriptions: list[tuple[StreamKind, _native.Subscription]] = []
            for address, kind in kinds.items():
                subscription = connection.subscription(address)
                stack.callback(subscription.close)
                self._subscriptions.append((kind, subscription))
            if has_status:
                self._status = connection.mailbox(services.status_address, [])
                stack.callback(self._status.close)
            if has_status and polls_services and self._observers:
                self._poller = ServicePoller(limits.report_period_ns)
                self._queries = connection.publication(services.control_address)
                stack.callback(self._queries.close)
            self._stack = stack.pop_all()

    @property
    def handles(self) -> list[_native.Subscription | _native.Mailbox]:
        """The objects that must be ready before messages are received."""
        handles: list[_native.Subscription | _native.Mailbox] = [
            subscription for _, subscription in self._subscriptions
        ]
        return handles if self._status is None else [*handles, self._status]

    @property
    def is_ready(self) -> bool:
        """Whether the media driver has registered all streams."""
        return all(handle.is_ready for handle in self.handles)

    @property
    def failure(self) -> str | None:
        """Why the media driver refuses a stream."""
        failures = (subscription.failure for _, subscription in self._subscriptions)
        return next((failure for failure in failures if failure), None)

    def poll(self) -> int:
        """Reads the available messages and returns their number. Invalid messages become events; nothing is
        raised."""
        now_ns = self._clock.monotonic_ns()
        if self._polled_ns is not None and now_ns - self._polled_ns > self._pause_ns:
            self._notify(ListenerPaused(now_ns - self._polled_ns), now_ns)
        self._polled_ns = now_ns
        received = sum(self._drain(kind, stream, now_ns) for kind, stream in self._subscriptions)
        received += self._drain_status(now_ns)
        if now_ns >= self._next_activity_ns:
            self._next_activity_ns = now_ns + self._activity_period_ns
            self._read_activities(now_ns)
        if now_ns >= self._next_clear_ns:
            # Observers may have dropped state that a repeated message does not restore.
            self._next_clear_ns = now_ns + _CACHE_NS
            self._reader.clear()
        if self._poller is not None:
            self._send(self._poller.due(now_ns))
        return received

    def _notify_all(self, event: object, now_ns: int) -> None:
        for observer in self._observers:
            observer.observe(event, now_ns)

    def _notify_raw(self, kind: StreamKind, messages: list[bytes], now_ns: int) -> None:
        for observer in self._raw_observers:
            for message in messages:
                observer.observe_message(kind, message, now_ns)

    def _drain(self, kind: StreamKind, subscription: _native.Subscription, now_ns: int) -> int:
        received = 0
        while received < self._max_messages:
            messages = subscription.poll(min(_BATCH, self._max_messages - received))
            if not messages:
                break
            received += len(messages)
            self._notify_raw(kind, messages, now_ns)
            if not self._observers:
                continue
            for event in self._reader.read_wire(messages):
                if type(event) is ShmPoolAnnounce:
                    self._add_region(event)
                self._notify(event, now_ns)
        return received

    def _drain_status(self, now_ns: int) -> int:
        if self._status is None:
            return 0
        received = 0
        while received < self._max_messages and (messages := self._status.take(_BATCH)):
            received += len(messages)
            self._notify_raw(StreamKind.STATUS, messages, now_ns)
            if not self._observers:
                continue
            for item in self._reader.read_status(messages):
                if type(item) is bytes:
                    self._on_status_message(item, now_ns)
                else:
                    self._notify(item, now_ns)
        overflowed = self._status.counters().overflowed
        if overflowed != self._overflowed:
            self._notify(RejectedMessage("overflowed", overflowed - self._overflowed), now_ns)
            self._overflowed = overflowed
        return received

    def _on_status_message(self, message: bytes, now_ns: int) -> None:
        event = read_status_event(message)
        if event is None:
            # Values of other formats are for the callers that asked for them.
            return
        if self._reads_decisions and (notice := read_decision(event)) is not None:
            self._notify(notice, now_ns)
        if self._poller is not None and event.correlation_id:
            answers, queries = self._poller.on_status_event(event)
            for answer in answers:
                self._notify(answer, now_ns)
            self._send(queries)

    def _send(self, queries: Iterable[Event]) -> None:
        for query in queries:
            if self._queries is not None:
                self._queries.offer(query.encode(self._clock))

    def _add_region(self, announce: ShmPoolAnnounce) -> None:
        if announce.stream_id in self._regions or len(self._regions) < self._max_streams:
            self._regions[announce.stream_id] = (announce.epoch, announce.header_region_uri)

    def _read_activities(self, now_ns: int) -> None:
        for stream_id, (epoch, uri) in list(self._regions.items()):
            activity = read_activity(stream_id, epoch, uri)
            if activity is None:
                # The region is gone or not readable: the next announce that differs adds it again.
                del self._regions[stream_id]
            else:
                self._notify(activity, now_ns)

    def close(self) -> None:
        """Closes all subscriptions."""
        self._stack.close()


class SystemMonitor:
    """A listener with a model of the system around a connection. Poll it, or `watch` for a while."""

    def __init__(
        self,
        connection: Connection,
        *,
        streams: Collection[StreamKind] = ALL_STREAMS,
        polls_services: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Waits until the streams are registered. Raises MediaDriverUnavailable."""
        self._clock = clock
        self.limits = model_limits(connection)
        self.model = SystemModel(self.limits)
        self.listener = SystemListener(
            connection,
            (self.model,),
            streams=streams,
            limits=self.limits,
            polls_services=polls_services,
            reads_decisions=True,
            clock=clock,
        )
        try:
            connection.wait_ready(*self.listener.handles)
        except BaseException:
            self.close()
            raise

    def poll(self) -> int:
        """Reads the available messages and returns their number."""
        return self.listener.poll()

    def snapshot(self) -> Snapshot:
        """The state of the system now."""
        return self.model.snapshot(self._clock.monotonic_ns())

    def ledger_rows(self) -> list[LedgerRow]:
        """The ledger of the system now."""
        return self.model.ledger_rows(self._clock.monotonic_ns())

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Polls for this long; True as soon as `until` returns True."""
        deadline = time.monotonic() + seconds
        while True:
            received = self.poll()
            if until():
                return True
            if time.monotonic() >= deadline:
                return False
            if not received:
                time.sleep(_POLL_S)

    def settle(self, timeout: float) -> list[LedgerRow]:
        """Polls until every endpoint has reported twice, and then until no row of the ledger is open."""
        settle_s = _SETTLE_PERIODS * self.limits.report_period_ns / 1e9
        self.watch(min(settle_s, timeout))
        self.watch(max(timeout - settle_s, 0), until=self._is_settled)
        return self.ledger_rows()

    def _is_settled(self) -> bool:
        return not any(row.verdict in _OPEN_VERDICTS for row in self.ledger_rows())

    def close(self) -> None:
        """Closes the listener."""
        self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def model_limits(connection: Connection) -> ModelLimits:
    """The limits of a model with the periods of a connection."""
    return ModelLimits(
        announce_period_ns=connection.announce_period_ns, report_period_ns=connection.report_period_ns
    )


# --- activity timestamps


def read_activity(
    stream_id: int, epoch: int, header_uri: str, clock: Clock = SYSTEM_CLOCK
) -> Activity | None:
    """The activity timestamp of a stream (wire §15.14); None if it cannot be read or is of another epoch.

    An announce, which any process can publish, names the file. Only a path of the canonical layout is opened,
    no link is followed, and no bytes behind the superblock are read.
    """
    try:
        path, _ = region_path(header_uri)
    except NotARegion:
        return None
    match = _HEADER_RING.search(str(path))
    if match is None or (int(match[1]), int(match[2])) != (stream_id, epoch):
        return None
    try:
        superblock = _read_superblock(str(path))
    except OSError:
        return None
    if superblock is None or len(superblock) < SUPERBLOCK_BYTES:
        return None
    magic, region_epoch, activity_ns = (
        struct.unpack_from("<Q", superblock, offset)[0] for offset in _superblock_offsets()
    )
    if (magic, region_epoch) != (MAGIC, epoch):
        return None
    # The model compares with the monotonic clock.
    return Activity(stream_id, epoch, monotonic_time_ns(activity_ns, clock))


def _read_superblock(path: str) -> bytes | None:
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.pread(descriptor, SUPERBLOCK_BYTES, 0)
    finally:
        os.close(descriptor)


@cache
def _superblock_offsets() -> tuple[int, int, int]:
    """Offsets of magic, epoch and activity timestamp."""
    offsets = {encoded.name: encoded.offset for encoded in ShmRegionSuperblock.layout().encoded_fields}
    return offsets["magic"], offsets["epoch"], offsets["activityTimestampNs"]


# --- garbage collection


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Collects garbage rarely, for the whole run of a command that keeps a model.

    A model replaces tens of thousands of objects a second, none of them in a cycle. With the default
    threshold the search for cycles took a quarter of the time of a supervisor of a thousand streams.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
