"""The picture of a running system (wire §10.5): what is heard goes in with its time, snapshots come out.

Pure. Soft state: nothing is stored. Who falls silent is forgotten; after a restart the picture is back when
everybody has spoken once. Whatever a stranger sends, it stays within its bounds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..attributes.tags import read_attributes
from ..sbe.driver import ShmDriverShutdown, ShmLeaseRevoked
from ..sbe.wire import (
    ConsumerConfig,
    ConsumerConfigR2,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    ShmPoolAnnounce,
)
from .bounds import Bounds
from .events import (
    Activity,
    AnnouncedAgain,
    BridgeTold,
    ConsumerReport,
    ConsumerTold,
    DriverTold,
    Happened,
    LatencyTold,
    LeasesTold,
    ProducerReport,
    ProducerTold,
    RecorderTold,
    ServiceSeen,
    Slept,
    Unheard,
    WrittenTold,
)
from .heard import ConsumerHeard, ProducerHeard, StreamHeard
from .showing import Sight, lineage, show
from .told import Services
from .views import CollisionView, LedgerView, NoticeView, Snapshot

_MOST_COLLISIONS: Final = 1024
_MOST_NOTICES: Final = 512
_LONGEST_NAME: Final = 1024


@dataclass(slots=True)
class _Collision:
    times: int
    at_ns: int


class Audit(Protocol):
    """Who keeps the ledger of what is heard."""

    def handler(self, kind: type) -> Callable[[Any, int], None] | None:
        """Who takes events of this kind; None where nobody wants them."""

    def look(self, now_ns: int) -> LedgerView: ...


class Picture:
    """`observe` what is heard, and take a `snapshot` whenever one is wanted. Owned by one thread."""

    def __init__(self, bounds: Bounds | None = None, audit: Audit | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._audit = audit
        self._streams: dict[int, StreamHeard] = {}
        self._consumers = 0
        self._services = Services(self.bounds.forget_service_ns)
        self._collisions: dict[tuple[str, int, int], _Collision] = {}
        self._notices: deque[tuple[int, Happened]] = deque(maxlen=_MOST_NOTICES)
        self._unheard: Counter[str] = Counter()
        self._next_sweep_ns = 0
        services = self._services
        handlers: dict[type, Callable[[Any, int], object]] = {
            ConsumerReport: self._on_consumer_report,
            ProducerReport: self._on_producer_report,
            AnnouncedAgain: self._on_announced_again,
            ShmPoolAnnounce: self._on_announce,
            DataSourceAnnounce: self._on_source,
            DataSourceMeta: self._on_meta,
            Activity: self._on_activity,
            ConsumerTold: self._on_consumer_told,
            LatencyTold: self._on_latency,
            ProducerTold: self._on_producer_told,
            ConsumerHello: self._on_hello,
            ConsumerConfig: self._on_config,
            ConsumerConfigR2: self._on_config,
            ShmLeaseRevoked: self._on_revoked,
            ShmDriverShutdown: self._on_shutdown,
            ServiceSeen: self._kept(services.on_seen, "full"),
            DriverTold: self._kept(services.on_driver, "service"),
            LeasesTold: self._kept(services.on_leases, "service"),
            RecorderTold: self._kept(services.on_recorder, "service"),
            WrittenTold: self._kept(services.on_written, "service"),
            BridgeTold: self._kept(services.on_bridge, "service"),
            Slept: self._on_slept,
            Happened: lambda what, now: self._notices.append((now, what)),
            Unheard: lambda what, now: self.unheard(what.reason, what.count),
        }
        self._by_type = {
            kind: (handle, None if audit is None else audit.handler(kind))
            for kind, handle in handlers.items()
        }

    def observe(self, event: object, now_ns: int) -> None:
        """One message, read, and when it was heard. What is not known is counted; nothing is raised."""
        if now_ns >= self._next_sweep_ns and type(event) is not Slept:
            self._sweep(now_ns)
        found = self._by_type.get(type(event))
        if found is None:
            self.unheard("unknown")
            return
        handle, audit = found
        handle(event, now_ns)
        if audit is not None:
            audit(event, now_ns)

    def _kept(self, keep: Callable[[Any, int], bool], reason: str) -> Callable[[Any, int], None]:
        def handle(told: Any, now_ns: int) -> None:
            if not keep(told, now_ns):
                self.unheard(reason)

        return handle

    def unheard(self, reason: str, count: int = 1) -> None:
        self._unheard[reason] += count

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerHeard | None:
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.consumers.get(consumer_id)

    # --- streams

    def _stream(self, stream_id: int, now_ns: int) -> StreamHeard | None:
        found = self._streams.get(stream_id)
        if found is None:
            if len(self._streams) >= self.bounds.max_streams:
                self.unheard("full")
                return None
            found = self._streams[stream_id] = StreamHeard(stream_id, now_ns)
        found.heard_ns = now_ns
        return found

    def _on_announced_again(self, again: AnnouncedAgain, now_ns: int) -> None:
        stream = self._streams.get(again.stream_id)
        if stream is not None and stream.announce is not None and stream.announce.epoch == again.epoch:
            stream.announced_ns = stream.heard_ns = now_ns
        else:
            self._on_announce(again.announce, now_ns)

    def _on_announce(self, said: ShmPoolAnnounce, now_ns: int) -> None:
        stream = self._stream(said.stream_id, now_ns)
        if stream is None:
            return
        before = stream.announce
        is_fresh = now_ns - stream.announced_ns <= self.bounds.stale_ns
        if before is not None and said.epoch < before.epoch and is_fresh:
            # A dying owner may speak once more after its successor did; one that goes on is another's.
            self._collide("stream", said.stream_id, said.stream_id, now_ns)
            return
        if before is None or said.epoch != before.epoch:
            stream.epochs += 1
            stream.activity_ns = None
            self._note(now_ns, "epoch", said.stream_id, f"epoch {said.epoch}")
        if before is not None and said.producer_id != before.producer_id:
            self._note(now_ns, "producer", said.stream_id, _who(said.producer_id))
        stream.on_announce(said, now_ns)
        if not said.producer_id:
            stream.producer = None

    def _on_source(self, said: DataSourceAnnounce, now_ns: int) -> None:
        stream = self._stream(said.stream_id, now_ns)
        if stream is not None:
            stream.names[said.meta_version != 0] = (said.name[:_LONGEST_NAME], said.summary[:_LONGEST_NAME])

    def _on_meta(self, said: DataSourceMeta, now_ns: int) -> None:
        stream = self._stream(said.stream_id, now_ns)
        if stream is not None:
            stream.labels[said.meta_version != 0] = read_attributes(said.attributes)

    def _on_activity(self, activity: Activity, now_ns: int) -> None:
        stream = self._streams.get(activity.stream_id)
        if stream is not None and stream.epoch == activity.epoch:
            stream.activity_ns = activity.activity_ns

    # --- producers

    def _on_producer_report(self, report: ProducerReport, now_ns: int) -> None:
        producer = self._producer(report.stream_id, report.producer_id, report.epoch, now_ns)
        if producer is not None and not producer.on_report(report, now_ns):
            self._collide("producer", report.stream_id, report.producer_id, now_ns)

    def _on_producer_told(self, told: ProducerTold, now_ns: int) -> None:
        producer = self._producer(told.stream_id, told.producer_id, told.epoch, now_ns)
        if producer is not None:
            producer.on_told(told, now_ns)

    def _producer(self, stream_id: int, producer_id: int, epoch: int, now_ns: int) -> ProducerHeard | None:
        stream = self._stream(stream_id, now_ns)
        if stream is None:
            return None
        known = stream.producer
        if known is not None and known.producer_id == producer_id:
            return known
        if stream.announce is not None and epoch < stream.announce.epoch:
            # Of an epoch that is over: a last word, if it does not go on.
            return None
        is_former = stream.former_id == producer_id and now_ns - stream.former_ns <= self.bounds.stale_ns
        if known is not None and is_former:
            self._collide("producer", stream_id, producer_id, now_ns)
        if known is not None:
            stream.former_id, stream.former_ns = known.producer_id, now_ns
        stream.producer = ProducerHeard(producer_id, epoch, now_ns, now_ns)
        return stream.producer

    # --- consumers

    def _consumer(self, stream_id: int, consumer_id: int, epoch: int, now_ns: int) -> ConsumerHeard | None:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._stream(stream_id, now_ns)
            if stream is None:
                return None
        stream.heard_ns = now_ns
        known = stream.consumers.get(consumer_id)
        if known is None:
            if self._consumers >= self.bounds.max_consumers:
                self.unheard("full")
                return None
            self._consumers += 1
            known = stream.consumers[consumer_id] = ConsumerHeard(stream_id, consumer_id, epoch, now_ns)
            self._note(now_ns, "consumer", stream_id, f"consumer {consumer_id} came")
        return known

    def _on_consumer_report(self, report: ConsumerReport, now_ns: int) -> None:
        known = self._consumer(report.stream_id, report.consumer_id, report.epoch, now_ns)
        if known is not None and not known.on_report(report, now_ns):
            self._collide("consumer", report.stream_id, report.consumer_id, now_ns)

    def _on_consumer_told(self, told: ConsumerTold, now_ns: int) -> None:
        known = self._consumer(told.stream_id, told.consumer_id, told.epoch or 0, now_ns)
        if known is not None and not known.on_told(told, now_ns):
            self._collide("consumer", told.stream_id, told.consumer_id, now_ns)
        if told.is_final:
            self._left(told.stream_id, told.consumer_id, now_ns)

    def _left(self, stream_id: int, consumer_id: int, now_ns: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.consumers.pop(consumer_id, None) is not None:
            self._consumers -= 1
            self._note(now_ns, "consumer", stream_id, f"consumer {consumer_id} left")

    def _on_latency(self, told: LatencyTold, now_ns: int) -> None:
        known = self.consumer(told.stream_id, told.consumer_id)
        if known is not None:
            known.on_latency(told, now_ns)

    def _on_hello(self, hello: ConsumerHello, now_ns: int) -> None:
        known = self._consumer(hello.stream_id, hello.consumer_id, 0, now_ns)
        if known is not None:
            known.on_hello(hello, now_ns)

    def _on_config(self, config: ConsumerConfig | ConsumerConfigR2, now_ns: int) -> None:
        known = self.consumer(config.stream_id, config.consumer_id)
        if known is not None:
            known.own_stream_id = config.descriptor_stream_id
            known.fallback_uri = "" if config.use_shm else config.payload_fallback_uri

    # --- leases and the driver's end

    def _on_revoked(self, said: ShmLeaseRevoked, now_ns: int) -> None:
        self._services.on_revoked(said.lease_id)
        what = f"{said.role.name.lower()} {said.client_id}: {said.reason.name.lower()}"
        self._note(now_ns, "lease", said.stream_id, f"{what} {said.error_message[:256]}".strip())
        self._left(said.stream_id, said.client_id, now_ns)

    def _on_shutdown(self, said: ShmDriverShutdown, now_ns: int) -> None:
        text = f"driver: {said.reason.name.lower()} {said.error_message[:256]}".strip()
        self._note(now_ns, "shutdown", None, text)

    # --- what is odd, and what is over

    def _collide(self, kind: str, stream_id: int, number: int, now_ns: int) -> None:
        key = (kind, stream_id, number)
        known = self._collisions.get(key)
        if known is None:
            if len(self._collisions) >= _MOST_COLLISIONS:
                del self._collisions[next(iter(self._collisions))]
            known = self._collisions[key] = _Collision(0, now_ns)
        known.times += 1
        known.at_ns = now_ns

    def _note(self, now_ns: int, kind: str, stream_id: int | None, text: str) -> None:
        self._notices.append((now_ns, Happened(kind, stream_id, text)))

    def _on_slept(self, slept: Slept, now_ns: int) -> None:
        """Everybody has time to be heard again before it counts as silent."""
        self._next_sweep_ns = now_ns + self.bounds.awake_ns

    def _sweep(self, now_ns: int) -> None:
        """Forgets who fell silent; a few times a second is enough."""
        bounds = self.bounds
        self._next_sweep_ns = now_ns + bounds.report_period_ns // 2
        self._services.expire(now_ns)
        old_ns = now_ns - bounds.forget_stream_ns
        silent_ns, former_ns = now_ns - bounds.forget_consumer_ns, now_ns - bounds.forget_former_ns
        for stream in list(self._streams.values()):
            # Hardly anybody: one comparison each for all others.
            for one in [one for one in stream.consumers.values() if one.heard_ns < former_ns]:
                if one.heard_ns < silent_ns or one.epoch < stream.epoch:
                    self._left(stream.stream_id, one.consumer_id, now_ns)
            if stream.producer is not None and stream.producer.heard_ns < old_ns:
                stream.producer = None
            if stream.heard_ns < old_ns and stream.announced_ns < old_ns:
                self._consumers -= len(stream.consumers)
                del self._streams[stream.stream_id]
        for key in [key for key, one in self._collisions.items() if one.at_ns < old_ns]:
            del self._collisions[key]

    # --- shown

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def consumers(self) -> int:
        return self._consumers

    def sight(self, now_ns: int) -> Sight:
        """For a look at a few things of it: much less work than a snapshot."""
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        return Sight(self._streams, self.bounds, now_ns)

    def ledger(self, now_ns: int) -> LedgerView | None:
        return None if self._audit is None else self._audit.look(now_ns)

    def snapshot(self, now_ns: int) -> Snapshot:
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        bridges = self._services.bridges(now_ns)
        made_from, feeds = lineage(self._streams.values(), bridges)
        return Snapshot(
            now_ns=now_ns,
            streams=tuple(
                show(self._streams[id_], self.bounds, now_ns, made_from.get(id_, ()), feeds.get(id_, ()))
                for id_ in sorted(self._streams)
            ),
            leases=self._services.leases(),
            drivers=self._services.drivers(now_ns),
            bridges=bridges,
            recorders=self._services.recorders(now_ns),
            services=self._services.services(now_ns),
            collisions=tuple(
                CollisionView(kind, stream_id, number, one.times, now_ns - one.at_ns)
                for (kind, stream_id, number), one in sorted(self._collisions.items())
                if one.times >= _SURE.get(kind, 1)
            ),
            notices=tuple(
                NoticeView(now_ns - at_ns, what.kind, what.stream_id, what.text)
                for at_ns, what in self._notices
            ),
            unheard=dict(sorted(self._unheard.items())),
            ledger=self.ledger(now_ns),
        )


_SURE: Final = {"stream": 3, "consumer": 2, "producer": 2}
"""So often a contradiction must be heard: once may be a last word, or a program that began anew."""


def _who(producer_id: int) -> str:
    return f"producer {producer_id}" if producer_id else "no producer"
