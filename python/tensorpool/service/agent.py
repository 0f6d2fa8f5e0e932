"""A service at work: mailbox → `Service.handle` → status stream."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CodecError
from ..runtime.runner import Runner
from .events import Event
from .service import Service
from .streams import ServiceStreams

_log = logging.getLogger(__name__)

# Answers that wait for a full status stream; beyond this the oldest are dropped and counted.
_MAX_WAITING = 4096
# How long an idle service sleeps if nothing arrives; what arrives wakes it at once.
_IDLE_S = 0.05


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
        self.malformed = 0
        self.unpublished = 0
        self._mailbox = _native.Mailbox(conductor, streams.channel, streams.control, service.tags)
        self._status = _native.Publication(conductor, streams.channel, streams.status)
        self._waiting: deque[bytes] = deque()

    def is_ready(self) -> bool:
        return self._mailbox.is_ready and self._status.is_ready

    def do_work(self) -> int:
        """Handles what has arrived and publishes what there is to say."""
        messages = self._mailbox.take(64)
        for message in messages:
            self._on_message(message)
        self._waiting.extend(event.encode(self._clock) for event in self.service.tell())
        return len(messages) + self._publish()

    def idle(self, work: int) -> None:
        """Waits for the next message: an idle strategy that loses no time."""
        if not work and not self._waiting:
            self._mailbox.wait(_IDLE_S)

    def on_close(self) -> None:
        self._publish()
        self._mailbox.close()
        self._status.close()

    def mailbox_counters(self) -> dict[str, int]:
        """Messages kept, foreign, unreadable, and dropped because the mailbox was full."""
        return self._mailbox.counters()

    def _on_message(self, message: bytes) -> None:
        try:
            event = Event.decode(message)
        except CodecError as error:
            self.malformed += 1
            if self.malformed == 1:
                _log.warning("%s: a malformed event was ignored: %s", self.name, error)
            return
        self._waiting.extend(reply.encode(self._clock) for reply in self.service.handle(event))

    def _publish(self) -> int:
        sent = 0
        while self._waiting:
            outcome = self._status.offer(self._waiting[0])
            if outcome == "back_pressured" and len(self._waiting) <= _MAX_WAITING:
                break
            # Nobody listens: there is no record to keep, and nobody to keep it from.
            self.unpublished += outcome != "sent"
            self._waiting.popleft()
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
