"""From a snapshot of the system to families of samples. Pure.

Whoever can reach the wire can make up streams, consumers and reasons, and each would be a series in
somebody's database: every set of labels has a limit, and what is over it is counted.

Every metric that there is: the reference page and the collector are made from this list.

Names as Prometheus has them: a unit at the end, `_total` for what only grows, base units (seconds, bytes).
What can be computed is not here: a rate is `rate()` of a counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ..monitor.snapshot import (
    BridgeView,
    ConsumerView,
    DriverView,
    ProducerView,
    RecorderView,
    Snapshot,
    StreamState,
    StreamView,
)
from .exposition import Family, Labels, Metric, label_texts

_STREAM: Final = ("stream_id",)
_CONSUMER: Final = ("stream_id", "consumer_id")
_MAPPING: Final = ("bridge", "direction", "source_stream_id", "dest_stream_id")
_DRIVER: Final = ("namespace", "driver")
_RECORDER: Final = ("recorder",)

BUILD = Metric("tensorpool_build_info", "gauge", "Always 1; which version tells these metrics.", ("version",))
STREAMS = Metric("tensorpool_streams", "gauge", "Streams that were heard of, by state.", ("state",))
CONSUMERS = Metric("tensorpool_consumers", "gauge", "Consumers of all streams.")
LEFT_OUT = Metric(
    "tensorpool_metrics_left_out",
    "gauge",
    "Things that have no metrics of their own, because there are more than the settings allow.",
    ("what",),
)
UNHEARD = Metric(
    "tensorpool_messages_rejected_total",
    "counter",
    "Messages that could not be used, or had no room, by reason.",
    ("reason",),
)
COLLISIONS = Metric("tensorpool_id_collisions", "gauge", "Ids that two go by at once, by kind.", ("kind",))
LEDGER = Metric(
    "tensorpool_ledger_paths",
    "gauge",
    "Paths from a producer to who reads it, by how their ledger stands. `mismatch`: frames are missing that "
    "nobody accounts for.",
    ("verdict",),
)
SERVICES = Metric("tensorpool_services", "gauge", "Services that answer, by name.", ("name",))

STREAM_INFO = Metric("tensorpool_stream_info", "gauge", "Always 1; the name of a stream.", (*_STREAM, "name"))
STREAM_STATE = Metric(
    "tensorpool_stream_state", "gauge", "1 for the state that a stream is in.", (*_STREAM, "state")
)
STREAM_EPOCHS = Metric(
    "tensorpool_stream_epochs_total", "counter", "Epochs that were heard of: it begins anew.", _STREAM
)
STREAM_MEMORY = Metric("tensorpool_stream_memory_bytes", "gauge", "What its regions take.", _STREAM)
STREAM_SLOTS = Metric("tensorpool_stream_slots", "gauge", "Slots of its header ring.", _STREAM)
STREAM_ANNOUNCED = Metric(
    "tensorpool_stream_announce_age_seconds", "gauge", "Since it was announced last.", _STREAM
)
STREAM_ACTIVE = Metric(
    "tensorpool_stream_activity_age_seconds",
    "gauge",
    "Since the last sign of life in its memory, where that can be read.",
    _STREAM,
)
STREAM_CONSUMERS = Metric("tensorpool_stream_consumers", "gauge", "Consumers of a stream.", _STREAM)

SEQUENCES = Metric(
    "tensorpool_producer_sequences_total",
    "counter",
    "Sequences that were given out in this epoch; every producer tells it.",
    _STREAM,
)
COMMITTED = Metric(
    "tensorpool_producer_frames_committed_total",
    "counter",
    "Frames that got a sequence: published, or unpublished by reason.",
    _STREAM,
)
PUBLISHED = Metric(
    "tensorpool_producer_frames_published_total", "counter", "Frames whose descriptor went out.", _STREAM
)
UNPUBLISHED = Metric(
    "tensorpool_producer_frames_unpublished_total",
    "counter",
    "Frames that got a sequence and whose descriptor did not go out, by reason.",
    (*_STREAM, "reason"),
)
REFUSED = Metric(
    "tensorpool_producer_frames_dropped_total",
    "counter",
    "Frames that never got a sequence, by reason.",
    (*_STREAM, "reason"),
)
PRODUCED_BYTES = Metric(
    "tensorpool_producer_payload_bytes_total", "counter", "Payload of the frames it committed.", _STREAM
)
PRODUCER_AGE = Metric(
    "tensorpool_producer_report_age_seconds", "gauge", "Since the producer told of itself last.", _STREAM
)
QUIET = Metric("tensorpool_producer_quiet_seconds", "gauge", "Since the last new sequence was seen.", _STREAM)

RECEIVED = Metric(
    "tensorpool_consumer_frames_received_total", "counter", "Frames that a consumer got.", _CONSUMER
)
DROPPED = Metric(
    "tensorpool_consumer_frames_dropped_total",
    "counter",
    "Frames that a consumer did not get, by reason. `rate_limited` and `skipped` are on purpose.",
    (*_CONSUMER, "reason"),
)
BACKLOG = Metric(
    "tensorpool_consumer_backlog_frames",
    "gauge",
    "Sequences between its last one and the producer's.",
    _CONSUMER,
)
LATENCY_P50 = Metric(
    "tensorpool_consumer_latency_p50_seconds",
    "gauge",
    "From publication to having, of the last second: half of the frames were quicker.",
    _CONSUMER,
)
LATENCY_P99 = Metric(
    "tensorpool_consumer_latency_p99_seconds",
    "gauge",
    "From publication to having, of the last second: one frame in a hundred took longer.",
    _CONSUMER,
)
LATENCY_MAX = Metric(
    "tensorpool_consumer_latency_max_seconds",
    "gauge",
    "From publication to having, of the last second: the slowest.",
    _CONSUMER,
)
CONSUMER_AGE = Metric(
    "tensorpool_consumer_report_age_seconds", "gauge", "Since the consumer told of itself last.", _CONSUMER
)
LIMITED = Metric(
    "tensorpool_consumer_rate_limited", "gauge", "1 if it gets frames at a limited rate.", _CONSUMER
)
CONSUMER_INFO = Metric(
    "tensorpool_consumer_info",
    "gauge",
    "Always 1; the process of a consumer, where it says so.",
    (*_CONSUMER, "pid"),
)

LEASES = Metric("tensorpool_leases", "gauge", "Leases by role and state.", ("role", "state"))
DRIVER_STREAMS = Metric("tensorpool_driver_streams", "gauge", "Streams that an SHM driver knows.", _DRIVER)
DRIVER_LEASES = Metric("tensorpool_driver_leases", "gauge", "Leases that it has granted.", _DRIVER)
DRIVER_MEMORY = Metric("tensorpool_driver_memory_bytes", "gauge", "Memory that it holds.", _DRIVER)
DRIVER_QUOTA = Metric("tensorpool_driver_quota_bytes", "gauge", "Memory that it may hold.", _DRIVER)

CONNECTED = Metric("tensorpool_bridge_connected", "gauge", "1 if the mapping's other end is there.", _MAPPING)
CARRIED = Metric("tensorpool_bridge_frames_total", "counter", "Frames sent, or delivered.", _MAPPING)
CARRIED_BYTES = Metric(
    "tensorpool_bridge_payload_bytes_total", "counter", "Payload sent, or delivered.", _MAPPING
)
BRIDGE_DROPPED = Metric(
    "tensorpool_bridge_frames_dropped_total",
    "counter",
    "Frames that this end of the bridge dropped, by reason.",
    (*_MAPPING, "reason"),
)
ON_THE_WAY = Metric(
    "tensorpool_bridge_network_frames",
    "gauge",
    "Frames that were sent and not delivered: lost on the way, or still on it. A receiver tells it.",
    _MAPPING,
)

RECORDER_STATE = Metric(
    "tensorpool_recorder_state", "gauge", "1 for the state that a recorder is in.", (*_RECORDER, "state")
)
ROWS = Metric("tensorpool_recorder_rows_total", "counter", "Frames written since its start.", _RECORDER)
GAPS = Metric(
    "tensorpool_recorder_gap_frames_total",
    "counter",
    "Frames that it did not write, by reason.",
    (*_RECORDER, "reason"),
)
WRITTEN = Metric(
    "tensorpool_recorder_written_bytes_per_second", "gauge", "Over the last three seconds.", _RECORDER
)
BACKLOG_BYTES = Metric(
    "tensorpool_recorder_backlog_bytes", "gauge", "In its buffer, not yet on disk.", _RECORDER
)
DISK_FREE = Metric("tensorpool_recorder_disk_free_bytes", "gauge", "Left on its disk.", _RECORDER)

GROUPS: Final[dict[str, tuple[Metric, ...]]] = {
    "The system": (BUILD, STREAMS, CONSUMERS, LEASES, SERVICES, LEDGER, COLLISIONS, UNHEARD, LEFT_OUT),
    "Streams": (
        STREAM_INFO,
        STREAM_STATE,
        STREAM_EPOCHS,
        STREAM_MEMORY,
        STREAM_SLOTS,
        STREAM_ANNOUNCED,
        STREAM_ACTIVE,
        STREAM_CONSUMERS,
    ),
    "Producers": (
        SEQUENCES,
        COMMITTED,
        PUBLISHED,
        UNPUBLISHED,
        REFUSED,
        PRODUCED_BYTES,
        PRODUCER_AGE,
        QUIET,
    ),
    "Consumers": (
        CONSUMER_INFO,
        RECEIVED,
        DROPPED,
        BACKLOG,
        LATENCY_P50,
        LATENCY_P99,
        LATENCY_MAX,
        LIMITED,
        CONSUMER_AGE,
    ),
    "Drivers": (DRIVER_STREAMS, DRIVER_LEASES, DRIVER_MEMORY, DRIVER_QUOTA),
    "Bridges": (CONNECTED, CARRIED, CARRIED_BYTES, BRIDGE_DROPPED, ON_THE_WAY),
    "Recorders": (RECORDER_STATE, ROWS, GAPS, WRITTEN, BACKLOG_BYTES, DISK_FREE),
}
CATALOGUE: Final[tuple[Metric, ...]] = tuple(one for group in GROUPS.values() for one in group)


_One = TypeVar("_One")
_RECORDER_STATES: Final = ("recording", "armed", "stopped", "disk_full", "closed")
_MOST_REASONS: Final = 32
OTHER: Final = "other"
"""Stands for all names that are over the limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each get metrics of their own."""

    streams: int = 1024
    consumers: int = 4096
    mappings: int = 256
    others: int = 64
    """Drivers, recorders and names of services, each."""


DEFAULT_LIMITS: Final = Limits()


class _Page:
    """The families under way, in the catalogue's order."""

    def __init__(self, limits: Limits) -> None:
        self._families = {one.name: Family(one) for one in CATALOGUE}
        self.limits = limits

    def __getitem__(self, metric: Metric) -> Family:
        return self._families[metric.name]

    def first(self, what: str, limit: int, found: Sequence[_One]) -> Sequence[_One]:
        """The first ones, always the same; the rest is counted."""
        self[LEFT_OUT].add(max(0, len(found) - limit), what)
        return found[:limit]

    def reasons(self, metric: Metric, counts: Mapping[str, int], *labels: object) -> None:
        for reason, n in _few(counts, OTHER):
            self[metric].add(n, *labels, reason)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


def collect(snapshot: Snapshot, limits: Limits = DEFAULT_LIMITS, *, version: str = "") -> list[Family]:
    """All samples of a snapshot."""
    page = _Page(limits)
    page[BUILD].put(1, version)
    _system(page, snapshot)
    by_id = sorted(snapshot.streams, key=lambda one: one.stream_id)
    for stream in page.first("streams", limits.streams, by_id):
        _stream(page, stream)
    every = [one for stream in by_id for one in stream.consumers]
    for consumer in page.first("consumers", limits.consumers, every):
        _consumer(page, consumer)
    for driver in page.first("drivers", limits.others, snapshot.drivers):
        _driver(page, driver)
    _bridges(page, snapshot.bridges)
    for recorder in page.first("recorders", limits.others, snapshot.recorders):
        _recorder(page, recorder)
    return list(page)


def _system(page: _Page, snapshot: Snapshot) -> None:
    states = Counter(str(one.state) for one in snapshot.streams)
    for state in StreamState:
        page[STREAMS].put(states[str(state)], state)
    page[CONSUMERS].put(sum(len(one.consumers) for one in snapshot.streams))
    for (role, lease_state), n in _few(
        Counter((one.role, one.state) for one in snapshot.leases), rest=(OTHER, OTHER)
    ):
        page[LEASES].add(n, role, lease_state)
    for name, n in _few(Counter(one.name for one in snapshot.services), OTHER, page.limits.others):
        page[SERVICES].add(n, name)
    # A family that comes with its first trouble would have no "before" to compare with.
    collided = Counter(dict.fromkeys(("consumer", "producer", "stream"), 0))
    collided.update(one.kind for one in snapshot.collisions)
    for kind, n in _few(collided, OTHER):
        page[COLLISIONS].add(n, kind)
    page.reasons(UNHEARD, snapshot.rejected)
    if snapshot.ledger is not None:
        for verdict, n in snapshot.ledger.paths.items():
            page[LEDGER].put(n, verdict)


def _stream(page: _Page, one: StreamView) -> None:
    who = label_texts(one.stream_id)
    page[STREAM_INFO].put(1, one.stream_id, one.name)
    for state in StreamState:
        page[STREAM_STATE].put_at((*who, state.value), state is one.state)
    page[STREAM_EPOCHS].put_at(who, one.epochs)
    page[STREAM_MEMORY].put_at(who, one.nbytes)
    page[STREAM_SLOTS].put_at(who, one.nslots)
    page[STREAM_ANNOUNCED].put_at(who, one.announce_age_ns / 1e9)
    page[STREAM_ACTIVE].put_at(who, _seconds(one.activity_age_ns))
    page[STREAM_CONSUMERS].put_at(who, len(one.consumers))
    if one.producer is not None:
        _producer(page, who, one.producer)


def _producer(page: _Page, who: Labels, one: ProducerView) -> None:
    page[SEQUENCES].put_at(who, 0 if one.current_seq is None else one.current_seq + 1)
    page[COMMITTED].put_at(who, one.committed)
    page[PUBLISHED].put_at(who, one.published)
    page.reasons(UNPUBLISHED, one.unpublished, *who)
    page.reasons(REFUSED, one.dropped, *who)
    page[PRODUCED_BYTES].put_at(who, one.nbytes)
    page[PRODUCER_AGE].put_at(who, one.report_age_ns / 1e9)
    page[QUIET].put_at(who, one.quiet_ns / 1e9)


def _consumer(page: _Page, one: ConsumerView) -> None:
    who = label_texts(one.stream_id, one.consumer_id)
    page[CONSUMER_INFO].put(1, *who, one.pid or "")
    page[RECEIVED].put_at(who, one.received)
    page.reasons(DROPPED, one.dropped, *who)
    page[BACKLOG].put_at(who, one.backlog)
    if one.latency is not None:
        page[LATENCY_P50].put_at(who, one.latency.p50_ns / 1e9)
        page[LATENCY_P99].put_at(who, one.latency.p99_ns / 1e9)
        page[LATENCY_MAX].put_at(who, one.latency.max_ns / 1e9)
    page[LIMITED].put_at(who, one.mode == "rate_limited")
    page[CONSUMER_AGE].put_at(who, one.report_age_ns / 1e9)


def _driver(page: _Page, one: DriverView) -> None:
    who = (one.namespace, one.instance)
    page[DRIVER_STREAMS].put(one.streams, *who)
    page[DRIVER_LEASES].put(one.leases, *who)
    page[DRIVER_MEMORY].put(one.nbytes, *who)
    page[DRIVER_QUOTA].put(one.quota, *who)


def _bridges(page: _Page, bridges: Iterable[BridgeView]) -> None:
    every = [(bridge, mapping) for bridge in bridges for mapping in bridge.mappings]
    for bridge, one in page.first("mappings", page.limits.mappings, every):
        who = (bridge.instance, one.direction, one.source_stream_id, one.dest_stream_id)
        page[CONNECTED].put(one.connected, *who)
        page[CARRIED].put(one.frames, *who)
        page[CARRIED_BYTES].put(one.nbytes, *who)
        page.reasons(BRIDGE_DROPPED, one.dropped, *who)
        page[ON_THE_WAY].put(one.network, *who)


def _recorder(page: _Page, one: RecorderView) -> None:
    who = one.instance
    for state in (*_RECORDER_STATES, *(() if one.state in _RECORDER_STATES else (OTHER,))):
        page[RECORDER_STATE].put(state in (one.state, OTHER), who, state)
    page[ROWS].put(one.rows, who)
    page.reasons(GAPS, one.gaps, who)
    page[WRITTEN].put(one.bytes_per_s, who)
    page[BACKLOG_BYTES].put(one.backlog_bytes, who)
    page[DISK_FREE].put(one.disk_free_bytes, who)


def _few(counts: Mapping[_One, int], rest: _One, most: int = _MOST_REASONS) -> Iterator[tuple[_One, int]]:
    """As they are, or the first ones and all others under one name."""
    for place, (name, n) in enumerate(counts.items()):
        yield name if place < most else rest, n


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
