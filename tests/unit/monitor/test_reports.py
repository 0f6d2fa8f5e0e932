"""Readers: repeated messages are not decoded again, and no bytes raise an error or fill the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import sbe
from tensorpool.monitor.reports import (
    AnnounceReader,
    ConsumerQos,
    ConsumerReport,
    LatencyStatus,
    MessageReader,
    ProducerQos,
    ProducerReport,
    RejectedMessage,
    RepeatedAnnounce,
    RepeatedMetadata,
    read_status_event,
)
from tensorpool.sbe.driver import ShmDriverShutdown, ShutdownReason
from tensorpool.sbe.wire import (
    Attribute,
    ConsumerHello,
    DataSourceMeta,
    Mode,
    QosConsumer,
    QosProducer,
)
from tensorpool.service import Event
from tests.unit.monitor.test_model import announce, meta, source

NULL = (1 << 64) - 1
numbers = st.integers(0, NULL)


def hello(consumer_id: int, **more: Any) -> ConsumerHello:
    fields: dict[str, Any] = {
        "stream_id": 5,
        "consumer_id": consumer_id,
        "supports_shm": True,
        "supports_progress": False,
        "mode": Mode.STREAM,
        "expected_layout_version": 1,
    }
    return ConsumerHello(**{**fields, **more})


def qos(**more: Any) -> QosConsumer:
    fields: dict[str, Any] = {
        "stream_id": 5,
        "consumer_id": 7,
        "epoch": 3,
        "last_seq_seen": 41,
        "drops_gap": 2,
        "drops_late": 1,
        "mode": Mode.RATE_LIMITED,
    }
    return QosConsumer(**{**fields, **more})


def read(reader: MessageReader, message: bytes) -> object | None:
    """The event of a message."""
    events = list(reader.read_wire([message]))
    assert len(events) <= 1
    return events[0] if events else None


def read_status(message: bytes) -> list[object]:
    """The events of one message of the status stream; empty if it is not a status report."""
    events = MessageReader().read_status([message])
    return [] if events == [message] else events


def test_qos_reports_are_read_natively_every_time() -> None:
    reader = MessageReader()
    assert read(reader, qos().encode()) == ConsumerQos(5, 7, 3, 41, 2, 1, True)
    assert read(reader, qos(last_seq_seen=NULL, mode=Mode.STREAM).encode()) == (
        ConsumerQos(5, 7, 3, None, 2, 1, False)
    )
    # Before its first frame a consumer reports 0.
    assert read(reader, qos(last_seq_seen=0).encode()) == ConsumerQos(5, 7, 3, None, 2, 1, True)
    producer_qos = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=50)
    assert read(reader, producer_qos.encode()) == ProducerQos(5, 9, 3, 50, None)
    with_watermark = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=0, watermark=4)
    assert read(reader, with_watermark.encode()) == ProducerQos(5, 9, 3, 0, 4)
    no_frames = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=NULL)
    assert read(reader, no_frames.encode()) == ProducerQos(5, 9, 3, None)
    # A repeated report is an event, too.
    assert read(reader, no_frames.encode()) == ProducerQos(5, 9, 3, None)


@pytest.mark.parametrize(
    "message", [qos().encode(), QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=50).encode()]
)
def test_truncated_or_changed_qos_report_is_malformed(message: bytes) -> None:
    reader = MessageReader()
    for end in range(len(message)):
        assert read(reader, message[:end]) == RejectedMessage("malformed")
    assert read(reader, b"\x01\x00" + message[2:]) == RejectedMessage("malformed")
    changed = qos().encode()
    assert read(reader, changed[:-1] + b"\x09") == RejectedMessage("malformed")


def test_repeated_hello_is_no_event_until_the_cache_is_cleared() -> None:
    reader = MessageReader()
    first, other = hello(7).encode(), hello(8).encode()
    assert read(reader, first) == hello(7)
    assert read(reader, first) is None
    assert read(reader, other) == hello(8)
    assert read(reader, hello(7, max_rate_hz=5).encode()) == hello(7, max_rate_hz=5)
    assert read(reader, first) == hello(7)
    reader.clear()
    assert read(reader, first) == hello(7)
    # A shutdown is not cached: every one is an event.
    shutdown = ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL)
    assert read(reader, shutdown.encode()) == shutdown
    assert read(reader, shutdown.encode()) == shutdown


def test_announce_that_differs_in_its_time_only_is_repeated() -> None:
    reader = MessageReader()
    first = announce()
    later = replace(first, announce_timestamp_ns=99)
    assert read(reader, first.encode()) == first
    assert read(reader, later.encode()) == RepeatedAnnounce(5, 1, first)
    assert read(reader, announce(epoch=2).encode()) == announce(epoch=2)
    assert read(reader, announce(stream_id=6).encode()) == announce(stream_id=6)
    assert read(reader, first.encode()[:20]) == RejectedMessage("malformed")


@pytest.mark.parametrize("version", [0, 1])
def test_repeated_metadata_is_an_event_that_decodes_to_the_message(version: int) -> None:
    reader = MessageReader()
    for message in (source("camera", version=version), meta("lab", version=version)):
        assert read(reader, message.encode()) == message
        event = read(reader, message.encode())
        assert isinstance(event, RepeatedMetadata)
        is_meta = isinstance(message, DataSourceMeta)
        assert (event.stream_id, event.by_driver, event.is_meta) == (5, version == 0, is_meta)
        assert event.decode() == message


def test_announce_reader_separates_driver_and_producer_metadata() -> None:
    """Both senders use the ids of the producer: neither message may replace the other in the cache."""
    reader = AnnounceReader(lambda stream_id: stream_id == 5)
    messages = [source("by the driver", version=0), source("camera", version=1)]
    for message in messages:
        assert reader.read(message.encode()) == message
    for message in messages:
        assert isinstance(reader.read(message.encode()), RepeatedMetadata)
    assert reader.read(announce(stream_id=6).encode()) is None
    assert reader.read(qos().encode()) is None
    assert reader.cached_messages == 2


def test_invented_ids_do_not_fill_the_cache() -> None:
    reader = MessageReader(max_bytes=100_000)
    for number in range(200):
        attribute = Attribute(key="k", format="f", value=bytes(5000))
        large_meta = DataSourceMeta(stream_id=number, meta_version=1, timestamp_ns=0, attributes=(attribute,))
        assert read(reader, large_meta.encode()) == large_meta
        assert 0 < reader.cached_bytes <= 100_000
    few = MessageReader(max_messages=10)
    for consumer_id in range(1, 100):
        read(few, hello(consumer_id).encode())
        assert few.cached_messages <= 10
    large = Attribute(key="k", format="f", value=bytes(70_000))
    too_large = DataSourceMeta(stream_id=1, meta_version=1, timestamp_ns=0, attributes=(large,))
    assert read(reader, too_large.encode()) == RejectedMessage("large")


@given(st.binary(max_size=300))
def test_readers_never_raise_on_any_bytes(noise: bytes) -> None:
    reader = MessageReader()
    read(reader, noise)
    read_status_event(noise)
    assert read_status(noise) == []
    for message in (announce().encode(), hello(7).encode(), qos().encode()):
        # Noise behind a known message header.
        read(reader, message[:8] + noise)
        read_status_event(message[:8] + noise)


def test_truncated_status_event_is_not_read() -> None:
    message = Event("service:camera", "exposure", "7 ü", 11).encode()
    assert read_status_event(message) == (11, "service:camera", "exposure", "7 ü")
    for end in range(len(message)):
        assert read_status_event(message[:end]) is None
    assert read_status_event(message.replace("ü".encode(), b"\xff\xff")) is None
    assert read_status_event(hello(7).encode()) is None


ids = st.integers(0, (1 << 32) - 1)
counters = st.integers(0, NULL - 1)
counts = st.lists(
    st.builds(
        sbe.ReasonCount,
        frames=st.integers(1, NULL - 1),
        reason=st.sampled_from(["gap", "late", "rate_limited", "odd\\", ""]),
    ),
    unique_by=lambda entry: entry.reason,
).map(tuple)
sources = st.lists(ids, unique=True, max_size=3).map(
    lambda stream_ids: tuple(sbe.SourceStream(stream_id=stream_id) for stream_id in sorted(stream_ids))
)
producers = st.builds(
    sbe.ProducerStatus,
    **dict.fromkeys(("stream_id", "producer_id", "pid"), ids),
    **dict.fromkeys(("epoch", "next_seq", "committed", "published"), counters),
    **dict.fromkeys(("deferred", "holes", "payload_bytes"), counters),
    is_final=st.booleans(),
    unpublished=counts,
    dropped=counts,
    sources=sources,
)
INTERVAL = ("interval_frames", "interval_p50_ns", "interval_p99_ns", "interval_max_ns")
TOTAL = ("total_frames", "total_p50_ns", "total_p99_ns", "total_max_ns")
consumers = st.builds(
    sbe.ConsumerStatus,
    **dict.fromkeys(("stream_id", "consumer_id", "pid"), ids),
    **dict.fromkeys(("epoch", "first_seq", "last_seq"), st.none() | counters),
    **dict.fromkeys(("span", "received", "polls", "latency_excluded", *INTERVAL, *TOTAL), counters),
    is_final=st.booleans(),
    latency_since=st.sampled_from(sbe.TimeOrigin),
    dropped=counts,
    outside=counts,
)


def by_reason(entries: tuple[sbe.ReasonCount, ...]) -> dict[str, int]:
    return {entry.reason: entry.frames for entry in entries}


def event(role: str, value: Any, key: str = sbe.STATUS_KEY) -> bytes:
    return Event(f"service:{role}:5", key, value).encode()


@given(producers)
def test_producer_status_is_read_as_python_encodes_it(p: sbe.ProducerStatus) -> None:
    assert read_status(event("producer", p.encode())) == [
        ProducerReport(
            stream_id=p.stream_id,
            producer_id=p.producer_id,
            pid=p.pid,
            epoch=p.epoch,
            next_seq=p.next_seq,
            committed=p.committed,
            published=p.published,
            unpublished=by_reason(p.unpublished),
            deferred=p.deferred,
            dropped=by_reason(p.dropped),
            holes=p.holes,
            nbytes=p.payload_bytes,
            sources=tuple(source.stream_id for source in p.sources),
            is_final=p.is_final,
        )
    ]


@given(consumers)
def test_consumer_status_is_read_as_python_encodes_it(c: sbe.ConsumerStatus) -> None:
    ledger, *latencies = read_status(event("consumer", c.encode()))
    assert ledger == ConsumerReport(
        stream_id=c.stream_id,
        consumer_id=c.consumer_id,
        pid=c.pid,
        epoch=c.epoch,
        first_seq=c.first_seq,
        last_seq=c.last_seq,
        span=c.span,
        received=c.received,
        dropped=by_reason(c.dropped),
        outside=by_reason(c.outside),
        polls=c.polls,
        is_final=c.is_final,
    )
    assert type(ledger) is ConsumerReport
    has_latency = c.interval_frames and not c.is_final and c.latency_since is not sbe.TimeOrigin.NOTHING
    figures = (c.interval_frames, c.interval_p50_ns, c.interval_p99_ns, c.interval_max_ns)
    latency = LatencyStatus(c.stream_id, c.consumer_id, *figures, c.latency_since.name.lower())
    assert latencies == ([latency] if has_latency else [])


@given(consumers, st.binary(max_size=300))
def test_malformed_status_is_rejected_and_never_raises(c: sbe.ConsumerStatus, noise: bytes) -> None:
    malformed = [RejectedMessage("malformed")]
    value = c.encode()
    for end in range(0, len(value), 7):
        assert read_status(event("consumer", value[:end])) == malformed
        assert read_status(event("consumer", value[:end] + noise)) != []
    assert read_status(event("producer", value)) == malformed
    # Other messages: of another service, under another key, or with a value of another format.
    assert read_status(event("camera", value)) == []
    assert read_status(event("consumer", value, "other")) == []
    assert read_status(event("consumer", "text")) == []
