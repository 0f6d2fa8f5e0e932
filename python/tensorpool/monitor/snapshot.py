"""Snapshots of a running system: immutable views of streams, endpoints and services, and their JSON form.

Pure. Times are ages in nanoseconds. None means that no report had the value yet; 0 is a reported 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ..text import JsonValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ON_PURPOSE: Final = frozenset({"rate_limited", "skipped"})
"""Drop reasons that are no loss: the consumer or the supervisor asked for them."""
_WIDE: Final = frozenset(
    {"epoch", "current_seq", "first_seq", "last_seq", "lease_id", "data_source_id", "source_epoch"}
)
"""64-bit fields, which are text in JSON: many JSON readers would round them."""


class StreamState(StrEnum):
    """The state of a stream, from its announces, activity timestamp and QoS reports."""

    LIVE = "live"
    """Frames are published."""
    QUIET = "quiet"
    """It has a producer, which has published no frame for a while."""
    VACANT = "vacant"
    """It is announced without a producer."""
    STALE = "stale"
    """It is not announced any more, or its activity timestamp is stale."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A payload pool of a stream."""

    pool_id: int
    stride_bytes: int
    nslots: int
    region_uri: str = ""


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Latency of a consumer's frames in the last period; of a stream, the highest of its consumers."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    since: str = ""
    """Where the latency starts: `publish`, `capture` or `mixed`."""


@dataclass(frozen=True, slots=True)
class ProducerView:
    """The producer of a stream. Counts are over its lifetime; `current_seq` is of the epoch."""

    producer_id: int
    epoch: int
    current_seq: int | None
    """The newest sequence; None: none yet."""
    rate_hz: float | None
    bytes_per_s: float | None
    report_age_ns: int
    quiet_ns: int
    """Time since a new sequence was last reported."""
    watermark: int | None = None
    """The most slots that were claimed or deferred at once in the last report period; None: not reported. At
    the number of slots of the stream, frames are dropped as `slot_claimed`."""
    committed: int | None = None
    published: int | None = None
    unpublished: Mapping[str, int] = field(default_factory=dict)
    """Committed frames without a descriptor, by reason."""
    deferred: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Frames that never got a sequence, by reason."""
    holes: int = 0
    nbytes: int | None = None
    pid: int | None = None
    sources: tuple[int, ...] = ()
    """Streams that its frames are made from."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer of a stream. Counts are over its lifetime."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq: int | None
    mode: str
    """`stream` or `rate_limited`."""
    report_age_ns: int
    rate_hz: float | None
    """Frames a second that it receives."""
    drops_gap: int
    drops_late: int
    dropped: Mapping[str, int]
    """By reason, from its status reports; without these, `gap` and `late` from its QoS reports."""
    dropped_per_s: float | None
    """Frames a second that it loses, without those that are limited or skipped on purpose."""
    backlog: int | None
    """Sequences between its last one and the producer's."""
    first_seq: int | None = None
    """Its first sequence of this epoch."""
    span: int | None = None
    received: int | None = None
    outside: Mapping[str, int] = field(default_factory=dict)
    polls: int | None = None
    """How often it has polled for frames."""
    latency: LatencyView | None = None
    max_rate_hz: int = 0
    """The rate limit that it requested; 0: none."""
    requested_limit: bool = False
    """Whether it requested mode RATE_LIMITED."""
    per_consumer_stream_id: int = 0
    """Its per-consumer descriptor stream; 0: it uses the shared stream."""
    fallback_uri: str = ""
    """Where it reads frames instead of shared memory."""
    pid: int | None = None
    label: str = ""
    """What its user calls it."""

    @property
    def is_forced(self) -> bool:
        """Whether it is limited without having requested it."""
        return self.mode == "rate_limited" and not self.requested_limit

    @property
    def lost(self) -> int:
        """Frames that it lost, without those that are limited or skipped on purpose."""
        return sum(n for reason, n in self.dropped.items() if reason not in ON_PURPOSE)


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream with its producer and consumers."""

    stream_id: int
    name: str
    summary: str
    tags: tuple[str, ...]
    data_source_id: int | None
    state: StreamState
    epoch: int
    epochs: int
    """How many epochs were announced."""
    layout_version: int
    nslots: int
    pools: tuple[PoolView, ...]
    nbytes: int
    """Size of its regions."""
    announce_age_ns: int
    """Time since an announce was received."""
    activity_age_ns: int | None
    """Age of its activity timestamp; None if the region cannot be read."""
    producer: ProducerView | None
    consumers: tuple[ConsumerView, ...]
    dropped: Mapping[str, int]
    """Drops of all present consumers, by reason."""
    latency: LatencyView | None
    sources: tuple[int, ...]
    """Streams that it is made from, also across a bridge."""
    derived: tuple[int, ...]
    """Streams that are made from it."""
    header_uri: str = ""
    """Region of its header ring."""
    producer_id: int = 0
    """The announced producer; 0: none."""
    announce_sent_age_ns: int | None = None
    """Time since the announce was sent; None if its time is of another clock."""

    @property
    def is_announced(self) -> bool:
        """Whether an announce was ever received."""
        return self.epochs > 0

    @property
    def rate_hz(self) -> float | None:
        """Frames a second of its producer."""
        return None if self.producer is None else self.producer.rate_hz

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes a second of its producer."""
        return None if self.producer is None else self.producer.bytes_per_s


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease of a driver."""

    lease_id: int
    stream_id: int
    client_id: int
    role: str
    state: str
    age_s: float
    expires_in_s: float | None
    driver: str


@dataclass(frozen=True, slots=True)
class DriverView:
    """An SHM driver, from the answers of `service:driver`."""

    tag: str
    namespace: str
    instance: str
    pid: int
    user: str
    streams: int
    leases: int
    nbytes: int
    quota: int | None
    report_age_ns: int


@dataclass(frozen=True, slots=True)
class MappingView:
    """A mapping of a bridge, at one of its ends."""

    direction: str
    """`send` or `receive`."""
    source_stream_id: int
    dest_stream_id: int
    connected: bool
    epoch: int | None
    frames: int
    """Sent or delivered frames."""
    nbytes: int
    frames_per_s: float | None
    dropped: Mapping[str, int]
    """Drops at this end, by reason."""
    published: int | None
    """Count of the sender; at a receiver None until the sender reported it."""
    network: int | None
    """Frames lost or still under way between the ends; only a receiver knows."""
    exact: bool
    """False: the sender was already active when the receiver got its first report."""
    fault: str = ""
    sender: int = 0
    """Drops of the sender, as the receiver knows them."""
    channel: str = ""
    """The UDP channel of its frames, with the host that receives them."""


@dataclass(frozen=True, slots=True)
class BridgeView:
    """One end of a bridge."""

    tag: str
    instance: str
    pid: int
    mappings: tuple[MappingView, ...]
    report_age_ns: int


@dataclass(frozen=True, slots=True)
class RecordedView:
    """The rows of one stream and epoch that a recorder has written: span = rows + gaps."""

    stream_id: int
    epoch: int
    first_seq: int
    last_seq: int
    span: int
    rows: int
    gaps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecorderView:
    """A recorder."""

    tag: str
    instance: str
    pid: int
    state: str
    problem: str
    root: str
    rows: int
    gaps: Mapping[str, int]
    rows_per_s: float
    bytes_per_s: float
    backlog_bytes: int
    disk_free_bytes: int
    streams: tuple[int, ...]
    written: tuple[RecordedView, ...]
    report_age_ns: int


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service that answers pings."""

    tag: str
    name: str
    instance: str
    pid: int
    report_age_ns: int


@dataclass(frozen=True, slots=True)
class CollisionView:
    """Two endpoints that use one id."""

    kind: str
    """`consumer`, `producer` or `stream` (announced by two owners)."""
    stream_id: int
    id: int
    times: int
    age_ns: int


@dataclass(frozen=True, slots=True)
class NoticeView:
    """An event of the recent past; the oldest notices are replaced by newer ones."""

    age_ns: int
    kind: str
    stream_id: int | None
    text: str


@dataclass(frozen=True, slots=True)
class MismatchView:
    """A path of the ledger on which frames are unaccounted for."""

    stream_id: int
    path: str
    who: str
    problem: str


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Whether published = delivered + dropped by reason, on every path (`tensorpool ledger`)."""

    paths: Mapping[str, int] = field(default_factory=dict)
    """Number of paths by verdict."""
    mismatches: tuple[MismatchView, ...] = ()
    """The first mismatches; `paths` counts all of them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole system at one moment, as far as its messages were received."""

    now_ns: int
    streams: tuple[StreamView, ...] = ()
    leases: tuple[LeaseView, ...] = ()
    drivers: tuple[DriverView, ...] = ()
    bridges: tuple[BridgeView, ...] = ()
    recorders: tuple[RecorderView, ...] = ()
    services: tuple[ServiceView, ...] = ()
    collisions: tuple[CollisionView, ...] = ()
    notices: tuple[NoticeView, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Messages that could not be used or had no room, by reason."""
    ledger: LedgerView | None = None
    """None until the model made its first snapshot."""

    def stream(self, stream_id: int) -> StreamView | None:
        """The stream with that id."""
        return next((stream for stream in self.streams if stream.stream_id == stream_id), None)

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        """The consumer with that id."""
        stream = self.stream(stream_id)
        consumers = () if stream is None else stream.consumers
        return next((consumer for consumer in consumers if consumer.consumer_id == consumer_id), None)

    def per_consumer_stream_ids(self) -> set[int]:
        """Descriptor streams that were granted to single consumers."""
        return {consumer.per_consumer_stream_id for stream in self.streams for consumer in stream.consumers}


def without_consumers(snapshot: Snapshot, consumer_ids: set[int]) -> Snapshot:
    """The snapshot without these consumers."""
    streams = tuple(_without_consumers(stream, consumer_ids) for stream in snapshot.streams)
    return replace(snapshot, streams=streams)


def _without_consumers(stream: StreamView, consumer_ids: set[int]) -> StreamView:
    consumers = tuple(consumer for consumer in stream.consumers if consumer.consumer_id not in consumer_ids)
    if len(consumers) == len(stream.consumers):
        return stream
    dropped: Counter[str] = Counter()
    for consumer in consumers:
        dropped.update(consumer.dropped)
    return replace(stream, consumers=consumers, dropped=dropped)


def to_json(view: DataclassInstance) -> dict[str, JsonValue]:
    """Any view as JSON; 64-bit numbers are text."""
    return {member.name: _member(member.name, getattr(view, member.name)) for member in fields(view)}


def _member(name: str, value: object) -> JsonValue:
    return str(value) if name in _WIDE and isinstance(value, int) else _value(value)


def _value(value: object) -> JsonValue:
    match value:
        case Mapping():
            return {str(name): _value(item) for name, item in value.items()}
        case tuple() | list():
            return [_value(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    raise TypeError(f"{type(value).__name__} is no value of a view")
