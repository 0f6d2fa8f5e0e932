"""What the picture shows: a snapshot of a running system. Immutable; times are ages in nanoseconds.

None means that nobody has told yet; a count that is 0 was told to be 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any

_WIDE = frozenset(
    {"epoch", "current_seq", "first_seq", "last_seq", "lease_id", "data_source_id", "source_epoch"}
)


class StreamState(StrEnum):
    """What a stream is doing, by what was heard of it."""

    LIVE = "live"
    """Frames come."""
    QUIET = "quiet"
    """There is a producer, and no frame for a while."""
    NO_PRODUCER = "no_producer"
    """Announced, and nobody produces."""
    STALE = "stale"
    """No sign of life: not announced any more, or its memory is not kept active."""


@dataclass(frozen=True, slots=True)
class PoolView:
    pool_id: int
    stride_bytes: int
    nslots: int


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Of the last period: how long frames took to a consumer; of a stream, to the slowest."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    since: str = ""
    """`publish`, `capture` or `mixed`: from which time on."""


@dataclass(frozen=True, slots=True)
class ProducerView:
    """Who writes a stream. What it counts is over its life; `current_seq` is of the epoch."""

    producer_id: int
    epoch: int
    current_seq: int | None
    """The last sequence that was given out; None: none yet."""
    rate_hz: float | None
    bytes_per_s: float | None
    report_age_ns: int
    quiet_ns: int
    """Since when no new sequence was seen."""
    committed: int | None = None
    published: int | None = None
    unpublished: Mapping[str, int] = field(default_factory=dict)
    """Committed, and no descriptor went out, by reason."""
    deferred: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Never got a sequence, by reason."""
    holes: int = 0
    nbytes: int | None = None
    pid: int | None = None
    sources: tuple[int, ...] = ()
    """Streams that its frames are made from."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """Who reads a stream. What it counts is over its life."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq: int | None
    mode: str
    """`stream` or `rate_limited`."""
    report_age_ns: int
    rate_hz: float | None
    """Frames a second that it gets."""
    drops_gap: int
    drops_late: int
    dropped: Mapping[str, int]
    """By reason, where it tells them; else `gap` and `late` as its QoS has them."""
    dropped_per_s: float | None
    """What it lost, without what was held back or passed over on purpose."""
    backlog: int | None
    """Sequences between its last one and the producer's."""
    first_seq: int | None = None
    """The first one of this epoch."""
    span: int | None = None
    received: int | None = None
    outside: Mapping[str, int] = field(default_factory=dict)
    looks: int | None = None
    """How often it has looked for frames."""
    latency: LatencyView | None = None
    max_rate_hz: int = 0
    """What it asked for itself; 0: nothing."""
    wants_limit: bool = False
    """Whether it asked to be limited."""
    own_stream_id: int = 0
    """Its own descriptor stream; 0: the shared one."""
    fallback_uri: str = ""
    """Where its frames are to come from instead of shared memory."""
    pid: int | None = None

    @property
    def is_forced(self) -> bool:
        """Limited without having asked for it."""
        return self.mode == "rate_limited" and not self.wants_limit

    @property
    def lost(self) -> int:
        return sum(n for reason, n in self.dropped.items() if reason not in ON_PURPOSE)


ON_PURPOSE = frozenset({"rate_limited", "skipped"})
"""Reasons that are no loss: somebody wanted it so."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream, and everybody on it."""

    stream_id: int
    name: str
    summary: str
    tags: tuple[str, ...]
    data_source_id: int | None
    state: StreamState
    epoch: int
    epochs: int
    """How many epochs were heard of."""
    layout_version: int
    nslots: int
    pools: tuple[PoolView, ...]
    nbytes: int
    """What its regions take."""
    announce_age_ns: int
    activity_age_ns: int | None
    """By the sign of life in its memory; None where that cannot be read."""
    producer: ProducerView | None
    consumers: tuple[ConsumerView, ...]
    dropped: Mapping[str, int]
    """Of all consumers that are there, by reason."""
    latency: LatencyView | None
    sources: tuple[int, ...]
    """Streams that it is made from, also across a bridge."""
    feeds: tuple[int, ...]
    """Streams that are made from it."""

    @property
    def rate_hz(self) -> float | None:
        return None if self.producer is None else self.producer.rate_hz

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.producer is None else self.producer.bytes_per_s


@dataclass(frozen=True, slots=True)
class LeaseView:
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
    """An SHM driver, as `service:driver` tells."""

    tag: str
    namespace: str
    instance: str
    pid: int
    user: str
    streams: int
    leases: int
    nbytes: int
    quota: int | None
    heard_age_ns: int


@dataclass(frozen=True, slots=True)
class MappingView:
    """One mapping of a bridge, at one of its ends."""

    direction: str
    """`send` or `receive`."""
    source_stream_id: int
    dest_stream_id: int
    connected: bool
    epoch: int | None
    frames: int
    """Sent, or delivered."""
    nbytes: int
    frames_per_s: float | None
    dropped: Mapping[str, int]
    """At this end, by reason."""
    published: int | None
    """As the sender tells; at a receiver None until it was heard."""
    network: int | None
    """Lost on the way, or still on it; only a receiver knows."""
    exact: bool
    """False: the sender was heard of when it was at work already."""
    fault: str = ""
    sender: int = 0
    """What the sender dropped, as a receiver knows it."""


@dataclass(frozen=True, slots=True)
class BridgeView:
    tag: str
    instance: str
    pid: int
    mappings: tuple[MappingView, ...]
    heard_age_ns: int


@dataclass(frozen=True, slots=True)
class RecordedView:
    """What a recorder has written of one epoch: span = rows + gaps."""

    stream_id: int
    epoch: int
    first_seq: int
    last_seq: int
    span: int
    rows: int
    gaps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecorderView:
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
    heard_age_ns: int


@dataclass(frozen=True, slots=True)
class ServiceView:
    """Anybody who answers to a service's name."""

    tag: str
    name: str
    instance: str
    pid: int
    heard_age_ns: int


@dataclass(frozen=True, slots=True)
class CollisionView:
    """Two who go by one id."""

    kind: str
    """`consumer`, `producer` or `stream` (announced from two places)."""
    stream_id: int
    id: int
    times: int
    age_ns: int


@dataclass(frozen=True, slots=True)
class NoticeView:
    """Something that happened: kept until newer ones push it out."""

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
    """How many there are, by verdict."""
    mismatches: tuple[MismatchView, ...] = ()
    """The first ones; `paths` counts them all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole system at one moment, as far as it could be heard."""

    now_ns: int
    streams: tuple[StreamView, ...] = ()
    leases: tuple[LeaseView, ...] = ()
    drivers: tuple[DriverView, ...] = ()
    bridges: tuple[BridgeView, ...] = ()
    recorders: tuple[RecorderView, ...] = ()
    services: tuple[ServiceView, ...] = ()
    collisions: tuple[CollisionView, ...] = ()
    notices: tuple[NoticeView, ...] = ()
    unheard: Mapping[str, int] = field(default_factory=dict)
    """Messages that could not be used, or had no room, by reason."""
    ledger: LedgerView | None = None
    """None where nobody keeps one."""

    def stream(self, stream_id: int) -> StreamView | None:
        return next((one for one in self.streams if one.stream_id == stream_id), None)

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        stream = self.stream(stream_id)
        found = () if stream is None else stream.consumers
        return next((one for one in found if one.consumer_id == consumer_id), None)

    def own_stream_ids(self) -> set[int]:
        """Descriptor streams that some consumer has for itself."""
        return {one.own_stream_id for stream in self.streams for one in stream.consumers}


def as_json(view: Any) -> Any:
    """Any view as JSON has it: 64-bit numbers are strings, since many a reader would round them."""
    if is_dataclass(view) and not isinstance(view, type):
        return {one.name: _member(one.name, getattr(view, one.name)) for one in fields(view)}
    if isinstance(view, Mapping):
        return {str(name): as_json(value) for name, value in view.items()}
    if isinstance(view, tuple | list):
        return [as_json(one) for one in view]
    return view


def _member(name: str, value: Any) -> Any:
    return str(value) if name in _WIDE and isinstance(value, int) else as_json(value)
