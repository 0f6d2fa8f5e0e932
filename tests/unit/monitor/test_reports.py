"""Readers: repeated messages are not decoded again, and no bytes raise an error or fill the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.reports import (
    AnnounceReader,
    ConsumerQos,
    MessageReader,
    ProducerQos,
    RejectedMessage,
    RepeatedAnnounce,
    RepeatedMetadata,
    StatusKind,
    parse_status,
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
counts = st.dictionaries(st.sampled_from(["gap", "late", "rate_limited", "odd\\", "ü", ""]), numbers)


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


def read_natively(message: bytes) -> object | None:
    [event] = MessageReader().read_status([message])
    return None if event is message else event


def test_qos_reports_are_read_natively_every_time() -> None:
    reader = MessageReader()
    assert read(reader, qos().encode()) == ConsumerQos(5, 7, 3, 41, 2, 1, True)
    assert read(reader, qos(last_seq_seen=NULL, mode=Mode.STREAM).encode()) == (
        ConsumerQos(5, 7, 3, None, 2, 1, False)
    )
    producer_qos = QosProducer(stream_id=5, producer_id=9, epoch=3, current_seq=50)
    assert read(reader, producer_qos.encode()) == ProducerQos(5, 9, 3, 50)
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
    assert read_natively(noise) is None
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


consumers = st.fixed_dictionaries(
    {
        "stream_id": numbers,
        "consumer_id": numbers,
        "pid": numbers,
        "epoch": st.none() | numbers.map(str),
        "first_seq": st.none() | numbers.map(str),
        "last_seq": st.none() | numbers.map(str),
        "span": numbers,
        "received": numbers,
        "dropped": counts,
        "outside": counts,
        "looks": numbers,
        "final": st.booleans(),
    }
)
producers = st.fixed_dictionaries(
    {
        "stream_id": numbers,
        "producer_id": numbers,
        "pid": numbers,
        "epoch": numbers.map(str),
        "next_seq": numbers.map(str),
        "committed": numbers,
        "published": numbers,
        "unpublished": counts,
        "deferred": numbers,
        "dropped": counts,
        "holes": numbers,
        "bytes": numbers.map(str),
        "sources": st.lists(numbers, max_size=3),
        "final": st.booleans(),
    }
)
summary = dict.fromkeys(("count", "p50_ns", "p99_ns", "max_ns"), numbers)
latencies = st.fixed_dictionaries(
    {
        "stream_id": numbers,
        "consumer_id": numbers,
        "since": st.sampled_from(["publish", "capture", "mixed", "ü"]),
        **summary,
        "left_out": numbers,
        "received": numbers,
        "dropped": numbers,
        "life": st.fixed_dictionaries(summary),
    }
)


@pytest.mark.parametrize(
    ("kind", "reports"), [("consumer", consumers), ("producer", producers), ("latency", latencies)]
)
def test_native_reader_and_json_parser_agree(kind: StatusKind, reports: Any) -> None:
    read_count = 0

    @given(reports, st.sampled_from([",", ", "]))
    def check(report: dict[str, Any], comma: str) -> None:
        nonlocal read_count
        text = json.dumps(report, separators=(comma, ":"), ensure_ascii=False)
        role, key = ("consumer", "latency") if kind == "latency" else (kind, "account")
        native = read_natively(Event(f"service:{role}:5", key, text).encode())
        parsed = parse_status(kind, text)
        assert parsed is not None
        if native is not None:
            read_count += 1
            assert native == parsed
            assert type(native) is type(parsed)
        # With another role or key it is no status report.
        assert read_natively(Event(f"service:camera:{role}", key, text).encode()) is None
        assert read_natively(Event(f"service:{role}:5", "other", text).encode()) is None

    check()
    # The native reader does not leave everything to the parser.
    assert read_count > 5
