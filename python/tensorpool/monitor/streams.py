"""Streams, producers and consumers of a running system, as their messages describe them. Pure.

`AnnouncedStream` has the rules for announces and metadata, which discovery and the system model share. The
system model owns the `Monitored…` objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from ..attributes.tags import MAX_NAME_BYTES, LabelAttributes, read_attributes, wire_length
from ..sbe.wire import ClockDomain, ConsumerHello, DataSourceAnnounce, DataSourceMeta, Mode, ShmPoolAnnounce
from ..shm.epoch_files import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES
from .rates import RateMeter
from .reports import ConsumerQos, ConsumerReport, LatencyStatus, ProducerQos, ProducerReport, is_undescribed
from .snapshot import ON_PURPOSE, ConsumerView, PoolView, ProducerView

DRIVER_VERSION: Final = 0
"""The metadata version of a driver's metadata about its streams; producers count from 1."""
_MAX_SUMMARY: Final = 1024


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How long the model keeps an object that sends no more messages, and how many objects it keeps."""

    announce_period_ns: int = 1_000_000_000
    report_period_ns: int = 1_000_000_000
    max_streams: int = 20_000
    max_consumers: int = 100_000

    @property
    def stale_ns(self) -> int:
        """A stream that is not announced for this long is stale."""
        return 3 * self.announce_period_ns

    @property
    def forget_stream_ns(self) -> int:
        """A stale stream is shown for this long."""
        return 30 * self.announce_period_ns

    @property
    def forget_consumer_ns(self) -> int:
        """A consumer without reports for this long has left; a producer uses the same limit."""
        return 5 * self.report_period_ns

    @property
    def forget_former_ns(self) -> int:
        """The shorter limit for consumers of a past epoch: their processes have other ids by now."""
        return 2 * self.report_period_ns

    @property
    def quiet_ns(self) -> int:
        """A stream without a new frame for this long is quiet."""
        return 3 * self.report_period_ns

    @property
    def pause_ns(self) -> int:
        """A listener that did not poll for this long was paused. After as long again it has received messages
        of all endpoints."""
        return 2 * max(self.announce_period_ns, self.report_period_ns)

    @property
    def forget_service_ns(self) -> int:
        """A service without answers for this long is forgotten."""
        return 15 * self.report_period_ns


# --- announces and metadata


@dataclass(frozen=True, slots=True)
class StreamLabels:
    """Name, tags and data source id of a stream. Text is as on the wire, so that it is compared by bytes."""

    name: str = ""
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None

    def over(self, others: StreamLabels) -> StreamLabels:
        """These labels; a label that is missing here is taken from the others."""
        return StreamLabels(
            self.name or others.name,
            self.tags or others.tags,
            others.data_source_id if self.data_source_id is None else self.data_source_id,
        )

    def and_tags(self, tags: tuple[str, ...]) -> StreamLabels:
        """These labels with more tags, each once."""
        return replace(self, tags=tuple(dict.fromkeys((*self.tags, *tags)))) if tags else self


_NO_LABELS: Final = StreamLabels()
_NO_ATTRIBUTES: Final = LabelAttributes()


@dataclass(slots=True)
class LabelSource:
    """The metadata that one sender, a producer or a driver, repeats about a stream."""

    epoch: int = 0
    """0: no DataSourceAnnounce was received."""
    version: int = DRIVER_VERSION
    name: str = ""
    summary: str = ""
    attributes_version: int | None = None
    """None: no attributes of the present producer were received."""
    attributes: LabelAttributes = _NO_ATTRIBUTES
    received_ns: int = 0

    def on_source(self, source: DataSourceAnnounce, now_ns: int) -> None:
        """Takes the name and the version that applies from now on."""
        if self.epoch not in (0, source.epoch):
            # Another producer may start again at version 1: the attributes of the former one do not apply.
            self.attributes_version = None
        self.epoch, self.version, self.received_ns = source.epoch, source.meta_version, now_ns
        self.name = source.name if wire_length(source.name) <= MAX_NAME_BYTES else ""
        self.summary = source.summary[:_MAX_SUMMARY]

    def on_meta(self, meta: DataSourceMeta) -> None:
        """Takes the attributes of one version."""
        self.attributes_version = meta.meta_version
        self.attributes = read_attributes(meta.attributes)

    @property
    def labels(self) -> StreamLabels:
        """The name, and the attributes if they are of the announced version."""
        if self.attributes_version != self.version:
            return StreamLabels(self.name)
        return StreamLabels(self.name, self.attributes.tags, self.attributes.data_source_id)


@dataclass(slots=True)
class AnnouncedStream:
    """One stream by its announces and metadata. The rules:

    - The newest epoch applies while it is fresh; an announce of an older epoch is ignored until then.
    - A producer's metadata applies to its own epoch only. It takes precedence over the driver's.
    - An announce that is not repeated for three periods is stale.

    Ages count from the time of receipt, because the clock of another host cannot be compared with ours.
    """

    stream_id: int
    announce: ShmPoolAnnounce | None = None
    received_ns: int = 0
    """When the announce was last received."""
    sent_ns: int | None = None
    """When the announce was sent, on the monotonic clock of this host; None for other clocks."""
    producer: LabelSource | None = None
    driver: LabelSource | None = None

    def is_fresh(self, now_ns: int, stale_ns: int) -> bool:
        """Whether the stream was announced within `stale_ns`."""
        return self.announce is not None and now_ns - self.received_ns <= stale_ns

    def on_announce(self, announce: ShmPoolAnnounce, now_ns: int, stale_ns: int) -> bool:
        """Takes an announce. False: it is of an older epoch than the fresh one, and is ignored."""
        before = self.announce
        if before is not None and announce.epoch < before.epoch and now_ns - self.received_ns <= stale_ns:
            # The owner of a past epoch may announce once more after its successor did.
            return False
        self.announce, self.received_ns = announce, now_ns
        is_our_clock = announce.announce_clock_domain is ClockDomain.MONOTONIC
        self.sent_ns = announce.announce_timestamp_ns if is_our_clock else None
        return True

    def on_repeated_announce(self, epoch: int, now_ns: int) -> bool:
        """Renews the announce. False: there is no announce of that epoch to renew."""
        if self.announce is None or self.announce.epoch != epoch:
            return False
        if self.sent_ns is not None:
            # A repeated announce is not decoded; it took as long as the first one.
            self.sent_ns += now_ns - self.received_ns
        self.received_ns = now_ns
        return True

    def on_source(self, source: DataSourceAnnounce, now_ns: int) -> bool:
        """Takes a name. False: it is of an older epoch than the known one, and is ignored."""
        if is_undescribed(source):
            # It must not replace the name that the driver gives.
            return True
        known = self.driver if source.meta_version == DRIVER_VERSION else self.producer
        # A closing producer may publish once more after its successor did.
        if known is not None and source.epoch < known.epoch:
            return False
        self._label_source(source.meta_version, now_ns).on_source(source, now_ns)
        return True

    def on_meta(self, meta: DataSourceMeta, now_ns: int) -> None:
        """Takes attributes, which may contain tags and a data source id."""
        self._label_source(meta.meta_version, now_ns).on_meta(meta)

    def ignored_tags(self, version: int) -> dict[str, int]:
        """How many tags of the last attributes of a sender are not among the labels, by reason."""
        known = self.driver if version == DRIVER_VERSION else self.producer
        return {} if known is None else dict(known.attributes.ignored_tags)

    def on_repeated_metadata(self, *, by_driver: bool, is_meta: bool, now_ns: int) -> bool:
        """Renews the metadata of one sender. False: there is none to renew, so it must be decoded again."""
        known = self.driver if by_driver else self.producer
        if known is None or (known.attributes_version is None if is_meta else known.epoch == 0):
            return False
        known.received_ns = now_ns
        return True

    def _label_source(self, version: int, now_ns: int) -> LabelSource:
        if version == DRIVER_VERSION:
            self.driver = self.driver or LabelSource(received_ns=now_ns)
            return self.driver
        self.producer = self.producer or LabelSource(received_ns=now_ns)
        return self.producer

    @property
    def labels(self) -> StreamLabels:
        """The labels that apply to the announced epoch."""
        labels = _NO_LABELS if self.driver is None else self.driver.labels
        producer = self._applicable_producer
        return labels if producer is None else producer.labels.over(labels)

    @property
    def summary(self) -> str:
        """The description that the sender of the name gives beside it."""
        producer = self._applicable_producer
        if producer is not None and (producer.name or producer.summary):
            return producer.summary
        return "" if self.driver is None else self.driver.summary

    @property
    def _applicable_producer(self) -> LabelSource | None:
        if self.producer is None or self.announce is None or self.producer.epoch == self.announce.epoch:
            return self.producer
        return None

    def expire(self, oldest_ns: int) -> None:
        """Drops the announce and the metadata that were last received before `oldest_ns`."""
        if self.announce is not None and self.received_ns < oldest_ns:
            self.announce = None
        if self.producer is not None and self.producer.received_ns < oldest_ns:
            self.producer = None
        if self.driver is not None and self.driver.received_ns < oldest_ns:
            self.driver = None

    @property
    def is_empty(self) -> bool:
        """Whether everything has expired."""
        return self.announce is None and self.producer is None and self.driver is None

    @property
    def oldest_ns(self) -> int:
        """The time of receipt of the part that expires first."""
        times = [source.received_ns for source in (self.producer, self.driver) if source is not None]
        if self.announce is not None:
            times.append(self.received_ns)
        return min(times)


# --- endpoints


@dataclass(slots=True)
class MonitoredProducer:
    """A producer by its QoS reports and status reports. Another producer has another id."""

    producer_id: int
    epoch: int
    received_ns: int
    moved_ns: int
    """When a new sequence was last reported."""
    current_seq: int | None = None
    watermark: int | None = None
    """Slots that were open at once in the last period; None if it does not report them."""
    reported: tuple[int, int] = (0, 0)
    """Epoch and sequence of the last QoS report; the status report may be newer than the next one."""
    status: ProducerReport | None = None
    seqs: RateMeter = field(default_factory=RateMeter)
    frames: RateMeter = field(default_factory=RateMeter)
    """Frames that it has committed, by its status reports. A limiter keeps the sequences of its source, and
    leaves most of them out."""
    bytes: RateMeter = field(default_factory=RateMeter)

    def on_qos(self, report: ProducerQos, now_ns: int) -> bool:
        """Takes a QoS report. False: it contradicts the last one, so two producers use one id."""
        reported = (report.epoch, report.current_seq or 0)
        is_consistent = reported >= self.reported
        self.reported = reported
        self.received_ns = now_ns
        self._enter(report.epoch)
        if report.epoch == self.epoch:
            self.watermark = report.watermark
            self._advance(report.current_seq, now_ns)
        return is_consistent

    def on_status(self, status: ProducerReport, now_ns: int) -> None:
        """Takes a status report."""
        self.status = status
        self.received_ns = now_ns
        self.bytes.add(now_ns, status.nbytes)
        self.frames.add(now_ns, status.committed)
        # Before the first frame of an epoch there are no QoS reports of it.
        self._enter(status.epoch)
        if status.epoch == self.epoch and status.next_seq:
            self._advance(status.next_seq - 1, now_ns)

    def _enter(self, epoch: int) -> None:
        """Follows the producer into a later epoch. QoS and status reports come on two streams: the one that
        is read later may be of the epoch before."""
        if epoch > self.epoch:
            self.seqs.clear()
            self.epoch, self.current_seq, self.watermark = epoch, None, None

    def _advance(self, seq: int | None, now_ns: int) -> None:
        if seq is None or (self.current_seq is not None and seq < self.current_seq):
            return
        if seq != self.current_seq:
            self.moved_ns = now_ns
        self.current_seq = seq
        self.seqs.add(now_ns, seq)

    def _rate_hz(self) -> float | None:
        """Frames a second. Of a producer without status reports, sequences a second."""
        return self.frames.per_s() or self.seqs.per_s()

    def view(self, now_ns: int) -> ProducerView:
        """The producer as a snapshot shows it."""
        status = self.status
        return ProducerView(
            producer_id=self.producer_id,
            epoch=self.epoch,
            current_seq=self.current_seq,
            watermark=self.watermark,
            rate_hz=self._rate_hz(),
            bytes_per_s=self.bytes.per_s(),
            report_age_ns=now_ns - self.received_ns,
            quiet_ns=now_ns - self.moved_ns,
            committed=None if status is None else status.committed,
            published=None if status is None else status.published,
            unpublished={} if status is None else status.unpublished,
            deferred=0 if status is None else status.deferred,
            dropped={} if status is None else status.dropped,
            holes=0 if status is None else status.holes,
            nbytes=None if status is None else status.nbytes,
            pid=None if status is None else status.pid,
            sources=() if status is None else status.sources,
        )


@dataclass(slots=True)
class MonitoredConsumer:
    """A consumer by its QoS reports, hellos and status reports."""

    stream_id: int
    consumer_id: int
    epoch: int
    received_ns: int
    last_seq: int | None = None
    reported: tuple[int, int] = (0, 0)
    """Epoch and sequence of the last QoS report."""
    drops_gap: int = 0
    drops_late: int = 0
    is_limited: bool = False
    status: ConsumerReport | None = None
    latency: LatencyStatus | None = None
    latency_ns: int = 0
    max_rate_hz: int = 0
    requested_limit: bool = False
    per_consumer_stream_id: int = 0
    fallback_uri: str = ""
    frames: RateMeter = field(default_factory=RateMeter)
    losses: RateMeter = field(default_factory=RateMeter)

    def on_qos(self, report: ConsumerQos, now_ns: int) -> bool:
        """Takes a QoS report. False: it contradicts the last one, so two consumers use one id."""
        # Unpacked at once: access by name to thousands of fields a second costs more than all the rest.
        _, _, epoch, last_seq, drops_gap, drops_late, self.is_limited = report
        reported, before = (epoch, last_seq or 0), self.reported
        is_consistent = drops_gap >= self.drops_gap and drops_late >= self.drops_late and reported >= before
        if epoch == before[0] < self.epoch:
            # The consumer repeats its epoch: the message with the later epoch was of another sender.
            self.epoch, self.last_seq = epoch, last_seq
        self.reported = reported
        self._advance(epoch, last_seq)
        self.drops_gap, self.drops_late = drops_gap, drops_late
        self.received_ns = now_ns
        if self.status is None:
            self.losses.add(now_ns, drops_gap + drops_late)
            if last_seq is not None:
                self.frames.add(now_ns, last_seq)
        return is_consistent

    def on_status(self, status: ConsumerReport, now_ns: int) -> bool:
        """Takes a status report. False: another process reports under this id."""
        _, _, pid, epoch, _, last_seq, _, received, dropped, _, _, _, _ = status
        before = self.status
        if before is None:
            self.frames.clear()
            self.losses.clear()
        self.status, self.received_ns = status, now_ns
        if epoch is not None:
            self._advance(epoch, last_seq)
        self.frames.add(now_ns, received)
        lost = sum(n for reason, n in dropped.items() if reason not in ON_PURPOSE) if dropped else 0
        self.losses.add(now_ns, lost)
        return before is None or pid == before.pid

    def _advance(self, epoch: int, last_seq: int | None) -> None:
        """QoS and status reports come on two streams: the one that is read later may be the older one."""
        if epoch > self.epoch:
            self.epoch, self.last_seq = epoch, last_seq
        elif epoch == self.epoch and last_seq is not None and last_seq > (self.last_seq or -1):
            self.last_seq = last_seq

    def on_latency(self, latency: LatencyStatus, now_ns: int) -> None:
        """Takes the latency of the last period."""
        self.latency, self.latency_ns = latency, now_ns

    def on_hello(self, hello: ConsumerHello, now_ns: int) -> None:
        """Takes the consumer's request."""
        self.max_rate_hz, self.requested_limit = hello.max_rate_hz, hello.mode is Mode.RATE_LIMITED
        self.received_ns = now_ns

    def latency_at(self, now_ns: int, forget_ns: int) -> LatencyStatus | None:
        """The latency if it was reported within `forget_ns`."""
        return self.latency if now_ns - self.latency_ns <= forget_ns else None

    def backlog(self, current_seq: int | None, epoch: int) -> int | None:
        """Sequences behind the producer's, if both are in the stream's epoch."""
        if current_seq is None or self.last_seq is None or self.epoch != epoch:
            return None
        return max(current_seq - self.last_seq, 0)

    def view(self, now_ns: int, current_seq: int | None, epoch: int, forget_ns: int) -> ConsumerView:
        """The consumer as a snapshot shows it."""
        status = self.status
        qos_drops = {"gap": self.drops_gap, "late": self.drops_late}
        latency = self.latency_at(now_ns, forget_ns)
        return ConsumerView(
            stream_id=self.stream_id,
            consumer_id=self.consumer_id,
            epoch=self.epoch,
            last_seq=self.last_seq,
            mode="rate_limited" if self.is_limited else "stream",
            report_age_ns=now_ns - self.received_ns,
            rate_hz=self.frames.per_s(),
            drops_gap=self.drops_gap,
            drops_late=self.drops_late,
            dropped={name: n for name, n in qos_drops.items() if n} if status is None else status.dropped,
            dropped_per_s=self.losses.per_s(),
            backlog=self.backlog(current_seq, epoch),
            first_seq=status.first_seq if status is not None and status.epoch == self.epoch else None,
            span=None if status is None else status.span,
            received=None if status is None else status.received,
            outside={} if status is None else status.outside,
            polls=None if status is None else status.polls,
            latency=None if latency is None else latency.view(),
            max_rate_hz=self.max_rate_hz,
            requested_limit=self.requested_limit,
            per_consumer_stream_id=self.per_consumer_stream_id,
            fallback_uri=self.fallback_uri,
            pid=None if status is None else status.pid,
            label="" if status is None else status.label,
        )


@dataclass(slots=True)
class MonitoredStream:
    """A stream of the model: its announces and metadata, its producer and its consumers."""

    stream_id: int
    received_ns: int
    announced: AnnouncedStream
    pools: tuple[PoolView, ...] = ()
    nbytes: int = 0
    """Size of its regions."""
    epochs: int = 0
    activity_ns: int | None = None
    producer: MonitoredProducer | None = None
    former_id: int = 0
    """The producer before the present one: if it reports again, two producers share the stream."""
    former_ns: int = 0
    consumers: dict[int, MonitoredConsumer] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The announced epoch, or the producer's where no announce was received."""
        if self.announced.announce is not None:
            return self.announced.announce.epoch
        return 0 if self.producer is None else self.producer.epoch

    @property
    def current_seq(self) -> int | None:
        """The newest sequence of the producer."""
        return None if self.producer is None else self.producer.current_seq

    def set_layout(self, announce: ShmPoolAnnounce) -> None:
        """Computes pools and size once for each new announce, not for each snapshot."""
        self.pools = tuple(
            PoolView(pool.pool_id, pool.stride_bytes, pool.pool_nslots, pool.region_uri)
            for pool in announce.payload_pools
        )
        payload = sum(SUPERBLOCK_BYTES + pool.nslots * pool.stride_bytes for pool in self.pools)
        self.nbytes = SUPERBLOCK_BYTES + HEADER_SLOT_BYTES * announce.header_nslots + payload
