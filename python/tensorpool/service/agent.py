"""A service at work: mailbox → `Service.handle` → status stream."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CodecError
from ..runtime.counters import CounterSet, counter
from ..runtime.runner import Runner
from ..transport.channels import ServiceStreams
from .events import FAILED, RESULT, Event
from .service import Service

_log = logging.getLogger(__name__)

# Answers that wait for a full status stream; beyond this the oldest are dropped and counted.
_MAX_WAITING = 4096
_MAX_WAITING_BYTES = 16 << 20
# How long an idle service sleeps if nothing arrives; what arrives wakes it at once.
_IDLE_S = 0.05


class ServiceCounters(CounterSet, name="service"):
    """What a service counts."""

    requests = counter("Events for this service.", unit="events", aeron=True)
    published = counter("Events that went out on the status stream.", unit="events")
    unpublished = counter("Events that nobody heard, or that found the stream full.", unit="events")
    malformed = counter("Events for this service that could not be read.", unit="events", aeron=True)
    before_start = counter("Events that were sent before the service was there.", unit="events")
    foreign = counter("Events for others.", unit="events")
    unreadable = counter("Messages on the control stream that are no events.", unit="messages")
    overflowed = counter("Events dropped because too many waited.", unit="events", aeron=True)


class ServiceAgent:
    """The duty cycle of a service. It may share a runner with the rest of its role."""

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
        self._mailbox = _native.Mailbox(conductor, streams.channel, streams.control, service.tags)
        self._status = _native.Publication(conductor, streams.channel, streams.status)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        # Aeron may hand a new reader what was sent before it came. Whoever sent that has been told that
        # nobody answers. Between hosts the clocks differ, so it is judged on one host only.
        self._started_ns = clock.monotonic_ns() if streams.channel.startswith("aeron:ipc") else None
        mailbox = self._mailbox
        self.counters.foreign.bind(lambda: mailbox.counters()["foreign"])
        self.counters.unreadable.bind(lambda: mailbox.counters()["unreadable"])
        self.counters.overflowed.bind(lambda: mailbox.counters()["overflowed"])

    def is_ready(self) -> bool:
        return self._mailbox.is_ready and self._status.is_ready

    def do_work(self) -> int:
        """Handles what has arrived and publishes what there is to say."""
        messages = self._mailbox.take(64)
        for message in messages:
            self._on_message(message)
        for event in self.service.tell():
            self._say(event)
        return len(messages) + self._publish()

    def idle(self, work: int) -> None:
        """Waits for the next message: an idle strategy that loses no time."""
        if not work and not self._waiting:
            self._mailbox.wait(_IDLE_S)

    def on_close(self) -> None:
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
        if self._is_from_before(event):
            self.counters.before_start.add()
            return
        self.counters.requests.add()
        for reply in self.service.handle(event):
            self._say(reply)
            # At once: the echo of a command is on record before the command runs.
            self._publish()

    def _is_from_before(self, event: Event) -> bool:
        """Older than this service. By its age: the time of day may have been set back since the start, and
        everybody would be ignored until it is what it was."""
        if self._started_ns is None:
            return False
        age_ns = self._clock.wall_ns() - event.timestamp_ns
        return age_ns > self._clock.monotonic_ns() - self._started_ns

    def _say(self, event: Event) -> None:
        """Puts an event in the queue for the status stream, or says why it cannot go."""
        try:
            encoded = event.encode(self._clock)
            limit = self._status.max_message_length
            if limit is not None and len(encoded) > limit:
                raise CodecError(f"{len(encoded)} bytes are more than one message holds ({limit})")
        except CodecError as error:
            _log.error("%s: %s cannot be told: %s", self.name, event.key, error)
            key = event.key.removesuffix(RESULT) + FAILED
            encoded = Event(self.service.tag, key, str(error), event.correlation_id).encode(self._clock)
        self._waiting.append(encoded)
        self._waiting_bytes += len(encoded)

    def _publish(self) -> int:
        sent = 0
        while self._waiting:
            outcome = self._status.offer(self._waiting[0])
            is_full = len(self._waiting) > _MAX_WAITING or self._waiting_bytes > _MAX_WAITING_BYTES
            if outcome == "back_pressured" and not is_full:
                break
            if outcome == "sent":
                self.counters.published.add()
            else:
                # Nobody listens: there is no record to keep, and nobody to keep it from.
                self.counters.unpublished.add()
            self._waiting_bytes -= len(self._waiting.popleft())
            sent += 1
        return sent


class RunningService:
    """A service on a thread of its own, until closed."""

    def __init__(self, agent: ServiceAgent) -> None:
        self.agent = agent
        self._runner = Runner(agent, idle=agent)
        self._runner.start()

    @property
    def service(self) -> Service:
        return self.agent.service

    @property
    def is_ready(self) -> bool:
        return self.agent.is_ready()

    def close(self) -> None:
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
