"""Ears on every stream that tells of a system, and what they heard for those who want to know.

`Ears.poll` reads what has come and hands it on; it takes no lease, and nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Protocol, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import MediaDriverUnavailable
from ..sbe.wire import ShmPoolAnnounce
from ..transport.channels import ServiceStreams
from .activity import read_activity
from .asking import Asking
from .bounds import Bounds
from .events import Slept, Unheard, read_told
from .picture import Audit, Picture
from .reading import Reader, read_word
from .views import Snapshot

_BATCH: Final = 512
_MOST_A_TURN: Final = 8192
"""Messages that are read of one stream before the others have their turn."""
_READY_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.005
_REMEMBER_NS: Final = 15_000_000_000
_KINDS: Final = {"account": ("producer", "consumer"), "latency": ("consumer",)}


class Observer(Protocol):
    """Who wants to know."""

    def observe(self, event: object, now_ns: int) -> None: ...


class Ears:
    """Announces, metadata, reports, control, and what services and attachments tell."""

    def __init__(
        self,
        conductor: _native.Conductor,
        *,
        stream_ids: Iterable[int],
        services: ServiceStreams,
        observers: Iterable[Observer],
        bounds: Bounds,
        clock: Clock = SYSTEM_CLOCK,
        asks: bool = True,
    ) -> None:
        self._clock = clock
        first, *others = observers
        self._tell = _tell_all((first, *others)) if others else first.observe
        self._reader = Reader()
        self._asking = Asking(bounds.report_period_ns) if asks else None
        # A reader that falls behind must stall nobody: what it missed comes again.
        self._ears = [
            _native.Subscription(conductor, "aeron:ipc?tether=false", stream)
            for stream in dict.fromkeys(stream_ids)
        ]
        self._status = _native.Mailbox(conductor, services.channel, services.status, [])
        self._questions = _native.Publication(conductor, services.channel, services.control)
        self._regions: dict[int, tuple[int, str]] = {}
        self._activity_period_ns = bounds.announce_period_ns
        self._max_streams = bounds.max_streams
        self._awake_ns = bounds.awake_ns
        self._polled_ns: int | None = None
        self._next_activity_ns = 0
        self._next_forget_ns = 0
        self._overflowed = 0

    @property
    def is_ready(self) -> bool:
        return all(ear.is_ready for ear in self._ears) and self._status.is_ready

    @property
    def failure(self) -> str | None:
        return next((ear.failure for ear in self._ears if ear.failure), None)

    def poll(self) -> int:
        """Reads what is there, and says how much that was. What is garbage is counted, and never raised."""
        now_ns = self._clock.monotonic_ns()
        if self._polled_ns is not None and now_ns - self._polled_ns > self._awake_ns:
            self._tell(Slept(now_ns - self._polled_ns), now_ns)
        self._polled_ns = now_ns
        heard = sum(self._drain(ear, now_ns) for ear in self._ears) + self._hear_status(now_ns)
        if now_ns >= self._next_activity_ns:
            self._next_activity_ns = now_ns + self._activity_period_ns
            self._look_at_memory(now_ns)
        if now_ns >= self._next_forget_ns:
            self._next_forget_ns = now_ns + _REMEMBER_NS
            self._reader.forget()
        if self._asking is not None:
            for question in self._asking.due(now_ns):
                self._questions.offer(question.encode(self._clock))
        return heard

    def _drain(self, ear: _native.Subscription, now_ns: int) -> int:
        heard = 0
        while heard < _MOST_A_TURN and (messages := ear.poll(_BATCH)):
            heard += len(messages)
            for event in self._reader.heard(messages):
                if type(event) is ShmPoolAnnounce:
                    self._note_region(event)
                self._tell(event, now_ns)
        return heard

    def _hear_status(self, now_ns: int) -> int:
        heard = 0
        while heard < _MOST_A_TURN and (messages := self._status.take(_BATCH)):
            heard += len(messages)
            for one in self._reader.told(messages):
                if type(one) is bytes:
                    self._hear_word(one, now_ns)
                else:
                    self._tell(one, now_ns)
        overflowed = self._status.counters()["overflowed"]
        if overflowed != self._overflowed:
            self._tell(Unheard("overflowed", overflowed - self._overflowed), now_ns)
            self._overflowed = overflowed
        return heard

    def _hear_word(self, message: bytes, now_ns: int) -> None:
        word = read_word(message)
        if word is None:
            # Values of other formats are the business of whoever asked for them.
            return
        parts = word.tag.split(":", 2)
        if len(parts) == 3 and parts[1] in _KINDS.get(word.key, ()):
            told = read_told("latency" if word.key == "latency" else parts[1], word.value)
            self._tell(Unheard("malformed") if told is None else told, now_ns)
        elif self._asking is not None and word.correlation_id:
            facts, questions = self._asking.on_word(word)
            for fact in facts:
                self._tell(fact, now_ns)
            for question in questions:
                self._questions.offer(question.encode(self._clock))

    def _note_region(self, said: ShmPoolAnnounce) -> None:
        if said.stream_id in self._regions or len(self._regions) < self._max_streams:
            self._regions[said.stream_id] = (said.epoch, said.header_region_uri)

    def _look_at_memory(self, now_ns: int) -> None:
        for stream_id, (epoch, uri) in list(self._regions.items()):
            activity = read_activity(stream_id, epoch, uri)
            if activity is None:
                # Gone, or not for us to read: the next announce that differs names it again.
                del self._regions[stream_id]
            else:
                self._tell(activity, now_ns)

    def close(self) -> None:
        for ear in self._ears:
            ear.close()
        self._status.close()
        self._questions.close()


class Watcher:
    """A look at the system around a context: ears and a picture. Poll it, or `watch` for a while."""

    def __init__(
        self,
        context: Context,
        *,
        observers: Iterable[Observer] = (),
        audit: Audit | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.bounds = bounds_of(context)
        self.picture = Picture(self.bounds, audit)
        self.ears = ears_on(context, (self.picture, *observers), self.bounds, clock)
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self.ears.is_ready:
            if time.monotonic() > deadline:
                why = self.ears.failure or "it did not answer"
                self.close()
                raise MediaDriverUnavailable(
                    f"the media driver in {context.aeron_dir} gave no streams: {why}",
                    aeron_dir=context.aeron_dir,
                )
            time.sleep(0.001)

    def poll(self) -> int:
        return self.ears.poll()

    def snapshot(self) -> Snapshot:
        return self.picture.snapshot(self._clock.monotonic_ns())

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Listens for so long; True as soon as `until` says so."""
        deadline = time.monotonic() + seconds
        while True:
            heard = self.poll()
            if until():
                return True
            if time.monotonic() >= deadline:
                return False
            if not heard:
                time.sleep(_LOOK_S)

    def close(self) -> None:
        self.ears.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _tell_all(observers: tuple[Observer, ...]) -> Callable[[object, int], None]:
    def tell(event: object, now_ns: int) -> None:
        for one in observers:
            one.observe(event, now_ns)

    return tell


def bounds_of(context: Context) -> Bounds:
    return Bounds(announce_period_ns=context._announce_period_ns, report_period_ns=context._streams.period_ns)


def ears_on(context: Context, observers: Iterable[Observer], bounds: Bounds, clock: Clock) -> Ears:
    """Ears on the streams of a context."""
    ids = context.stream_ids
    return Ears(
        context._conductor,
        stream_ids=(ids.announce, ids.metadata, ids.qos, ids.control),
        services=context.service_streams,
        observers=observers,
        bounds=bounds,
        clock=clock,
    )
