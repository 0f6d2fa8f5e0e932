"""From bytes to events: what was said before is not read again, and no bytes make it raise or pile up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.reports import (
    ConsumerQos,
    MessageReader,
    ProducerQos,
    RejectedMessage,
    RepeatedAnnounce,
    read_status,
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
    """What one message comes to."""
    found = list(reader.heard([message]))
    assert len(found) <= 1
    return found[0] if found else None


def read_quickly(message: bytes) -> object | None:
    [found] = MessageReader().told([message])
    return None if found is message else found


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
    assert read_quickly(noise) is None
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
figures = dict.fromkeys(("count", "p50_ns", "p99_ns", "max_ns"), numbers)
latencies = st.fixed_dictionaries(
    {
        "stream_id": numbers,
        "consumer_id": numbers,
        "since": st.sampled_from(["publish", "capture", "mixed", "ü"]),
        **figures,
        "left_out": numbers,
        "received": numbers,
        "dropped": numbers,
        "life": st.fixed_dictionaries(figures),
    }
)


@pytest.mark.parametrize(
    ("kind", "words"), [("consumer", consumers), ("producer", producers), ("latency", latencies)]
)
def test_the_quick_way_reads_the_same_as_the_thorough_one(kind: str, words: Any) -> None:
    read = 0

    @given(words, st.sampled_from([",", ", "]))
    def check(said: dict[str, Any], comma: str) -> None:
        nonlocal read
        text = json.dumps(said, separators=(comma, ":"), ensure_ascii=False)
        role, key = ("consumer", "latency") if kind == "latency" else (kind, "account")
        quick = read_quickly(Event(f"service:{role}:5", key, text).encode())
        thorough = read_status(kind, text)
        assert thorough is not None
        if quick is not None:
            read += 1
            assert quick == thorough
            assert type(quick) is type(thorough)
        # Of another role, or under another key, it is nothing.
        assert read_quickly(Event(f"service:camera:{role}", key, text).encode()) is None
        assert read_quickly(Event(f"service:{role}:5", "other", text).encode()) is None

    check()
    # It does not leave everything to the other.
    assert read > 5
