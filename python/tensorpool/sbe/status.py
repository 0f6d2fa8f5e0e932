"""Status reports of producers and consumers, schema 921: the value of an event with key `status`."""

from __future__ import annotations

from enum import IntEnum

from .message import Message, entry, message

STATUS_KEY = "status"
"""Key of the events that carry a status report. Their tag is `service:<role>:<stream>`."""


class TimeOrigin(IntEnum):
    """The timestamps that a consumer's latencies start at."""

    NOTHING = 0
    PUBLISH = 1
    CAPTURE = 2
    MIXED = 3


@entry
class ReasonCount:
    """The number of frames that were lost for one reason."""

    frames: int
    reason: str = ""


@entry
class SourceStream:
    """A stream that a producer's frames are made from."""

    stream_id: int


@message("status-921")
class ProducerStatus(Message):
    """The ledger of a producer: committed = published + unpublished by reason + deferred."""

    stream_id: int
    producer_id: int
    pid: int
    is_final: bool
    epoch: int
    next_seq: int
    committed: int
    published: int
    deferred: int
    holes: int
    payload_bytes: int
    unpublished: tuple[ReasonCount, ...] = ()
    dropped: tuple[ReasonCount, ...] = ()
    sources: tuple[SourceStream, ...] = ()


@message("status-921")
class ConsumerStatus(Message):
    """The ledger of a consumer, span = received + dropped by reason, and its latency."""

    stream_id: int
    consumer_id: int
    pid: int
    is_final: bool
    latency_since: TimeOrigin
    epoch: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    span: int
    received: int
    polls: int
    latency_excluded: int
    interval_frames: int
    interval_p50_ns: int
    interval_p99_ns: int
    interval_max_ns: int
    total_frames: int
    total_p50_ns: int
    total_p99_ns: int
    total_max_ns: int
    dropped: tuple[ReasonCount, ...] = ()
    outside: tuple[ReasonCount, ...] = ()
    label: str = ""
