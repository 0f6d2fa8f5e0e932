"""The sign of life in a stream's memory (wire §15.14): read by whoever may read it.

An announce names the file, and an announce may come from anybody: only what lies in the canonical layout is
opened, no link is followed, and nothing but a region's first bytes is looked at.

Ears on every stream that tells of a system, and what they heard for those who want to know.

`Ears.poll` reads what has come and hands it on; it takes no lease, and nobody waits for it.

Python's collector, for commands that are there to keep a picture.
"""

from __future__ import annotations

import gc
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Final, Protocol, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import MediaDriverUnavailable
from ..sbe import MAGIC
from ..sbe.wire import ShmPoolAnnounce, ShmRegionSuperblock
from ..shm.inspect import NotARegion, region_path
from ..transport.channels import ServiceStreams
from .model import LedgerAudit, SystemModel
from .reports import Activity, ListenerPaused, MessageReader, RejectedMessage, read_status_event
from .services import ServicePoller
from .snapshot import Snapshot
from .streams import ModelLimits

_CANONICAL: Final = re.compile(r"/tensorpool-[^/]+/[^/]+/(\d+)/(\d+)/header\.ring$")
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SUPERBLOCK_BYTES: Final = 64


def read_activity(stream_id: int, epoch: int, header_uri: str) -> Activity | None:
    """None where it cannot be read, or is another epoch's."""
    try:
        path, _ = region_path(header_uri)
    except NotARegion:
        return None
    found = _CANONICAL.search(str(path))
    if found is None or (int(found[1]), int(found[2])) != (stream_id, epoch):
        return None
    try:
        block = _first_bytes(str(path))
    except OSError:
        return None
    if block is None or len(block) < _SUPERBLOCK_BYTES:
        return None
    magic_at, epoch_at, activity_at = _offsets()
    magic, said, activity_ns = (
        struct.unpack_from("<Q", block, at)[0] for at in (magic_at, epoch_at, activity_at)
    )
    return Activity(stream_id, epoch, activity_ns) if (magic, said) == (MAGIC, epoch) else None


def _first_bytes(path: str) -> bytes | None:
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.pread(descriptor, _SUPERBLOCK_BYTES, 0)
    finally:
        os.close(descriptor)


@cache
def _offsets() -> tuple[int, int, int]:
    fields = {one.name: one.offset for one in ShmRegionSuperblock.layout().encoded_fields}
    return fields["magic"], fields["epoch"], fields["activityTimestampNs"]


_BATCH: Final = 512
_MOST_A_TURN: Final = 8192
"""Messages that are read of one stream before the others have their turn."""
_READY_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.005
_REMEMBER_NS: Final = 15_000_000_000


class Observer(Protocol):
    """Who wants to know."""

    def observe(self, event: object, now_ns: int) -> None: ...


class SystemListener:
    """Announces, metadata, reports, control, and what services and attachments tell."""

    def __init__(
        self,
        conductor: _native.Conductor,
        *,
        stream_ids: Iterable[int],
        services: ServiceStreams,
        observers: Iterable[Observer],
        bounds: ModelLimits,
        clock: Clock = SYSTEM_CLOCK,
        asks: bool = True,
    ) -> None:
        self._clock = clock
        first, *others = observers
        self._tell = _tell_all((first, *others)) if others else first.observe
        self._reader = MessageReader()
        self._asking = ServicePoller(bounds.report_period_ns) if asks else None
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
            self._tell(ListenerPaused(now_ns - self._polled_ns), now_ns)
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
            self._tell(RejectedMessage("overflowed", overflowed - self._overflowed), now_ns)
            self._overflowed = overflowed
        return heard

    def _hear_word(self, message: bytes, now_ns: int) -> None:
        word = read_status_event(message)
        if word is None:
            # Values of other formats are the business of whoever asked for them.
            return
        if self._asking is not None and word.correlation_id:
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


class SystemMonitor:
    """A look at the system around a context: ears and a picture. Poll it, or `watch` for a while."""

    def __init__(
        self,
        context: Context,
        *,
        observers: Iterable[Observer] = (),
        audit: LedgerAudit | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.bounds = model_limits(context)
        self.picture = SystemModel(self.bounds, audit)
        self.ears = open_listener(context, (self.picture, *observers), self.bounds, clock)
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


def model_limits(context: Context) -> ModelLimits:
    return ModelLimits(
        announce_period_ns=context.connection.announce_period_ns,
        report_period_ns=context.connection.report_period_ns,
    )


def open_listener(
    context: Context, observers: Iterable[Observer], bounds: ModelLimits, clock: Clock
) -> SystemListener:
    """Ears on the streams of a context."""
    ids = context.stream_ids
    return SystemListener(
        context.connection.conductor,
        stream_ids=(ids.announce, ids.metadata, ids.qos, ids.control),
        services=context.service_streams,
        observers=observers,
        bounds=bounds,
        clock=clock,
    )


_NEW_OBJECTS: Final = 100_000


@contextmanager
def reduced_gc() -> Iterator[None]:
    """For a command's whole run, once it has imported what it needs.

    A picture replaces tens of thousands of objects a second, none of them in a cycle. Looking for cycles
    among them all, again and again, took a quarter of the time of a supervisor of a thousand streams.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
