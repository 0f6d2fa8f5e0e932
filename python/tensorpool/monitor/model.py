"""From what is remembered to what is shown. Pure.

The picture of a running system (wire §10.5): what is heard goes in with its time, snapshots come out.

Pure. Soft state: nothing is stored. Who falls silent is forgotten; after a restart the picture is back when
everybody has spoken once. Whatever a stranger sends, it stays within its bounds.

A picture that one thread keeps, and that any thread may look at.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from ..attributes.tags import read_attributes
from ..clock import Clock
from ..sbe.driver import ShmDriverShutdown, ShmLeaseRevoked
from ..sbe.wire import (
    ConsumerConfig,
    ConsumerConfigR2,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    ShmPoolAnnounce,
)
from .reports import (
    Activity,
    BridgeStatus,
    ConsumerQos,
    ConsumerStatus,
    DriverLeases,
    DriverStatus,
    LatencyStatus,
    ListenerPaused,
    Notice,
    ProducerQos,
    ProducerStatus,
    RecorderLedger,
    RecorderStatus,
    RejectedMessage,
    RepeatedAnnounce,
    ServiceAlive,
)
from .services import ServiceRecords
from .snapshot import (
    BridgeView,
    CollisionView,
    ConsumerView,
    LatencyView,
    LedgerView,
    NoticeView,
    Snapshot,
    StreamState,
    StreamView,
)
from .streams import ModelLimits, MonitoredConsumer, MonitoredProducer, MonitoredStream

Condition = Literal["drops", "staleness", "latency", "backlog"]
"""Figures of a stream or consumer that a rule can watch."""


def lineage(
    streams: Iterable[MonitoredStream], bridges: Iterable[BridgeView]
) -> tuple[Mapping[int, set[int]], Mapping[int, set[int]]]:
    """By stream: what it is made from, and what is made from it."""
    made_from: dict[int, set[int]] = {}
    for bridge in bridges:
        for one in bridge.mappings:
            if one.direction == "receive" and one.dest_stream_id:
                made_from.setdefault(one.dest_stream_id, set()).add(one.source_stream_id)
    for stream in streams:
        told = None if stream.producer is None else stream.producer.told
        if told is not None and told.sources:
            made_from.setdefault(stream.stream_id, set()).update(told.sources)
    feeds: dict[int, set[int]] = {}
    for child, parents in made_from.items():
        for parent in parents - {child}:
            feeds.setdefault(parent, set()).add(child)
    return made_from, feeds


class ModelView:
    """What is remembered at one moment, for a look at some of it: good until the next word is heard."""

    def __init__(self, streams: Mapping[int, MonitoredStream], bounds: ModelLimits, now_ns: int) -> None:
        self._streams = streams
        self._forget_ns = bounds.forget_consumer_ns
        self._now_ns = now_ns

    def figures(self, when: Condition) -> Iterator[tuple[tuple[int, int | None], float | None]]:
        """What rules look at: of a stream, or of each of its consumers."""
        now_ns = self._now_ns
        for stream_id, stream in self._streams.items():
            readers = stream.consumers.items()
            match when:
                case "staleness":
                    producer = stream.producer
                    yield (stream_id, None), None if producer is None else (now_ns - producer.moved_ns) / 1e9
                case "drops":
                    for number, one in readers:
                        yield (stream_id, number), one.losses.per_s()
                case "latency":
                    for number, one in readers:
                        latency = one.latency_at(now_ns, self._forget_ns)
                        yield (stream_id, number), None if latency is None else latency.p99_ns / 1e9
                case "backlog":
                    current, epoch = stream.current_seq, stream.epoch
                    for number, one in readers:
                        yield (stream_id, number), one.backlog(current, epoch)

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        stream = self._streams.get(stream_id)
        one = None if stream is None else stream.consumers.get(consumer_id)
        if stream is None or one is None:
            return None
        return one.view(self._now_ns, stream.current_seq, stream.epoch, self._forget_ns)

    def own_stream_ids(self) -> set[int]:
        return {one.own_stream_id for stream in self._streams.values() for one in stream.consumers.values()}


def stream_view(
    stream: MonitoredStream, bounds: ModelLimits, now_ns: int, sources: Iterable[int], feeds: Iterable[int]
) -> StreamView:
    """A stream as it is at that moment."""
    announce = stream.announce
    current, epoch, forget_ns = stream.current_seq, stream.epoch, bounds.forget_consumer_ns
    consumers = tuple(
        one.view(now_ns, current, epoch, forget_ns) for _, one in sorted(stream.consumers.items())
    )
    name, summary = stream.names.get(True) or stream.names.get(False) or ("", "")
    tags, data_source_id = stream.labels.get(True) or stream.labels.get(False) or ((), None)
    return StreamView(
        stream_id=stream.stream_id,
        name=name,
        summary=summary,
        tags=tags,
        data_source_id=data_source_id,
        state=_state(stream, bounds, now_ns),
        epoch=epoch,
        epochs=stream.epochs,
        layout_version=0 if announce is None else announce.layout_version,
        nslots=0 if announce is None else announce.header_nslots,
        pools=stream.pools,
        nbytes=stream.nbytes,
        announce_age_ns=now_ns - (stream.announced_ns if announce is not None else stream.heard_ns),
        activity_age_ns=None if stream.activity_ns is None else max(now_ns - stream.activity_ns, 0),
        producer=None if stream.producer is None else stream.producer.view(now_ns),
        consumers=consumers,
        dropped=_summed(consumers),
        latency=_slowest(consumers),
        sources=tuple(sorted(sources)),
        feeds=tuple(sorted(feeds)),
    )


def _state(stream: MonitoredStream, bounds: ModelLimits, now_ns: int) -> StreamState:
    if stream.announce is None or now_ns - stream.announced_ns > bounds.stale_ns:
        return StreamState.STALE
    if stream.activity_ns is not None and now_ns - stream.activity_ns > 5 * bounds.announce_period_ns:
        return StreamState.STALE
    if not stream.announce.producer_id:
        return StreamState.NO_PRODUCER
    producer = stream.producer
    if producer is None or now_ns - producer.moved_ns > bounds.quiet_ns:
        return StreamState.QUIET
    return StreamState.LIVE


def _summed(consumers: tuple[ConsumerView, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in consumers:
        for reason, n in one.dropped.items():
            total[reason] = total.get(reason, 0) + n
    return dict(sorted(total.items())) if total else total


def _slowest(consumers: tuple[ConsumerView, ...]) -> LatencyView | None:
    told = [one.latency for one in consumers if one.latency is not None and one.latency.count]
    if not told:
        return None
    count, p50_ns, p99_ns, max_ns, since = 0, 0, 0, 0, told[0].since
    # Once a second for thousands: plain steps, no generators.
    for one in told:
        count += one.count
        p50_ns = one.p50_ns if one.p50_ns > p50_ns else p50_ns
        p99_ns = one.p99_ns if one.p99_ns > p99_ns else p99_ns
        max_ns = one.max_ns if one.max_ns > max_ns else max_ns
        since = since if one.since == since else "mixed"
    return LatencyView(count, p50_ns, p99_ns, max_ns, since)


_MOST_COLLISIONS: Final = 1024
_MOST_NOTICES: Final = 512
_LONGEST_NAME: Final = 1024


@dataclass(slots=True)
class _Collision:
    times: int
    at_ns: int


class LedgerAudit(Protocol):
    """Who keeps the ledger of what is heard."""

    def handler(self, kind: type) -> Callable[[Any, int], None] | None:
        """Who takes events of this kind; None where nobody wants them."""

    def look(self, now_ns: int) -> LedgerView: ...


class SystemModel:
    """`observe` what is heard, and take a `snapshot` whenever one is wanted. Owned by one thread."""

    def __init__(self, bounds: ModelLimits | None = None, audit: LedgerAudit | None = None) -> None:
        self.bounds = bounds or ModelLimits()
        self._audit = audit
        self._streams: dict[int, MonitoredStream] = {}
        self._consumers = 0
        self._services = ServiceRecords(self.bounds.forget_service_ns)
        self._collisions: dict[tuple[str, int, int], _Collision] = {}
        self._notices: deque[tuple[int, Notice]] = deque(maxlen=_MOST_NOTICES)
        self._unheard: Counter[str] = Counter()
        self._next_sweep_ns = 0
        services = self._services
        handlers: dict[type, Callable[[Any, int], object]] = {
            ConsumerQos: self._on_consumer_report,
            ProducerQos: self._on_producer_report,
            RepeatedAnnounce: self._on_announced_again,
            ShmPoolAnnounce: self._on_announce,
            DataSourceAnnounce: self._on_source,
            DataSourceMeta: self._on_meta,
            Activity: self._on_activity,
            ConsumerStatus: self._on_consumer_told,
            LatencyStatus: self._on_latency,
            ProducerStatus: self._on_producer_told,
            ConsumerHello: self._on_hello,
            ConsumerConfig: self._on_config,
            ConsumerConfigR2: self._on_config,
            ShmLeaseRevoked: self._on_revoked,
            ShmDriverShutdown: self._on_shutdown,
            ServiceAlive: self._kept(services.on_seen, "full"),
            DriverStatus: self._kept(services.on_driver, "service"),
            DriverLeases: self._kept(services.on_leases, "service"),
            RecorderStatus: self._kept(services.on_recorder, "service"),
            RecorderLedger: self._kept(services.on_written, "service"),
            BridgeStatus: self._kept(services.on_bridge, "service"),
            ListenerPaused: self._on_slept,
            Notice: lambda what, now: self._notices.append((now, what)),
            RejectedMessage: lambda what, now: self.unheard(what.reason, what.count),
        }
        self._by_type = {
            kind: (handle, None if audit is None else audit.handler(kind))
            for kind, handle in handlers.items()
        }

    def observe(self, event: object, now_ns: int) -> None:
        """One message, read, and when it was heard. What is not known is counted; nothing is raised."""
        if now_ns >= self._next_sweep_ns and type(event) is not ListenerPaused:
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

    def consumer(self, stream_id: int, consumer_id: int) -> MonitoredConsumer | None:
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.consumers.get(consumer_id)

    # --- streams

    def _stream(self, stream_id: int, now_ns: int) -> MonitoredStream | None:
        found = self._streams.get(stream_id)
        if found is None:
            if len(self._streams) >= self.bounds.max_streams:
                self.unheard("full")
                return None
            found = self._streams[stream_id] = MonitoredStream(stream_id, now_ns)
        found.heard_ns = now_ns
        return found

    def _on_announced_again(self, again: RepeatedAnnounce, now_ns: int) -> None:
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

    def _on_producer_report(self, report: ProducerQos, now_ns: int) -> None:
        producer = self._producer(report.stream_id, report.producer_id, report.epoch, now_ns)
        if producer is not None and not producer.on_report(report, now_ns):
            self._collide("producer", report.stream_id, report.producer_id, now_ns)

    def _on_producer_told(self, told: ProducerStatus, now_ns: int) -> None:
        producer = self._producer(told.stream_id, told.producer_id, told.epoch, now_ns)
        if producer is not None:
            producer.on_told(told, now_ns)

    def _producer(
        self, stream_id: int, producer_id: int, epoch: int, now_ns: int
    ) -> MonitoredProducer | None:
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
        stream.producer = MonitoredProducer(producer_id, epoch, now_ns, now_ns)
        return stream.producer

    # --- consumers

    def _consumer(
        self, stream_id: int, consumer_id: int, epoch: int, now_ns: int
    ) -> MonitoredConsumer | None:
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
            known = stream.consumers[consumer_id] = MonitoredConsumer(stream_id, consumer_id, epoch, now_ns)
            self._note(now_ns, "consumer", stream_id, f"consumer {consumer_id} came")
        return known

    def _on_consumer_report(self, report: ConsumerQos, now_ns: int) -> None:
        known = self._consumer(report.stream_id, report.consumer_id, report.epoch, now_ns)
        if known is not None and not known.on_report(report, now_ns):
            self._collide("consumer", report.stream_id, report.consumer_id, now_ns)

    def _on_consumer_told(self, told: ConsumerStatus, now_ns: int) -> None:
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

    def _on_latency(self, told: LatencyStatus, now_ns: int) -> None:
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
        self._notices.append((now_ns, Notice(kind, stream_id, text)))

    def _on_slept(self, slept: ListenerPaused, now_ns: int) -> None:
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

    def sight(self, now_ns: int) -> ModelView:
        """For a look at a few things of it: much less work than a snapshot."""
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        return ModelView(self._streams, self.bounds, now_ns)

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
                stream_view(
                    self._streams[id_], self.bounds, now_ns, made_from.get(id_, ()), feeds.get(id_, ())
                )
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


class SharedSnapshot:
    """Snapshots are made when somebody wants one: of thousands, nobody looks at most of them."""

    def __init__(self, picture: SystemModel, fresh_ns: int, clock: Clock) -> None:
        self._picture = picture
        self._fresh_ns = fresh_ns
        self._clock = clock
        self.lock = threading.RLock()
        """The keeper has it while it changes the picture, and may look meanwhile."""
        self._snapshot = Snapshot(clock.monotonic_ns())
        self._heard_ns: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The keeper listens; whoever looks waits until it has."""
        with self.lock:
            yield
            self._heard_ns = self._clock.monotonic_ns()

    def __call__(self) -> Snapshot:
        """As it was when its keeper listened last, or shortly before that."""
        with self.lock:
            # Not of now: a keeper that sleeps has heard nobody, and nobody may be taken for silent.
            if self._heard_ns is not None and self._heard_ns - self._snapshot.now_ns >= self._fresh_ns:
                self._snapshot = self._picture.snapshot(self._heard_ns)
            return self._snapshot
