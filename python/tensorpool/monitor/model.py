"""The model of a running system (wire §10.5): events go in with their time of receipt, snapshots come out.

Pure. The model is soft state: nothing is stored, and an endpoint without messages is forgotten. After a
restart the model is complete when every endpoint has sent its messages once. Its size is bounded, whatever
ids the messages name. One thread owns it; `SharedSnapshot` hands its snapshots to other threads.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

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
from .ledger import LedgerMonitor, LedgerRow
from .reports import (
    Activity,
    BridgeReport,
    ConsumerQos,
    ConsumerReport,
    DriverLeases,
    DriverReport,
    LatencyStatus,
    ListenerPaused,
    Notice,
    ProducerQos,
    ProducerReport,
    RecorderLedgerReport,
    RecorderReport,
    RejectedMessage,
    RepeatedAnnounce,
    RepeatedMetadata,
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
from .streams import AnnouncedStream, ModelLimits, MonitoredConsumer, MonitoredProducer, MonitoredStream

Condition = Literal["drops", "staleness", "latency", "backlog"]
"""Values of a stream or consumer that a rule can watch."""

_MAX_COLLISIONS: Final = 1024
_MAX_NOTICES: Final = 512
_MAX_ERROR_TEXT: Final = 256
_STALE_ACTIVITY_PERIODS: Final = 5
_MIN_CONTRADICTIONS: Final = {"stream": 3, "consumer": 2, "producer": 2}
"""A collision is shown after this many contradictions: one of them may be the last message of an endpoint
that closes, or the first of one that restarted."""


class ModelView:
    """Direct access to the state of a model, for rules and orders. Valid until the next event."""

    def __init__(self, streams: Mapping[int, MonitoredStream], limits: ModelLimits, now_ns: int) -> None:
        self._streams = streams
        self._forget_ns = limits.forget_consumer_ns
        self._now_ns = now_ns

    def values(self, condition: Condition) -> Iterator[tuple[tuple[int, int | None], float | None]]:
        """The values of a condition, by stream id and consumer id; None where no report has one. Staleness
        is of streams, and has no consumer id."""
        now_ns = self._now_ns
        for stream_id, stream in self._streams.items():
            consumers = stream.consumers.items()
            match condition:
                case "staleness":
                    producer = stream.producer
                    yield (stream_id, None), None if producer is None else (now_ns - producer.moved_ns) / 1e9
                case "drops":
                    for consumer_id, consumer in consumers:
                        yield (stream_id, consumer_id), consumer.losses.per_s()
                case "latency":
                    for consumer_id, consumer in consumers:
                        latency = consumer.latency_at(now_ns, self._forget_ns)
                        yield (stream_id, consumer_id), None if latency is None else latency.p99_ns / 1e9
                case "backlog":
                    current_seq, epoch = stream.current_seq, stream.epoch
                    for consumer_id, consumer in consumers:
                        yield (stream_id, consumer_id), consumer.backlog(current_seq, epoch)

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        """One consumer, as a snapshot shows it."""
        stream = self._streams.get(stream_id)
        consumer = None if stream is None else stream.consumers.get(consumer_id)
        if stream is None or consumer is None:
            return None
        return consumer.view(self._now_ns, stream.current_seq, stream.epoch, self._forget_ns)

    def per_consumer_stream_ids(self) -> set[int]:
        """Descriptor streams that were granted to single consumers."""
        return {
            consumer.per_consumer_stream_id
            for stream in self._streams.values()
            for consumer in stream.consumers.values()
        }


@dataclass(slots=True)
class _Collision:
    times: int
    at_ns: int


class SystemModel:
    """`observe` takes events; `snapshot` returns the state on demand."""

    def __init__(self, limits: ModelLimits | None = None) -> None:
        self.limits = limits or ModelLimits()
        self._ledger = LedgerMonitor(self.limits)
        self._streams: dict[int, MonitoredStream] = {}
        self._consumers = 0
        self._services = ServiceRecords(self.limits.forget_service_ns)
        self._collisions: dict[tuple[str, int, int], _Collision] = {}
        self._notices: deque[tuple[int, Notice]] = deque(maxlen=_MAX_NOTICES)
        self._rejected: Counter[str] = Counter()
        self._next_sweep_ns = 0
        services = self._services
        handlers: dict[type, Callable[[Any, int], object]] = {
            ConsumerQos: self._on_consumer_qos,
            ProducerQos: self._on_producer_qos,
            RepeatedAnnounce: self._on_repeated_announce,
            RepeatedMetadata: self._on_repeated_metadata,
            ShmPoolAnnounce: self._on_announce,
            DataSourceAnnounce: self._on_source,
            DataSourceMeta: self._on_meta,
            Activity: self._on_activity,
            ConsumerReport: self._on_consumer_status,
            LatencyStatus: self._on_latency,
            ProducerReport: self._on_producer_status,
            ConsumerHello: self._on_hello,
            ConsumerConfig: self._on_config,
            ConsumerConfigR2: self._on_config,
            ShmLeaseRevoked: self._on_revoked,
            ShmDriverShutdown: self._on_shutdown,
            ServiceAlive: self._bounded(services.on_alive, "full"),
            DriverReport: self._bounded(services.on_driver, "service"),
            DriverLeases: self._bounded(services.on_leases, "service"),
            RecorderReport: self._bounded(services.on_recorder, "service"),
            RecorderLedgerReport: self._bounded(services.on_recorder_ledger, "service"),
            BridgeReport: self._bounded(services.on_bridge, "service"),
            ListenerPaused: self._on_pause,
            Notice: lambda notice, now_ns: self._notices.append((now_ns, notice)),
            RejectedMessage: lambda rejected, now_ns: self._reject(rejected.reason, rejected.count),
        }
        self._by_type = {
            event_type: (handle, self._ledger.ledger.handler(event_type))
            for event_type, handle in handlers.items()
        }

    def observe(self, event: object, now_ns: int) -> None:
        """Takes an event and the time of its receipt. An unknown event is counted; nothing is raised."""
        if now_ns >= self._next_sweep_ns and type(event) is not ListenerPaused:
            self._sweep(now_ns)
        handlers = self._by_type.get(type(event))
        if handlers is None:
            self._reject("unknown")
            return
        handle, handle_ledger = handlers
        handle(event, now_ns)
        if handle_ledger is not None:
            handle_ledger(event, now_ns)

    def _bounded(self, handle: Callable[[Any, int], bool], reason: str) -> Callable[[Any, int], None]:
        def handle_or_reject(event: Any, now_ns: int) -> None:
            if not handle(event, now_ns):
                self._reject(reason)

        return handle_or_reject

    def _reject(self, reason: str, count: int = 1) -> None:
        self._rejected[reason] += count

    # --- streams

    def _stream(self, stream_id: int, now_ns: int) -> MonitoredStream | None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if len(self._streams) >= self.limits.max_streams:
                self._reject("full")
                return None
            stream = MonitoredStream(stream_id, now_ns, AnnouncedStream(stream_id))
            self._streams[stream_id] = stream
        stream.received_ns = now_ns
        return stream

    def _on_repeated_announce(self, repeated: RepeatedAnnounce, now_ns: int) -> None:
        stream = self._streams.get(repeated.stream_id)
        if stream is not None and stream.announced.on_repeated_announce(repeated.epoch, now_ns):
            stream.received_ns = now_ns
        else:
            self._on_announce(repeated.announce, now_ns)

    def _on_announce(self, announce: ShmPoolAnnounce, now_ns: int) -> None:
        stream = self._stream(announce.stream_id, now_ns)
        if stream is None:
            return
        before = stream.announced.announce
        if not stream.announced.on_announce(announce, now_ns, self.limits.stale_ns):
            # A single announce of an older epoch is late; repeated ones come from a second owner.
            self._count_collision("stream", announce.stream_id, announce.stream_id, now_ns)
            return
        if before is None or announce.epoch != before.epoch:
            stream.epochs += 1
            stream.activity_ns = None
            self._add_notice(now_ns, "epoch", announce.stream_id, f"epoch {announce.epoch}")
        if before is not None and announce.producer_id != before.producer_id:
            self._add_notice(now_ns, "producer", announce.stream_id, _producer_text(announce.producer_id))
        stream.set_layout(announce)
        if not announce.producer_id:
            stream.producer = None

    def _on_repeated_metadata(self, repeated: RepeatedMetadata, now_ns: int) -> None:
        stream = self._streams.get(repeated.stream_id)
        if stream is not None and repeated.is_empty:
            return
        if stream is not None and stream.announced.on_repeated_metadata(
            by_driver=repeated.by_driver, is_meta=repeated.is_meta, now_ns=now_ns
        ):
            return
        self.observe(repeated.decode(), now_ns)

    def _on_source(self, source: DataSourceAnnounce, now_ns: int) -> None:
        stream = self._stream(source.stream_id, now_ns)
        if stream is not None:
            stream.announced.on_source(source, now_ns)

    def _on_meta(self, meta: DataSourceMeta, now_ns: int) -> None:
        stream = self._stream(meta.stream_id, now_ns)
        if stream is not None:
            stream.announced.on_meta(meta, now_ns)

    def _on_activity(self, activity: Activity, now_ns: int) -> None:
        stream = self._streams.get(activity.stream_id)
        if stream is not None and stream.epoch == activity.epoch:
            stream.activity_ns = activity.activity_ns

    # --- producers

    def _on_producer_qos(self, report: ProducerQos, now_ns: int) -> None:
        producer = self._producer(report.stream_id, report.producer_id, report.epoch, now_ns)
        if producer is not None and not producer.on_qos(report, now_ns):
            self._count_collision("producer", report.stream_id, report.producer_id, now_ns)

    def _on_producer_status(self, status: ProducerReport, now_ns: int) -> None:
        producer = self._producer(status.stream_id, status.producer_id, status.epoch, now_ns)
        if producer is not None:
            producer.on_status(status, now_ns)

    def _producer(
        self, stream_id: int, producer_id: int, epoch: int, now_ns: int
    ) -> MonitoredProducer | None:
        stream = self._stream(stream_id, now_ns)
        if stream is None:
            return None
        known, announce = stream.producer, stream.announced.announce
        if known is not None and known.producer_id == producer_id:
            return known
        if announce is not None and epoch < announce.epoch:
            # The last report of a producer of a past epoch.
            return None
        is_former = stream.former_id == producer_id and now_ns - stream.former_ns <= self.limits.stale_ns
        if known is not None and is_former:
            self._count_collision("producer", stream_id, producer_id, now_ns)
        if known is not None:
            stream.former_id, stream.former_ns = known.producer_id, now_ns
        stream.producer = MonitoredProducer(producer_id, epoch, now_ns, now_ns)
        return stream.producer

    # --- consumers

    def _consumer(
        self, stream_id: int, consumer_id: int, epoch: int, now_ns: int
    ) -> MonitoredConsumer | None:
        """The consumer, which is added if it is new; None if there is no room for it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._stream(stream_id, now_ns)
            if stream is None:
                return None
        stream.received_ns = now_ns
        consumer = stream.consumers.get(consumer_id)
        if consumer is None:
            if self._consumers >= self.limits.max_consumers:
                self._reject("full")
                return None
            self._consumers += 1
            consumer = MonitoredConsumer(stream_id, consumer_id, epoch, now_ns)
            stream.consumers[consumer_id] = consumer
            self._add_notice(now_ns, "consumer", stream_id, f"consumer {consumer_id} came")
        return consumer

    def _known_consumer(self, stream_id: int, consumer_id: int) -> MonitoredConsumer | None:
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.consumers.get(consumer_id)

    def _on_consumer_qos(self, report: ConsumerQos, now_ns: int) -> None:
        consumer = self._consumer(report.stream_id, report.consumer_id, report.epoch, now_ns)
        if consumer is not None and not consumer.on_qos(report, now_ns):
            self._count_collision("consumer", report.stream_id, report.consumer_id, now_ns)

    def _on_consumer_status(self, status: ConsumerReport, now_ns: int) -> None:
        consumer = self._consumer(status.stream_id, status.consumer_id, status.epoch or 0, now_ns)
        if consumer is not None and not consumer.on_status(status, now_ns):
            self._count_collision("consumer", status.stream_id, status.consumer_id, now_ns)
        if status.is_final:
            self._remove_consumer(status.stream_id, status.consumer_id, now_ns, "it was closed")

    def _remove_consumer(self, stream_id: int, consumer_id: int, now_ns: int, reason: str) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.consumers.pop(consumer_id, None) is not None:
            self._consumers -= 1
            self._add_notice(now_ns, "consumer", stream_id, f"consumer {consumer_id} left: {reason}")

    def _on_latency(self, latency: LatencyStatus, now_ns: int) -> None:
        consumer = self._known_consumer(latency.stream_id, latency.consumer_id)
        if consumer is not None:
            consumer.on_latency(latency, now_ns)

    def _on_hello(self, hello: ConsumerHello, now_ns: int) -> None:
        consumer = self._consumer(hello.stream_id, hello.consumer_id, 0, now_ns)
        if consumer is not None:
            consumer.on_hello(hello, now_ns)

    def _on_config(self, config: ConsumerConfig | ConsumerConfigR2, now_ns: int) -> None:
        consumer = self._known_consumer(config.stream_id, config.consumer_id)
        if consumer is not None:
            consumer.per_consumer_stream_id = config.descriptor_stream_id
            consumer.fallback_uri = "" if config.use_shm else config.payload_fallback_uri

    # --- drivers

    def _on_revoked(self, revoked: ShmLeaseRevoked, now_ns: int) -> None:
        self._services.on_revoked(revoked.lease_id)
        text = f"{revoked.role.name.lower()} {revoked.client_id}: {revoked.reason.name.lower()}"
        error = revoked.error_message[:_MAX_ERROR_TEXT]
        self._add_notice(now_ns, "lease", revoked.stream_id, f"{text} {error}".strip())
        self._remove_consumer(revoked.stream_id, revoked.client_id, now_ns, "its lease was revoked")

    def _on_shutdown(self, shutdown: ShmDriverShutdown, now_ns: int) -> None:
        error = shutdown.error_message[:_MAX_ERROR_TEXT]
        self._add_notice(now_ns, "shutdown", None, f"driver: {shutdown.reason.name.lower()} {error}".strip())

    # --- collisions, notices, expiry

    def _count_collision(self, kind: str, stream_id: int, endpoint_id: int, now_ns: int) -> None:
        key = (kind, stream_id, endpoint_id)
        collision = self._collisions.get(key)
        if collision is None:
            if len(self._collisions) >= _MAX_COLLISIONS:
                del self._collisions[next(iter(self._collisions))]
            collision = self._collisions[key] = _Collision(0, now_ns)
        collision.times += 1
        collision.at_ns = now_ns

    def _add_notice(self, now_ns: int, kind: str, stream_id: int | None, text: str) -> None:
        self._notices.append((now_ns, Notice(kind, stream_id, text)))

    def _on_pause(self, pause: ListenerPaused, now_ns: int) -> None:
        """Delays expiry: the messages of all endpoints may still be unread."""
        self._next_sweep_ns = now_ns + self.limits.pause_ns

    def _sweep(self, now_ns: int) -> None:
        """Drops what has expired; twice a report period is often enough."""
        limits = self.limits
        self._next_sweep_ns = now_ns + limits.report_period_ns // 2
        self._services.expire(now_ns)
        oldest_ns = now_ns - limits.forget_stream_ns
        consumer_ns, former_ns = now_ns - limits.forget_consumer_ns, now_ns - limits.forget_former_ns
        for stream in list(self._streams.values()):
            # Few consumers are late: all others cost one comparison.
            late = [consumer for consumer in stream.consumers.values() if consumer.received_ns < former_ns]
            for consumer in late:
                if consumer.received_ns < consumer_ns or consumer.epoch < stream.epoch:
                    self._remove_consumer(
                        stream.stream_id, consumer.consumer_id, now_ns, "no reports any more"
                    )
            if stream.producer is not None and stream.producer.received_ns < oldest_ns:
                stream.producer = None
            if stream.received_ns < oldest_ns and stream.announced.received_ns < oldest_ns:
                self._consumers -= len(stream.consumers)
                del self._streams[stream.stream_id]
        for key in [key for key, collision in self._collisions.items() if collision.at_ns < oldest_ns]:
            del self._collisions[key]

    # --- views

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(self._streams)

    @property
    def consumers(self) -> int:
        """Number of consumers."""
        return self._consumers

    def view(self, now_ns: int) -> ModelView:
        """Access to a few values: far cheaper than a snapshot."""
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        return ModelView(self._streams, self.limits, now_ns)

    def ledger(self, now_ns: int) -> LedgerView:
        """The summary of the ledger, a few periods old at most."""
        return self._ledger.view(now_ns)

    def ledger_rows(self, now_ns: int) -> list[LedgerRow]:
        """All rows of the ledger."""
        return self._ledger.ledger.rows(now_ns)

    def snapshot(self, now_ns: int) -> Snapshot:
        """The whole state."""
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        bridges = self._services.bridges(now_ns)
        sources, derived = stream_lineage(self._streams.values(), bridges)
        return Snapshot(
            now_ns=now_ns,
            streams=tuple(
                stream_view(
                    self._streams[stream_id],
                    self.limits,
                    now_ns,
                    sources.get(stream_id, ()),
                    derived.get(stream_id, ()),
                )
                for stream_id in sorted(self._streams)
            ),
            leases=self._services.leases(),
            drivers=self._services.drivers(now_ns),
            bridges=bridges,
            recorders=self._services.recorders(now_ns),
            services=self._services.services(now_ns),
            collisions=tuple(
                CollisionView(kind, stream_id, endpoint_id, collision.times, now_ns - collision.at_ns)
                for (kind, stream_id, endpoint_id), collision in sorted(self._collisions.items())
                if collision.times >= _MIN_CONTRADICTIONS.get(kind, 1)
            ),
            notices=tuple(
                NoticeView(now_ns - at_ns, notice.kind, notice.stream_id, notice.text)
                for at_ns, notice in self._notices
            ),
            rejected=dict(sorted(self._rejected.items())),
            ledger=self.ledger(now_ns),
        )


def _producer_text(producer_id: int) -> str:
    return f"producer {producer_id}" if producer_id else "no producer"


def stream_lineage(
    streams: Iterable[MonitoredStream], bridges: Iterable[BridgeView]
) -> tuple[Mapping[int, set[int]], Mapping[int, set[int]]]:
    """By stream: the streams that it is made from, and the streams that are made from it."""
    sources: dict[int, set[int]] = {}
    for bridge in bridges:
        for mapping in bridge.mappings:
            if mapping.direction == "receive" and mapping.dest_stream_id:
                sources.setdefault(mapping.dest_stream_id, set()).add(mapping.source_stream_id)
    for stream in streams:
        status = None if stream.producer is None else stream.producer.status
        if status is not None and status.sources:
            sources.setdefault(stream.stream_id, set()).update(status.sources)
    derived: dict[int, set[int]] = {}
    for stream_id, parents in sources.items():
        for parent in parents - {stream_id}:
            derived.setdefault(parent, set()).add(stream_id)
    return sources, derived


def stream_view(
    stream: MonitoredStream, limits: ModelLimits, now_ns: int, sources: Iterable[int], derived: Iterable[int]
) -> StreamView:
    """A stream as a snapshot shows it."""
    announced, announce = stream.announced, stream.announced.announce
    current_seq, epoch, forget_ns = stream.current_seq, stream.epoch, limits.forget_consumer_ns
    consumers = tuple(
        consumer.view(now_ns, current_seq, epoch, forget_ns)
        for _, consumer in sorted(stream.consumers.items())
    )
    labels = announced.labels
    return StreamView(
        stream_id=stream.stream_id,
        name=labels.name,
        summary=announced.summary,
        tags=labels.tags,
        data_source_id=labels.data_source_id,
        state=_state(stream, limits, now_ns),
        epoch=epoch,
        epochs=stream.epochs,
        layout_version=0 if announce is None else announce.layout_version,
        nslots=0 if announce is None else announce.header_nslots,
        pools=stream.pools,
        nbytes=stream.nbytes,
        announce_age_ns=now_ns - (stream.received_ns if announce is None else announced.received_ns),
        activity_age_ns=None if stream.activity_ns is None else max(now_ns - stream.activity_ns, 0),
        producer=None if stream.producer is None else stream.producer.view(now_ns),
        consumers=consumers,
        dropped=_sum_dropped(consumers),
        latency=_highest_latency(consumers),
        sources=tuple(sorted(sources)),
        derived=tuple(sorted(derived)),
        header_uri="" if announce is None else announce.header_region_uri,
        producer_id=0 if announce is None else announce.producer_id,
        announce_sent_age_ns=None if announced.sent_ns is None else now_ns - announced.sent_ns,
    )


def _state(stream: MonitoredStream, limits: ModelLimits, now_ns: int) -> StreamState:
    announce = stream.announced.announce
    if announce is None or not stream.announced.is_fresh(now_ns, limits.stale_ns):
        return StreamState.STALE
    activity_limit_ns = _STALE_ACTIVITY_PERIODS * limits.announce_period_ns
    if stream.activity_ns is not None and now_ns - stream.activity_ns > activity_limit_ns:
        return StreamState.STALE
    if not announce.producer_id:
        return StreamState.VACANT
    producer = stream.producer
    if producer is None or now_ns - producer.moved_ns > limits.quiet_ns:
        return StreamState.QUIET
    return StreamState.LIVE


def _sum_dropped(consumers: tuple[ConsumerView, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for consumer in consumers:
        for reason, n in consumer.dropped.items():
            total[reason] = total.get(reason, 0) + n
    return dict(sorted(total.items())) if total else total


def _highest_latency(consumers: tuple[ConsumerView, ...]) -> LatencyView | None:
    latencies = [
        consumer.latency for consumer in consumers if consumer.latency is not None and consumer.latency.count
    ]
    if not latencies:
        return None
    count, p50_ns, p99_ns, max_ns, since = 0, 0, 0, 0, latencies[0].since
    # Thousands of values a snapshot: one plain loop is faster than four calls of max().
    for latency in latencies:
        count += latency.count
        p50_ns = latency.p50_ns if latency.p50_ns > p50_ns else p50_ns
        p99_ns = latency.p99_ns if latency.p99_ns > p99_ns else p99_ns
        max_ns = latency.max_ns if latency.max_ns > max_ns else max_ns
        since = since if latency.since == since else "mixed"
    return LatencyView(count, p50_ns, p99_ns, max_ns, since)


class SharedSnapshot:
    """The newest snapshot of a model, for any thread. Snapshots are made only when one is read."""

    def __init__(self, model: SystemModel, max_age_ns: int, clock: Clock) -> None:
        self._model = model
        self._max_age_ns = max_age_ns
        self._clock = clock
        self.lock = threading.RLock()
        """The model's thread holds it while it changes the model."""
        self._snapshot = Snapshot(clock.monotonic_ns())
        self._updated_ns: int | None = None

    @contextmanager
    def updating(self) -> Iterator[None]:
        """For the time in which the model's thread polls; readers wait for its end."""
        with self.lock:
            yield
            self._updated_ns = self._clock.monotonic_ns()

    def __call__(self) -> Snapshot:
        """The state of the last update, or a snapshot that is at most `max_age_ns` older."""
        with self.lock:
            # Not the state of now: an endpoint is not stale because the model's thread does not poll.
            is_old = (
                self._updated_ns is not None and self._updated_ns - self._snapshot.now_ns >= self._max_age_ns
            )
            if self._updated_ns is not None and is_old:
                self._snapshot = self._model.snapshot(self._updated_ns)
            return self._snapshot
