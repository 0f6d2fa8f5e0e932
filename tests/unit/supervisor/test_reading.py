"""From bytes to events: what was said before is not read again, and no bytes make it raise or pile up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import sbe
from tensorpool.monitor.reports import (
    ConsumerQos,
    ConsumerStatus,
    LatencyStatus,
    MessageReader,
    ProducerQos,
    ProducerStatus,
    RejectedMessage,
    RepeatedAnnounce,
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
from tests.unit.supervisor.test_picture import announce

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
    """What one message comes to."""
    found = list(reader.heard([message]))
    assert len(found) <= 1
    return found[0] if found else None


def read_status(message: bytes) -> list[object]:
    """The events of one message of the status stream; empty if it is not a status report."""
    events = MessageReader().told([message])
    return [] if events == [message] else events


def test_reports_are_read_by_their_offsets() -> None:
    reader = MessageReader()
    assert read(reader, qos().encode()) == ConsumerQos(5, 7, 3, 41, 2, 1, True)
    assert read(reader, qos(last_seq_seen=NULL, mode=Mode.STREAM).encode()) == (
        ConsumerQos(5, 7, 3, None, 2, 1, False)
    )
    told = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=50)
    assert read(reader, told.encode()) == ProducerQos(5, 9, 3, 50)
    nothing = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=NULL)
    assert read(reader, nothing.encode()) == ProducerQos(5, 9, 3, None)
    # A report says something each time, also if it is the same.
    assert read(reader, nothing.encode()) == ProducerQos(5, 9, 3, None)


@pytest.mark.parametrize(
    "message", [qos().encode(), QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=50).encode()]
)
def test_a_report_that_is_cut_or_bent_is_malformed(message: bytes) -> None:
    reader = MessageReader()
    for end in range(len(message)):
        assert read(reader, message[:end]) == RejectedMessage("malformed")
    assert read(reader, b"\x01\x00" + message[2:]) == RejectedMessage("malformed")
    bent = qos().encode()
    assert read(reader, bent[:-1] + b"\x09") == RejectedMessage("malformed")


def test_what_was_said_before_is_not_read_again_until_it_is_forgotten() -> None:
    reader = MessageReader()
    first, other = hello(7).encode(), hello(8).encode()
    assert read(reader, first) == hello(7)
    assert read(reader, first) is None
    assert read(reader, other) == hello(8)
    assert read(reader, hello(7, max_rate_hz=5).encode()) == hello(7, max_rate_hz=5)
    assert read(reader, first) == hello(7)
    reader.forget()
    assert read(reader, first) == hello(7)
    # What happens once is told each time.
    shutdown = ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL)
    assert read(reader, shutdown.encode()) == shutdown
    assert read(reader, shutdown.encode()) == shutdown


def test_an_announce_that_differs_in_its_time_only_is_the_same_again() -> None:
    reader = MessageReader()
    said = announce()
    later = announce().__class__(**{**_fields(said), "announce_timestamp_ns": 99})
    assert read(reader, said.encode()) == said
    assert read(reader, later.encode()) == RepeatedAnnounce(5, 1, said)
    assert read(reader, announce(epoch=2).encode()) == announce(epoch=2)
    assert read(reader, announce(stream_id=6).encode()) == announce(stream_id=6)
    assert read(reader, said.encode()[:20]) == RejectedMessage("malformed")


def test_strangers_cannot_fill_its_memory() -> None:
    reader = MessageReader(most_bytes=100_000)
    for number in range(200):
        attribute = Attribute(key="k", format="f", value=bytes(5000))
        found = DataSourceMeta(stream_id=number, meta_version=1, timestamp_ns=0, attributes=(attribute,))
        assert read(reader, found.encode()) == found
        assert 0 < reader._hearing.remembered_bytes <= 100_000
    large = Attribute(key="k", format="f", value=bytes(70_000))
    too_large = DataSourceMeta(stream_id=1, meta_version=1, timestamp_ns=0, attributes=(large,))
    assert read(reader, too_large.encode()) == RejectedMessage("large")


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(noise: bytes) -> None:
    reader = MessageReader()
    read(reader, noise)
    read_status_event(noise)
    assert read_status(noise) == []
    for message in (announce().encode(), hello(7).encode(), qos().encode()):
        # Noise behind a header that is known.
        read(reader, message[:8] + noise)
        read_status_event(message[:8] + noise)


def test_a_word_is_read_whole_or_not_at_all() -> None:
    message = Event("service:camera", "exposure", "7 ü", 11).encode()
    assert read_status_event(message) == (11, "service:camera", "exposure", "7 ü")
    for end in range(len(message)):
        assert read_status_event(message[:end]) is None
    assert read_status_event(message.replace("ü".encode(), b"\xff\xff")) is None
    assert read_status_event(hello(7).encode()) is None


def _fields(message: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {one.name: getattr(message, one.name) for one in fields(message)}


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
    lambda found: tuple(sbe.SourceStream(stream_id=one) for one in sorted(found))
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
        ProducerStatus(
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
    assert ledger == ConsumerStatus(
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
        looks=c.polls,
        is_final=c.is_final,
    )
    assert type(ledger) is ConsumerStatus
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
