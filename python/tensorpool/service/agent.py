"""The agent of a service: control stream → `Service.handle` → status stream."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Final, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CodecError
from ..runtime.counters import CounterSet, counter
from ..runtime.runner import Runner
from ..transport.channels import ServiceStreams
from .events import FAILED, LOST, READ, RESULT, Event
from .service import Service

_log = logging.getLogger(__name__)

# Events queued while the status stream is full; beyond this the oldest are dropped, and an event says so.
_MAX_QUEUED: Final = 4096
# The status stream is the record of accepted commands: while it takes no events, no command is accepted. A
# subscriber that has stopped permanently must not stop the services, so they continue after this time.
_MAX_STALL_NS: Final = 5_000_000_000
_MAX_QUEUED_BYTES: Final = 16 << 20
# Messages handled in one duty cycle.
_BATCH: Final = 64
# Longest wait of an idle service. A message ends the wait at once.
_IDLE_S: Final = 0.05


class ServiceCounters(CounterSet, name="service"):
    """Counters of a service."""

    requests = counter("Events for this service.", unit="events", aeron=True)
    published = counter("Events published on the status stream.", unit="events")
    unpublished = counter(
        "Events without a subscriber, or dropped because the stream was full.", unit="events"
    )
    malformed = counter("Malformed events for this service.", unit="events", aeron=True)
    before_start = counter("Events sent before the service started.", unit="events")
    foreign = counter("Events for other services.", unit="events")
    unreadable = counter("Messages on the control stream that are not events.", unit="messages")
    overflowed = counter("Events dropped because the queue was full.", unit="events", aeron=True)


class ServiceAgent:
    """The duty cycle of a service. It may share a runner with other agents of its role."""

    def __init__(
        self,
        service: Service,
        conductor: _native.Conductor,
        streams: ServiceStreams,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.service = service
        self._clock = clock
        self.name = service.tag
        self.counters = ServiceCounters()
        self._mailbox = _native.Mailbox(conductor, streams.control_channel, streams.control, service.tags)
        self._status = _native.Publication(conductor, streams.status_channel, streams.status)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._lost = 0
        """Events that were dropped since the last report of lost events."""
        self._stalled_ns: int | None = None
        """Since when the status stream takes no events."""
        # Aeron may deliver messages that were sent before this subscription existed. Their clients have
        # already reported a missing service. Clocks of two hosts differ, so only IPC streams are checked.
        self._started_ns = clock.monotonic_ns() if streams.control_channel.startswith("aeron:ipc") else None
        mailbox = self._mailbox
        self.counters.foreign.bind(lambda: mailbox.counters().foreign)
        self.counters.unreadable.bind(lambda: mailbox.counters().unreadable)
        self.counters.overflowed.bind(lambda: mailbox.counters().overflowed)

    def is_ready(self) -> bool:
        """Whether both streams are open."""
        return self._mailbox.is_ready and self._status.is_ready

    @property
    def commands(self) -> _native.Mailbox:
        """The received events that are not handled yet."""
        return self._mailbox

    @property
    def queued(self) -> int:
        """Events that the status stream has not taken yet."""
        return len(self._queue)

    def do_work(self) -> int:
        """Handles received events and publishes replies and changes."""
        published = self._publish()
        messages = [] if self._must_wait() else self._mailbox.take(_BATCH)
        for message in messages:
            self._on_message(message)
        for event in self.service.take_events():
            self._enqueue(event)
        return len(messages) + published + self._publish()

    def _must_wait(self) -> bool:
        """Whether commands wait until the status stream takes the replies to earlier ones."""
        if not self._queue:
            self._stalled_ns = None
            return False
        now_ns = self._clock.monotonic_ns()
        if self._stalled_ns is None:
            self._stalled_ns = now_ns
        return now_ns - self._stalled_ns < _MAX_STALL_NS

    def idle(self, work: int) -> None:
        """Waits for the next message: the idle strategy of a service's own runner."""
        if not work and not self._queue:
            self._mailbox.wait(_IDLE_S)

    def on_close(self) -> None:
        """Publishes queued events and closes the streams."""
        self._publish()
        self._mailbox.close()
        self._status.close()

    def _on_message(self, message: bytes) -> None:
        try:
            event = Event.decode(message)
        except CodecError as error:
            self.counters.malformed.add()
            _log.warning("%s: a malformed event was ignored: %s", self.name, error)
            return
        if self._is_older(event):
            self.counters.before_start.add()
            return
        self.counters.requests.add()
        for reply in self.service.handle(event):
            self._enqueue(reply)
            # At once: the echo of a command must be published before the command runs.
            self._publish()

    def _is_older(self, event: Event) -> bool:
        """Whether the event is older than this service.

        The ages are compared, not the times of day: after the clock was set back, every new event would seem
        older than the start.
        """
        if self._started_ns is None:
            return False
        age_ns = self._clock.wall_ns() - event.timestamp_ns
        return age_ns > self._clock.monotonic_ns() - self._started_ns

    def _enqueue(self, event: Event) -> None:
        """Queues an event for the status stream, or the reason why it cannot be encoded."""
        try:
            encoded = event.encode(self._clock)
            limit = self._status.max_message_length
            if limit is not None and len(encoded) > limit:
                raise CodecError(f"{len(encoded)} bytes exceed the maximum message length of {limit}")
        except CodecError as error:
            _log.error("%s: %s cannot be published: %s", self.name, event.key, error)
            key = event.key.removesuffix(RESULT).removesuffix(READ) + FAILED
            encoded = Event(self.service.tag, key, str(error), event.correlation_id).encode(self._clock)
        self._queue.append(encoded)
        self._queued_bytes += len(encoded)

    def _publish(self) -> int:
        sent = 0
        while self._queue:
            if self._lost and not self._report_lost():
                if not self._is_full:
                    break
                outcome = "back_pressured"
            else:
                outcome = self._status.offer(self._queue[0])
            if outcome == "back_pressured":
                if not self._is_full:
                    break
                self._lost += 1
            if outcome == "sent":
                self.counters.published.add()
            else:
                # Without a subscriber the event is not kept; a later subscriber gets no old events.
                self.counters.unpublished.add()
            self._queued_bytes -= len(self._queue.popleft())
            sent += 1
        return sent

    @property
    def _is_full(self) -> bool:
        return len(self._queue) > _MAX_QUEUED or self._queued_bytes > _MAX_QUEUED_BYTES

    def _report_lost(self) -> bool:
        """Publishes how many events are missing here; False if the stream takes nothing."""
        event = Event(self.service.tag, LOST, self._lost).encode(self._clock)
        if self._status.offer(event) == "back_pressured":
            return False
        self._lost = 0
        return True


class RunningService:
    """A service on its own thread, until closed."""

    def __init__(self, agent: ServiceAgent) -> None:
        self.agent = agent
        self._runner = Runner(agent, idle=agent)
        self._runner.start()

    @property
    def service(self) -> Service:
        """The service itself."""
        return self.agent.service

    @property
    def is_ready(self) -> bool:
        """Whether the service's streams are open."""
        return self.agent.is_ready()

    def close(self) -> None:
        """Stops the thread and closes the streams."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
