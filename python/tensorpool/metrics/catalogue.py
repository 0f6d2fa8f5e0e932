"""Every metric that there is: the reference page and the collector are made from this list.

Names as Prometheus has them: a unit at the end, `_total` for what only grows, base units (seconds, bytes).
What can be computed is not here: a rate is `rate()` of a counter.
"""

from __future__ import annotations

from typing import Final

from .exposition import Metric

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
    "tensorpool_messages_unheard_total",
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
