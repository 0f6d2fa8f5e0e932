"""How long the picture remembers what is not said again, and how much of it. Pure.

What is remembered of streams, producers and consumers, and how it is shown. Pure; the picture owns it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sbe.wire import ConsumerHello, Mode, ShmPoolAnnounce
from .rates import RateMeter
from .reports import ConsumerQos, ConsumerStatus, LatencyStatus, ProducerQos, ProducerStatus
from .snapshot import ON_PURPOSE, ConsumerView, PoolView, ProducerView


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How long is remembered what is not said again, and how much."""

    announce_period_ns: int = 1_000_000_000
    report_period_ns: int = 1_000_000_000
    max_streams: int = 20_000
    max_consumers: int = 100_000

    @property
    def stale_ns(self) -> int:
        return 3 * self.announce_period_ns

    @property
    def forget_stream_ns(self) -> int:
        """A stream that is gone is shown as stale for a while."""
        return 30 * self.announce_period_ns

    @property
    def forget_consumer_ns(self) -> int:
        """As its producer does."""
        return 5 * self.report_period_ns

    @property
    def forget_former_ns(self) -> int:
        """Sooner where the stream has begun anew: those who are there have another id by then."""
        return 2 * self.report_period_ns

    @property
    def quiet_ns(self) -> int:
        return 3 * self.report_period_ns

    @property
    def awake_ns(self) -> int:
        """Who did not listen for that long has slept; all have spoken when it has listened as long again."""
        return 2 * max(self.announce_period_ns, self.report_period_ns)

    @property
    def forget_service_ns(self) -> int:
        return 15 * self.report_period_ns


HEADER_SLOT_BYTES = 256
SUPERBLOCK_BYTES = 64


@dataclass(slots=True)
class MonitoredProducer:
    """A producer by its reports. Another one has another id."""

    producer_id: int
    epoch: int
    heard_ns: int
    moved_ns: int
    """When a new sequence was last heard of."""
    current_seq: int | None = None
    reported: tuple[int, int] = (0, 0)
    """Epoch and sequence of the last report. What is told on the status stream may be newer than the next."""
    told: ProducerStatus | None = None
    seqs: RateMeter = field(default_factory=RateMeter)
    bytes: RateMeter = field(default_factory=RateMeter)

    def on_report(self, report: ProducerQos, now_ns: int) -> bool:
        """False if it contradicts what was said before: two who go by one id."""
        reported = (report.epoch, report.current_seq or 0)
        is_sound = reported >= self.reported
        self.reported = reported
        if report.epoch != self.epoch:
            self.seqs.clear()
            self.current_seq = None
            self.epoch = report.epoch
        self.heard_ns = now_ns
        self._reach(report.current_seq, now_ns)
        return is_sound

    def on_told(self, told: ProducerStatus, now_ns: int) -> None:
        self.told = told
        self.heard_ns = now_ns
        self.bytes.add(now_ns, told.nbytes)
        if told.epoch == self.epoch and told.next_seq:
            self._reach(told.next_seq - 1, now_ns)

    def _reach(self, seq: int | None, now_ns: int) -> None:
        if seq is None or (self.current_seq is not None and seq < self.current_seq):
            return
        if seq != self.current_seq:
            self.moved_ns = now_ns
        self.current_seq = seq
        self.seqs.add(now_ns, seq)

    def view(self, now_ns: int) -> ProducerView:
        account = self.told
        return ProducerView(
            producer_id=self.producer_id,
            epoch=self.epoch,
            current_seq=self.current_seq,
            rate_hz=self.seqs.per_s(),
            bytes_per_s=self.bytes.per_s(),
            report_age_ns=now_ns - self.heard_ns,
            quiet_ns=now_ns - self.moved_ns,
            committed=None if account is None else account.committed,
            published=None if account is None else account.published,
            unpublished={} if account is None else account.unpublished,
            deferred=0 if account is None else account.deferred,
            dropped={} if account is None else account.dropped,
            holes=0 if account is None else account.holes,
            nbytes=None if account is None else account.nbytes,
            pid=None if account is None else account.pid,
            sources=() if account is None else account.sources,
        )


@dataclass(slots=True)
class MonitoredConsumer:
    """A consumer by its reports, its greetings and what it tells."""

    stream_id: int
    consumer_id: int
    epoch: int
    heard_ns: int
    last_seq: int | None = None
    reported: tuple[int, int] = (0, 0)
    """Epoch and sequence of the last report."""
    drops_gap: int = 0
    drops_late: int = 0
    is_limited: bool = False
    told: ConsumerStatus | None = None
    latency: LatencyStatus | None = None
    latency_ns: int = 0
    max_rate_hz: int = 0
    wants_limit: bool = False
    own_stream_id: int = 0
    fallback_uri: str = ""
    frames: RateMeter = field(default_factory=RateMeter)
    losses: RateMeter = field(default_factory=RateMeter)

    def on_report(self, report: ConsumerQos, now_ns: int) -> bool:
        """False if it contradicts what was said before: two who go by one id."""
        # Taken apart at once: thousands of fields a second by their names would take longer than the rest.
        _, _, epoch, last_seq, drops_gap, drops_late, self.is_limited = report
        reported, before = (epoch, last_seq or 0), self.reported
        is_sound = drops_gap >= self.drops_gap and drops_late >= self.drops_late and reported >= before
        if epoch == before[0] < self.epoch:
            # It insists: the later epoch was nobody's word of this consumer.
            self.epoch, self.last_seq = epoch, last_seq
        self.reported = reported
        self._reach(epoch, last_seq)
        self.drops_gap, self.drops_late = drops_gap, drops_late
        self.heard_ns = now_ns
        if self.told is None:
            self.losses.add(now_ns, drops_gap + drops_late)
            if last_seq is not None:
                self.frames.add(now_ns, last_seq)
        return is_sound

    def on_told(self, told: ConsumerStatus, now_ns: int) -> bool:
        """False if another process tells under this id."""
        _, _, pid, epoch, _, last_seq, _, received, dropped, _, _, _ = told
        before = self.told
        if before is None:
            self.frames.clear()
            self.losses.clear()
        self.told, self.heard_ns = told, now_ns
        if epoch is not None:
            self._reach(epoch, last_seq)
        self.frames.add(now_ns, received)
        lost = sum(n for name, n in dropped.items() if name not in ON_PURPOSE) if dropped else 0
        self.losses.add(now_ns, lost)
        return before is None or pid == before.pid

    def _reach(self, epoch: int, last_seq: int | None) -> None:
        """Reports and accounts come on two streams: the one that is read later may be the older one."""
        if epoch > self.epoch:
            self.epoch, self.last_seq = epoch, last_seq
        elif epoch == self.epoch and last_seq is not None and last_seq > (self.last_seq or -1):
            self.last_seq = last_seq

    def on_latency(self, told: LatencyStatus, now_ns: int) -> None:
        self.latency, self.latency_ns = told, now_ns

    def on_hello(self, hello: ConsumerHello, now_ns: int) -> None:
        self.max_rate_hz, self.wants_limit = hello.max_rate_hz, hello.mode is Mode.RATE_LIMITED
        self.heard_ns = now_ns

    def latency_at(self, now_ns: int, forget_ns: int) -> LatencyStatus | None:
        return self.latency if now_ns - self.latency_ns <= forget_ns else None

    def backlog(self, current_seq: int | None, epoch: int) -> int | None:
        """By the producer's sequence in the stream's epoch."""
        if current_seq is None or self.last_seq is None or self.epoch != epoch:
            return None
        return max(current_seq - self.last_seq, 0)

    def view(self, now_ns: int, current_seq: int | None, epoch: int, forget_ns: int) -> ConsumerView:
        told = self.told
        by_qos = {"gap": self.drops_gap, "late": self.drops_late}
        latency = self.latency_at(now_ns, forget_ns)
        return ConsumerView(
            stream_id=self.stream_id,
            consumer_id=self.consumer_id,
            epoch=self.epoch,
            last_seq=self.last_seq,
            mode="rate_limited" if self.is_limited else "stream",
            report_age_ns=now_ns - self.heard_ns,
            rate_hz=self.frames.per_s(),
            drops_gap=self.drops_gap,
            drops_late=self.drops_late,
            dropped={name: n for name, n in by_qos.items() if n} if told is None else told.dropped,
            dropped_per_s=self.losses.per_s(),
            backlog=self.backlog(current_seq, epoch),
            first_seq=told.first_seq if told is not None and told.epoch == self.epoch else None,
            span=None if told is None else told.span,
            received=None if told is None else told.received,
            outside={} if told is None else told.outside,
            looks=None if told is None else told.looks,
            latency=None if latency is None else latency.view(),
            max_rate_hz=self.max_rate_hz,
            wants_limit=self.wants_limit,
            own_stream_id=self.own_stream_id,
            fallback_uri=self.fallback_uri,
            pid=None if told is None else told.pid,
        )


@dataclass(slots=True)
class MonitoredStream:
    """A stream by its announces and metadata, with everybody on it."""

    stream_id: int
    heard_ns: int
    announce: ShmPoolAnnounce | None = None
    announced_ns: int = 0
    pools: tuple[PoolView, ...] = ()
    nbytes: int = 0
    """What its regions take."""
    epochs: int = 0
    activity_ns: int | None = None
    names: dict[bool, tuple[str, str]] = field(default_factory=dict)
    """Name and summary, by whether a producer says so: its word comes before the driver's."""
    labels: dict[bool, tuple[tuple[str, ...], int | None]] = field(default_factory=dict)
    producer: MonitoredProducer | None = None
    former_id: int = 0
    """The producer before: if it speaks again, there are two."""
    former_ns: int = 0
    consumers: dict[int, MonitoredConsumer] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        if self.announce is not None:
            return self.announce.epoch
        return 0 if self.producer is None else self.producer.epoch

    @property
    def current_seq(self) -> int | None:
        return None if self.producer is None else self.producer.current_seq

    def on_announce(self, said: ShmPoolAnnounce, now_ns: int) -> None:
        """What follows from it is worked out once, not at each look."""
        self.announce, self.announced_ns = said, now_ns
        self.pools = tuple(
            PoolView(one.pool_id, one.stride_bytes, one.pool_nslots) for one in said.payload_pools
        )
        payload = sum(SUPERBLOCK_BYTES + one.nslots * one.stride_bytes for one in self.pools)
        self.nbytes = SUPERBLOCK_BYTES + HEADER_SLOT_BYTES * said.header_nslots + payload
