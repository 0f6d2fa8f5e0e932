"""Messages of announce streams: repetitions are not decoded, and no bytes can break the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.attributes.metadata import TAGS_KEY
from tensorpool.attributes.tags import DATA_SOURCE_ID_KEY, read_attributes
from tensorpool.discovery.index import DiscoveryIndex
from tensorpool.discovery.provider import IndexUpdater
from tensorpool.discovery.requests import DiscoveryCounters
from tensorpool.monitor.reports import read_stream_id
from tensorpool.sbe import Attribute, ConsumerConfig, DataSourceMeta, Mode
from tensorpool.sbe.message import Message
from tests.unit.discovery.provider_harness import (
    LAB,
    NO_DEADLINE,
    PERIOD_NS,
    SECOND_NS,
    WINDOW_NS,
    ProviderHarness,
    announce,
    meta,
    request,
    source,
)


def test_stream_id_is_read_from_announces_and_metadata_only() -> None:
    assert read_stream_id(announce(7).encode()) == 7
    assert read_stream_id(source(8).encode()) == 8
    assert read_stream_id(meta(9).encode()) == 9
    assert read_stream_id(request().encode()) is None
    assert (
        read_stream_id(ConsumerConfig(stream_id=1, consumer_id=2, use_shm=True, mode=Mode.STREAM).encode())
        is None
    )
    assert read_stream_id(b"") is None


def test_repeated_messages_are_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ProviderHarness()
    harness.add(1, name="a", tags=("t",))

    def never(_: bytes) -> Message:
        raise AssertionError("decoded again")

    monkeypatch.setattr("tensorpool.monitor.reports.decode", never)
    for _ in range(5):
        harness.advance(WINDOW_NS)
        harness.add(1, name="a", tags=("t",), announce_timestamp_ns=harness.now_ns)
    assert harness.found(name="a", tags=("t",)) == [1]


def test_repetition_of_an_expired_stream_counts_as_new() -> None:
    harness = ProviderHarness()
    harness.add(1, name="a", tags=("t",))
    harness.advance(WINDOW_NS + 1)
    assert harness.found() == []
    harness.add(1, name="a", tags=("t",))
    assert harness.found(name="a", tags=("t",)) == [1]


def test_repeated_attributes_apply_to_a_new_epoch() -> None:
    """A restarted driver gives its producer a new epoch; the producer repeats the same attributes."""
    harness = ProviderHarness()
    harness.add(1, epoch=5, name="a", tags=("t",))
    harness.add(1, epoch=6, name="a", tags=("t",))
    assert harness.found(name="a", tags=("t",)) == [1]


def test_streams_of_other_drivers_are_ignored() -> None:
    index = DiscoveryIndex()
    index.set_driver(LAB, announce_period_ns=PERIOD_NS)
    updater = IndexUpdater(index, "lab", DiscoveryCounters(), lambda stream_id: stream_id < 100)
    assert updater.on_message(announce(99).encode(), 0)
    assert not updater.on_message(announce(100).encode(), 0)
    assert [one.stream_id for one in index.entries(0)] == [99]


def test_truncated_and_oversized_messages_are_counted() -> None:
    harness = ProviderHarness()
    for message in (announce(), source(), meta(tags=("t",))):
        data = message.encode()
        assert harness.lab.on_message(data[:-1], harness.now_ns)
    assert harness.counters.rejected["malformed"].value == 3
    huge = DataSourceMeta(
        stream_id=1,
        meta_version=1,
        timestamp_ns=0,
        attributes=(Attribute(key="k", format="f", value=bytes(1 << 17)),),
    )
    assert harness.lab.on_message(huge.encode(), harness.now_ns)
    assert harness.counters.rejected["large"].value == 1
    assert harness.found() == []


@NO_DEADLINE
@given(st.binary(max_size=200))
def test_updater_never_raises_on_any_bytes(data: bytes) -> None:
    harness = ProviderHarness()
    harness.lab.on_message(data, harness.now_ns)
    assert harness.found() == []


@NO_DEADLINE
@given(st.data())
def test_updater_never_raises_on_corrupted_messages(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from([announce(), source(), meta(tags=("a", "b"), data_source_id=3)]))
    message = bytearray(original.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    harness = ProviderHarness()
    harness.lab.on_message(bytes(message), harness.now_ns)
    harness.lab.on_message(bytes(message), harness.now_ns)
    assert len(harness.ask().results) <= 1


_MESSAGES = st.one_of(
    st.builds(announce, st.integers(1, 2), st.integers(1, 3), producer_id=st.integers(0, 1)),
    st.builds(source, st.integers(1, 2), st.integers(1, 3), st.sampled_from(["a", "b"]), st.integers(0, 2)),
    st.builds(meta, st.integers(1, 2), st.sampled_from([("x",), ("y",)]), st.none(), st.integers(0, 2)),
)


@NO_DEADLINE
@given(st.lists(st.tuples(_MESSAGES, st.integers(0, 2 * SECOND_NS)), max_size=50))
def test_skipping_repetitions_makes_no_difference(messages: list[tuple[Any, int]]) -> None:
    quick, plain = ProviderHarness(), ProviderHarness()
    handlers: dict[str, Callable[..., object]] = {
        "ShmPoolAnnounce": plain.index.on_announce,
        "DataSourceAnnounce": plain.index.on_source,
        "DataSourceMeta": plain.index.on_meta,
    }
    now = quick.now_ns
    for message, step in messages:
        now += step
        quick.lab.on_message(message.encode(), now)
        handlers[type(message).__name__]("lab", message, now)
        # A repeated attribute extends the life of labels, so that these may differ.
        left, right = (
            {(one.stream_id, one.epoch, one.producer_id) for one in harness.index.entries(now)}
            for harness in (quick, plain)
        )
        assert left == right


# --- attributes


def attributes(**values: bytes) -> list[Attribute]:
    keys = {"tags": TAGS_KEY, "source": DATA_SOURCE_ID_KEY}
    return [
        Attribute(key=keys[name], format="application/json", value=value) for name, value in values.items()
    ]


@pytest.mark.parametrize(
    ("value", "tags"),
    [
        (b'["a", "B", "a"]', ("a", "B")),
        (b'["", 1, null, "b", ["c"]]', ("b",)),
        ('["é"]'.encode(), ("\udcc3\udca9",)),
        (b'["\\ud800"]', ()),
        (b'"a"', ()),
        (b"{}", ()),
        (b"not json", ()),
        (b"[" * 100_000, ()),
        (b'["' + b"x" * 513 + b'", "y"]', ("y",)),
    ],
)
def test_valid_tags_are_read_from_any_attribute(value: bytes, tags: tuple[str, ...]) -> None:
    assert read_attributes(attributes(tags=value)).tags == tags


def test_tags_beyond_the_limits_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProviderHarness()
    harness.add(10_000)
    harness.lab.on_message(source().encode(), harness.now_ns)
    listed = [*map(str, range(100)), "x" * 513, "y" * 600, "", 7, "0"]
    described = meta()
    described.attributes = tuple(attributes(tags=json.dumps(listed).encode()))
    for _ in range(3):
        # A repetition is neither decoded nor counted again.
        harness.lab.on_message(described.encode(), harness.now_ns)
    (result,) = harness.ask(tags=("0", "63")).results
    assert [item.tag for item in result.tags] == [str(n) for n in range(64)]
    assert harness.found(tags=("64",)) == []
    ignored = {reason: counted.value for reason, counted in harness.counters.ignored_tags.items()}
    assert ignored == {"long": 2, "many": 36, "invalid": 2}
    (warning,) = [record.getMessage() for record in caplog.records if "tags" in record.getMessage()]
    assert warning == (
        "stream 10000 of driver 'lab': 2 (invalid), 2 (long), 36 (many) of its tags cannot be searched for; "
        "a stream has up to 64 tags of up to 512 bytes"
    )


def test_warnings_about_tags_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProviderHarness()
    for number in range(200):
        described = meta()
        described.attributes = tuple(attributes(tags=f'["{number}", 1]'.encode()))
        harness.lab.on_message(described.encode(), harness.now_ns)
    assert harness.counters.ignored_tags["invalid"].value == 200
    assert len([record for record in caplog.records if "tags" in record.getMessage()]) == 10


@pytest.mark.requirement("discovery-5.0-1")
@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"77", 77),
        (b'"18446744073709551614"', (1 << 64) - 2),
        (b"0", 0),
        (b"18446744073709551615", None),
        (b"-1", None),
        (b"1.5", None),
        (b"true", None),
        (b'"7x"', None),
        (b"9" * 10_000, None),
    ],
)
def test_data_source_id_is_a_64_bit_number_but_not_null(value: bytes, number: int | None) -> None:
    assert read_attributes(attributes(source=value)).data_source_id == number


def test_cached_messages_are_bounded_in_number_and_in_bytes() -> None:
    harness = ProviderHarness()
    reader = harness.lab._reader
    for stream_id in range(1, 5_000):
        # The streams are never announced, so that none of them is in the index.
        harness.lab.on_message(source(stream_id).encode(), harness.now_ns)
        assert reader.cached_messages <= 4 * 1024
    large = "x" * 60_000
    for stream_id in range(1, 400):
        harness.lab.on_message(announce(stream_id, header_region_uri=large).encode(), harness.now_ns)
        assert reader.cached_bytes <= 16 << 20
    # Repetitions only renew the streams, whether they are cached or not.
    generation = harness.index.generation
    for stream_id in range(1, 400):
        harness.lab.on_message(announce(stream_id, header_region_uri=large).encode(), harness.now_ns)
    assert harness.index.generation == generation
