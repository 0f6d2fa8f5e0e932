"""The catalogue of metrics, and the collector that fills it from a snapshot of the system model.

`MetricsCollector` is a collector of Prometheus' client library: a program with a registry of its own can
register it there. The endpoint, the OpenTelemetry export and `tensorpool metrics show` use it directly.

Names follow Prometheus' conventions: base units (seconds, bytes) at the end, `_total` for counters. Rates
are not in the catalogue: `rate()` of a counter computes them.

Any process that can send messages can invent streams, consumers and reasons, and each would be a series in a
database. Therefore every set of labels has a limit, and `tensorpool_metrics_excluded` counts the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample
from prometheus_client.registry import Collector

from .. import __version__
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
from .config import DEFAULT_LIMITS, Limits
from .server import label_text, render

Kind = Literal["counter", "gauge"]
LabelSet = dict[str, str]
_Item = TypeVar("_Item")

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Name, kind, help text and label names of a metric."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.labels):
            if not _NAME.match(name):
                raise ValueError(f"{name!r} is not a valid name of a metric or label")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and only counters, end with _total")

    def family(self) -> Metric:
        """An empty family of the client library."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return make(self.name, self.doc, labels=self.labels)

    def label_set(self, *values: object) -> LabelSet:
        """The labels with their values as text, each of bounded length."""
        return dict(zip(self.labels, map(label_text, values), strict=True))


_STREAM: Final = ("stream_id",)
_CONSUMER: Final = ("stream_id", "consumer_id")
_MAPPING: Final = ("bridge", "direction", "source_stream_id", "dest_stream_id")
_DRIVER: Final = ("namespace", "driver")
_RECORDER: Final = ("recorder",)

BUILD = MetricDefinition(
    "tensorpool_build_info", "gauge", "Always 1; the version that serves these metrics.", ("version",)
)
STREAMS = MetricDefinition("tensorpool_streams", "gauge", "Known streams, by state.", ("state",))
CONSUMERS = MetricDefinition("tensorpool_consumers", "gauge", "Consumers of all streams.")
EXCLUDED = MetricDefinition(
    "tensorpool_metrics_excluded",
    "gauge",
    "Things that have no metrics of their own, because there are more than the settings allow.",
    ("what",),
)
REJECTED = MetricDefinition(
    "tensorpool_messages_rejected_total",
    "counter",
    "Messages that could not be used, or for which the system model had no room, by reason.",
    ("reason",),
)
COLLISIONS = MetricDefinition(
    "tensorpool_id_collisions", "gauge", "Ids that two endpoints use at once, by kind.", ("kind",)
)
LEDGER = MetricDefinition(
    "tensorpool_ledger_paths",
    "gauge",
    "Paths from a producer to a reader, by the verdict of their ledger. `mismatch`: frames are missing that "
    "no ledger accounts for.",
    ("verdict",),
)
SERVICES = MetricDefinition("tensorpool_services", "gauge", "Services that answer, by name.", ("name",))

STREAM_INFO = MetricDefinition(
    "tensorpool_stream_info", "gauge", "Always 1; the name of a stream.", (*_STREAM, "name")
)
STREAM_STATE = MetricDefinition(
    "tensorpool_stream_state", "gauge", "1 for the state that a stream is in.", (*_STREAM, "state")
)
STREAM_EPOCHS = MetricDefinition(
    "tensorpool_stream_epochs_total", "counter", "Epochs of the stream that were announced.", _STREAM
)
STREAM_MEMORY = MetricDefinition(
    "tensorpool_stream_memory_bytes", "gauge", "Size of the stream's regions.", _STREAM
)
STREAM_SLOTS = MetricDefinition("tensorpool_stream_slots", "gauge", "Slots of its header ring.", _STREAM)
STREAM_ANNOUNCED = MetricDefinition(
    "tensorpool_stream_announce_age_seconds", "gauge", "Time since the last announce.", _STREAM
)
STREAM_ACTIVE = MetricDefinition(
    "tensorpool_stream_activity_age_seconds",
    "gauge",
    "Time since the last activity timestamp in its regions, where they can be read.",
    _STREAM,
)
STREAM_CONSUMERS = MetricDefinition("tensorpool_stream_consumers", "gauge", "Consumers of a stream.", _STREAM)

SEQUENCES = MetricDefinition(
    "tensorpool_producer_sequences_total",
    "counter",
    "Sequences assigned in this epoch; every producer reports it.",
    _STREAM,
)
COMMITTED = MetricDefinition(
    "tensorpool_producer_frames_committed_total",
    "counter",
    "Frames that got a sequence: published, or unpublished by reason.",
    _STREAM,
)
PUBLISHED = MetricDefinition(
    "tensorpool_producer_frames_published_total", "counter", "Frames whose descriptor was published.", _STREAM
)
UNPUBLISHED = MetricDefinition(
    "tensorpool_producer_frames_unpublished_total",
    "counter",
    "Frames that got a sequence and whose descriptor was not published, by reason.",
    (*_STREAM, "reason"),
)
PRODUCER_DROPPED = MetricDefinition(
    "tensorpool_producer_frames_dropped_total",
    "counter",
    "Frames that never got a sequence, by reason.",
    (*_STREAM, "reason"),
)
PRODUCER_BYTES = MetricDefinition(
    "tensorpool_producer_payload_bytes_total", "counter", "Payload of the frames it committed.", _STREAM
)
PRODUCER_AGE = MetricDefinition(
    "tensorpool_producer_report_age_seconds", "gauge", "Time since the producer's last report.", _STREAM
)
PRODUCER_QUIET = MetricDefinition(
    "tensorpool_producer_quiet_seconds", "gauge", "Time since the last new sequence.", _STREAM
)
PRODUCER_WATERMARK = MetricDefinition(
    "tensorpool_producer_open_slots_max",
    "gauge",
    "The most slots that were claimed or deferred at once in the last report period.",
    _STREAM,
)

RECEIVED = MetricDefinition(
    "tensorpool_consumer_frames_received_total", "counter", "Frames that a consumer received.", _CONSUMER
)
CONSUMER_DROPPED = MetricDefinition(
    "tensorpool_consumer_frames_dropped_total",
    "counter",
    "Frames that a consumer did not receive, by reason. `rate_limited` and `skipped` are on purpose.",
    (*_CONSUMER, "reason"),
)
BACKLOG = MetricDefinition(
    "tensorpool_consumer_backlog_frames",
    "gauge",
    "Sequences between its last one and the producer's.",
    _CONSUMER,
)
LATENCY_P50 = MetricDefinition(
    "tensorpool_consumer_latency_p50_seconds",
    "gauge",
    "From publication to receipt, over the last second: the median.",
    _CONSUMER,
)
LATENCY_P99 = MetricDefinition(
    "tensorpool_consumer_latency_p99_seconds",
    "gauge",
    "From publication to receipt, over the last second: one frame in a hundred took longer.",
    _CONSUMER,
)
LATENCY_MAX = MetricDefinition(
    "tensorpool_consumer_latency_max_seconds",
    "gauge",
    "From publication to receipt, over the last second: the slowest frame.",
    _CONSUMER,
)
CONSUMER_AGE = MetricDefinition(
    "tensorpool_consumer_report_age_seconds", "gauge", "Time since the consumer's last report.", _CONSUMER
)
RATE_LIMITED = MetricDefinition(
    "tensorpool_consumer_rate_limited", "gauge", "1 if it receives frames at a limited rate.", _CONSUMER
)
CONSUMER_INFO = MetricDefinition(
    "tensorpool_consumer_info",
    "gauge",
    "Always 1; process id and label of a consumer, if it reports them.",
    (*_CONSUMER, "pid", "label"),
)

LEASES = MetricDefinition("tensorpool_leases", "gauge", "Leases by role and state.", ("role", "state"))
DRIVER_STREAMS = MetricDefinition(
    "tensorpool_driver_streams", "gauge", "Streams that an SHM driver manages.", _DRIVER
)
DRIVER_LEASES = MetricDefinition("tensorpool_driver_leases", "gauge", "Leases that it has granted.", _DRIVER)
DRIVER_MEMORY = MetricDefinition(
    "tensorpool_driver_memory_bytes", "gauge", "Memory that its regions use.", _DRIVER
)
DRIVER_QUOTA = MetricDefinition(
    "tensorpool_driver_quota_bytes", "gauge", "Memory that its regions may use.", _DRIVER
)

BRIDGE_CONNECTED = MetricDefinition(
    "tensorpool_bridge_connected", "gauge", "1 if the mapping's other end is connected.", _MAPPING
)
BRIDGE_FRAMES = MetricDefinition(
    "tensorpool_bridge_frames_total", "counter", "Frames sent, or delivered.", _MAPPING
)
BRIDGE_BYTES = MetricDefinition(
    "tensorpool_bridge_payload_bytes_total", "counter", "Payload sent, or delivered.", _MAPPING
)
BRIDGE_DROPPED = MetricDefinition(
    "tensorpool_bridge_frames_dropped_total",
    "counter",
    "Frames that this end of the bridge dropped, by reason.",
    (*_MAPPING, "reason"),
)
BRIDGE_NETWORK = MetricDefinition(
    "tensorpool_bridge_network_frames",
    "gauge",
    "Frames that were sent and not delivered: lost in the network, or still in it. A receiver reports it.",
    _MAPPING,
)

RECORDER_STATE = MetricDefinition(
    "tensorpool_recorder_state", "gauge", "1 for the state that a recorder is in.", (*_RECORDER, "state")
)
RECORDER_ROWS = MetricDefinition(
    "tensorpool_recorder_rows_total", "counter", "Frames written since its start.", _RECORDER
)
RECORDER_GAPS = MetricDefinition(
    "tensorpool_recorder_gap_frames_total",
    "counter",
    "Frames that it did not write, by reason.",
    (*_RECORDER, "reason"),
)
RECORDER_WRITTEN = MetricDefinition(
    "tensorpool_recorder_written_bytes_per_second", "gauge", "Over the last three seconds.", _RECORDER
)
RECORDER_BACKLOG = MetricDefinition(
    "tensorpool_recorder_backlog_bytes", "gauge", "In its buffer, not yet on disk.", _RECORDER
)
RECORDER_FREE = MetricDefinition(
    "tensorpool_recorder_disk_free_bytes", "gauge", "Free space on its disk.", _RECORDER
)

GROUPS: Final[dict[str, tuple[MetricDefinition, ...]]] = {
    "The system": (BUILD, STREAMS, CONSUMERS, LEASES, SERVICES, LEDGER, COLLISIONS, REJECTED, EXCLUDED),
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
        PRODUCER_DROPPED,
        PRODUCER_BYTES,
        PRODUCER_AGE,
        PRODUCER_QUIET,
        PRODUCER_WATERMARK,
    ),
    "Consumers": (
        CONSUMER_INFO,
        RECEIVED,
        CONSUMER_DROPPED,
        BACKLOG,
        LATENCY_P50,
        LATENCY_P99,
        LATENCY_MAX,
        RATE_LIMITED,
        CONSUMER_AGE,
    ),
    "Drivers": (DRIVER_STREAMS, DRIVER_LEASES, DRIVER_MEMORY, DRIVER_QUOTA),
    "Bridges": (BRIDGE_CONNECTED, BRIDGE_FRAMES, BRIDGE_BYTES, BRIDGE_DROPPED, BRIDGE_NETWORK),
    "Recorders": (
        RECORDER_STATE,
        RECORDER_ROWS,
        RECORDER_GAPS,
        RECORDER_WRITTEN,
        RECORDER_BACKLOG,
        RECORDER_FREE,
    ),
}
CATALOGUE: Final[tuple[MetricDefinition, ...]] = tuple(
    definition for group in GROUPS.values() for definition in group
)

MAX_REASONS: Final = 32
OTHER: Final = "other"
"""The label value of everything beyond a limit."""

_RECORDER_STATES: Final = ("recording", "armed", "stopped", "disk_full", "closed")


class MetricsCollector(Collector):
    """Collects the metrics of the newest snapshot; calls `source` on the thread of each caller."""

    def __init__(self, source: Callable[[], Snapshot], limits: Limits = DEFAULT_LIMITS) -> None:
        self._source = source
        self._limits = limits

    def describe(self) -> Iterable[Metric]:
        """The families without samples: a registry asks for their names when the collector is registered."""
        return [definition.family() for definition in CATALOGUE]

    def collect(self) -> list[Metric]:
        """The families that have samples, in the catalogue's order."""
        return collect(self._source(), self._limits, version=__version__)

    def page(self) -> str:
        """The same in Prometheus' text format."""
        return render(self.collect())


class _Families:
    """The families being filled, in the catalogue's order."""

    def __init__(self, limits: Limits) -> None:
        self._families = {definition.name: definition.family() for definition in CATALOGUE}
        self.limits = limits

    def add(self, definition: MetricDefinition, labels: LabelSet, value: float | None) -> None:
        """Adds a sample; a value that is not known is left out. Samples may share one label set."""
        if value is not None:
            self._families[definition.name].samples.append(Sample(definition.name, labels, float(value)))

    def add_reasons(
        self,
        definition: MetricDefinition,
        labels: LabelSet,
        counts: Mapping[str, int],
        limit: int = MAX_REASONS,
    ) -> None:
        """Adds a sample for each key of `counts`, the last label; those over the limit are summed."""
        if not counts:
            return
        last = definition.labels[-1]
        reasons = [(label_text(reason), n) for reason, n in counts.items()]
        for reason, n in _bounded(reasons, OTHER, limit).items():
            self.add(definition, {**labels, last: reason}, n)

    def first(
        self, what: str, limit: int, items: Iterable[tuple[LabelSet, _Item]]
    ) -> list[tuple[LabelSet, _Item]]:
        """The first items up to the limit; the rest is counted. Of equal labels the last counts."""
        unique = {tuple(labels.values()): (labels, item) for labels, item in items}
        self.add(EXCLUDED, EXCLUDED.label_set(what), max(0, len(unique) - limit))
        return list(unique.values())[:limit]

    def __iter__(self) -> Iterator[Metric]:
        return (family for family in self._families.values() if family.samples)


def collect(snapshot: Snapshot, limits: Limits = DEFAULT_LIMITS, *, version: str = "") -> list[Metric]:
    """The families of a snapshot that have samples. Pure."""
    families = _Families(limits)
    families.add(BUILD, BUILD.label_set(version), 1)
    _add_system(families, snapshot)
    streams = sorted(snapshot.streams, key=lambda stream: stream.stream_id)
    labelled = ((STREAM_SLOTS.label_set(stream.stream_id), stream) for stream in streams)
    for labels, stream in families.first("streams", limits.streams, labelled):
        _add_stream(families, labels, stream)
    consumers = (
        (RECEIVED.label_set(consumer.stream_id, consumer.consumer_id), consumer)
        for stream in streams
        for consumer in stream.consumers
    )
    for labels, consumer in families.first("consumers", limits.consumers, consumers):
        _add_consumer(families, labels, consumer)
    drivers = (
        (DRIVER_STREAMS.label_set(driver.namespace, driver.instance), driver) for driver in snapshot.drivers
    )
    for labels, driver in families.first("drivers", limits.others, drivers):
        _add_driver(families, labels, driver)
    _add_bridges(families, snapshot.bridges)
    recorders = ((RECORDER_ROWS.label_set(recorder.instance), recorder) for recorder in snapshot.recorders)
    for labels, recorder in families.first("recorders", limits.others, recorders):
        _add_recorder(families, labels, recorder)
    return list(families)


def _add_system(families: _Families, snapshot: Snapshot) -> None:
    states = Counter(stream.state for stream in snapshot.streams)
    for state in StreamState:
        families.add(STREAMS, STREAMS.label_set(state), states[state])
    families.add(CONSUMERS, {}, sum(len(stream.consumers) for stream in snapshot.streams))
    leases = Counter((label_text(lease.role), label_text(lease.state)) for lease in snapshot.leases)
    for (role, lease_state), n in _bounded(leases.items(), (OTHER, OTHER), MAX_REASONS).items():
        families.add(LEASES, LEASES.label_set(role, lease_state), n)
    services = Counter(service.name for service in snapshot.services)
    families.add_reasons(SERVICES, {}, services, families.limits.others)
    # Always present: a series that begins with its first collision has no earlier value to compare with.
    collisions = Counter(dict.fromkeys(("consumer", "producer", "stream"), 0))
    collisions.update(collision.kind for collision in snapshot.collisions)
    families.add_reasons(COLLISIONS, {}, collisions)
    families.add_reasons(REJECTED, {}, snapshot.rejected)
    if snapshot.ledger is not None:
        for verdict, n in snapshot.ledger.paths.items():
            families.add(LEDGER, LEDGER.label_set(verdict), n)


def _add_stream(families: _Families, labels: LabelSet, stream: StreamView) -> None:
    families.add(STREAM_INFO, {**labels, "name": label_text(stream.name)}, 1)
    for state in StreamState:
        families.add(STREAM_STATE, {**labels, "state": state.value}, state is stream.state)
    families.add(STREAM_EPOCHS, labels, stream.epochs)
    families.add(STREAM_MEMORY, labels, stream.nbytes)
    families.add(STREAM_SLOTS, labels, stream.nslots)
    families.add(STREAM_ANNOUNCED, labels, stream.announce_age_ns / 1e9)
    families.add(STREAM_ACTIVE, labels, _seconds(stream.activity_age_ns))
    families.add(STREAM_CONSUMERS, labels, len(stream.consumers))
    if stream.producer is not None:
        _add_producer(families, labels, stream.producer)


def _add_producer(families: _Families, labels: LabelSet, producer: ProducerView) -> None:
    families.add(SEQUENCES, labels, 0 if producer.current_seq is None else producer.current_seq + 1)
    families.add(COMMITTED, labels, producer.committed)
    families.add(PUBLISHED, labels, producer.published)
    families.add_reasons(UNPUBLISHED, labels, producer.unpublished)
    families.add_reasons(PRODUCER_DROPPED, labels, producer.dropped)
    families.add(PRODUCER_BYTES, labels, producer.nbytes)
    families.add(PRODUCER_AGE, labels, producer.report_age_ns / 1e9)
    families.add(PRODUCER_QUIET, labels, producer.quiet_ns / 1e9)
    families.add(PRODUCER_WATERMARK, labels, producer.watermark)


def _add_consumer(families: _Families, labels: LabelSet, consumer: ConsumerView) -> None:
    pid = "" if not consumer.pid else str(consumer.pid)
    families.add(CONSUMER_INFO, {**labels, "pid": pid, "label": label_text(consumer.label)}, 1)
    families.add(RECEIVED, labels, consumer.received)
    families.add_reasons(CONSUMER_DROPPED, labels, consumer.dropped)
    families.add(BACKLOG, labels, consumer.backlog)
    if consumer.latency is not None:
        families.add(LATENCY_P50, labels, consumer.latency.p50_ns / 1e9)
        families.add(LATENCY_P99, labels, consumer.latency.p99_ns / 1e9)
        families.add(LATENCY_MAX, labels, consumer.latency.max_ns / 1e9)
    families.add(RATE_LIMITED, labels, consumer.mode == "rate_limited")
    families.add(CONSUMER_AGE, labels, consumer.report_age_ns / 1e9)


def _add_driver(families: _Families, labels: LabelSet, driver: DriverView) -> None:
    families.add(DRIVER_STREAMS, labels, driver.streams)
    families.add(DRIVER_LEASES, labels, driver.leases)
    families.add(DRIVER_MEMORY, labels, driver.nbytes)
    families.add(DRIVER_QUOTA, labels, driver.quota)


def _add_bridges(families: _Families, bridges: Iterable[BridgeView]) -> None:
    mappings = (
        (
            BRIDGE_FRAMES.label_set(
                bridge.instance, mapping.direction, mapping.source_stream_id, mapping.dest_stream_id
            ),
            mapping,
        )
        for bridge in bridges
        for mapping in bridge.mappings
    )
    for labels, mapping in families.first("mappings", families.limits.mappings, mappings):
        families.add(BRIDGE_CONNECTED, labels, mapping.connected)
        families.add(BRIDGE_FRAMES, labels, mapping.frames)
        families.add(BRIDGE_BYTES, labels, mapping.nbytes)
        families.add_reasons(BRIDGE_DROPPED, labels, mapping.dropped)
        families.add(BRIDGE_NETWORK, labels, mapping.network)


def _add_recorder(families: _Families, labels: LabelSet, recorder: RecorderView) -> None:
    for state in (*_RECORDER_STATES, *(() if recorder.state in _RECORDER_STATES else (OTHER,))):
        families.add(RECORDER_STATE, {**labels, "state": state}, state in (recorder.state, OTHER))
    families.add(RECORDER_ROWS, labels, recorder.rows)
    families.add_reasons(RECORDER_GAPS, labels, recorder.gaps)
    families.add(RECORDER_WRITTEN, labels, recorder.bytes_per_s)
    families.add(RECORDER_BACKLOG, labels, recorder.backlog_bytes)
    families.add(RECORDER_FREE, labels, recorder.disk_free_bytes)


def _bounded(counts: Iterable[tuple[_Item, int]], rest: _Item, limit: int) -> dict[_Item, int]:
    """The first counts up to the limit, and the sum of the others under `rest`."""
    bounded: dict[_Item, int] = {}
    for position, (name, n) in enumerate(counts):
        key = name if position < limit else rest
        bounded[key] = bounded.get(key, 0) + n
    return bounded


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
