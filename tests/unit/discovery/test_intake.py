"""Bytes from announce streams: what is the same is not read again, and nothing can break the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.attributes.metadata import TAGS_KEY
from tensorpool.attributes.tags import DATA_SOURCE_ID_KEY, read_attributes
from tensorpool.discovery import AnnounceReader, DiscoveryCounters, DiscoveryIndex, stream_of
from tensorpool.sbe import Attribute, ConsumerConfig, DataSourceMeta, Mode
from tensorpool.sbe.message import Message
from tests.unit.discovery.world import (
    IN_ITS_OWN_TIME,
    LAB,
    PERIOD_NS,
    SECOND_NS,
    WINDOW_NS,
    World,
    announce,
    meta,
    question,
    source,
)


def test_only_announces_and_metadata_are_about_streams() -> None:
    assert stream_of(announce(7).encode()) == 7
    assert stream_of(source(8).encode()) == 8
    assert stream_of(meta(9).encode()) == 9
    assert stream_of(question().encode()) is None
    assert (
        stream_of(ConsumerConfig(stream_id=1, consumer_id=2, use_shm=True, mode=Mode.STREAM).encode()) is None
    )
    assert stream_of(b"") is None


def test_a_repeated_announce_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add(1, name="a", tags=("t",))

    def never(_: bytes) -> Message:
        raise AssertionError("read again")

    monkeypatch.setattr("tensorpool.discovery.intake.decode", never)
    for _ in range(5):
        world.pass_time(WINDOW_NS)
        world.add(1, name="a", tags=("t",), announce_timestamp_ns=world.now_ns)
    assert world.found(name="a", tags=("t",)) == [1]


def test_what_is_the_same_as_something_that_was_forgotten_is_read_again() -> None:
    world = World()
    world.add(1, name="a", tags=("t",))
    world.pass_time(WINDOW_NS + 1)
    assert world.found() == []
    world.add(1, name="a", tags=("t",))
    assert world.found(name="a", tags=("t",)) == [1]


def test_the_same_attributes_under_a_new_epoch_are_read_again() -> None:
    """A driver that was restarted gives its producer a new epoch; what the producer says stays the same."""
    world = World()
    world.add(1, epoch=5, name="a", tags=("t",))
    world.add(1, epoch=6, name="a", tags=("t",))
    assert world.found(name="a", tags=("t",)) == [1]


def test_streams_that_are_not_the_driver_s_are_left_alone() -> None:
    index = DiscoveryIndex()
    index.set_driver(LAB, announce_period_ns=PERIOD_NS)
    intake = AnnounceReader(index, "lab", DiscoveryCounters(), lambda stream_id: stream_id < 100)
    assert intake.hear(announce(99).encode(), 0)
    assert not intake.hear(announce(100).encode(), 0)
    assert [one.stream_id for one in index.entries(0)] == [99]


def test_what_is_cut_or_too_large_is_counted_and_passed_over() -> None:
    world = World()
    for message in (announce(), source(), meta(tags=("t",))):
        data = message.encode()
        assert world.lab.hear(data[:-1], world.now_ns)
    assert world.counters.unheard["malformed"].value == 3
    huge = DataSourceMeta(
        stream_id=1,
        meta_version=1,
        timestamp_ns=0,
        attributes=(Attribute(key="k", format="f", value=bytes(1 << 17)),),
    )
    assert world.lab.hear(huge.encode(), world.now_ns)
    assert world.counters.unheard["large"].value == 1
    assert world.found() == []


@IN_ITS_OWN_TIME
@given(st.binary(max_size=200))
def test_garbage_never_raises(data: bytes) -> None:
    world = World()
    world.lab.hear(data, world.now_ns)
    assert world.found() == []


@IN_ITS_OWN_TIME
@given(st.data())
def test_broken_messages_never_raise(data: st.DataObject) -> None:
    made = data.draw(st.sampled_from([announce(), source(), meta(tags=("a", "b"), data_source_id=3)]))
    message = bytearray(made.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    world = World()
    world.lab.hear(bytes(message), world.now_ns)
    world.lab.hear(bytes(message), world.now_ns)
    assert len(world.ask().results) <= 1


_SAID = st.one_of(
    st.builds(announce, st.integers(1, 2), st.integers(1, 3), producer_id=st.integers(0, 1)),
    st.builds(source, st.integers(1, 2), st.integers(1, 3), st.sampled_from(["a", "b"]), st.integers(0, 2)),
    st.builds(meta, st.integers(1, 2), st.sampled_from([("x",), ("y",)]), st.none(), st.integers(0, 2)),
)


@IN_ITS_OWN_TIME
@given(st.lists(st.tuples(_SAID, st.integers(0, 2 * SECOND_NS)), max_size=50))
def test_not_reading_again_what_is_the_same_makes_no_difference(said: list[tuple[Any, int]]) -> None:
    quick, plain = World(), World()
    handlers: dict[str, Callable[..., object]] = {
        "ShmPoolAnnounce": plain.index.on_announce,
        "DataSourceAnnounce": plain.index.on_source,
        "DataSourceMeta": plain.index.on_meta,
    }
    now = quick.now_ns
    for message, step in said:
        now += step
        quick.lab.hear(message.encode(), now)
        handlers[type(message).__name__]("lab", message, now)
        # A producer's own words may be older by what a repeated attribute adds to their life.
        left, right = (
            {(one.stream_id, one.epoch, one.producer_id) for one in world.index.entries(now)}
            for world in (quick, plain)
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
def test_tags_are_taken_from_whatever_a_source_wrote(value: bytes, tags: tuple[str, ...]) -> None:
    assert read_attributes(attributes(tags=value)) == (tags, None)


def test_a_stream_has_at_most_64_tags() -> None:
    many = "[" + ",".join(f'"{n}"' for n in range(100)) + "]"
    tags, _ = read_attributes(attributes(tags=many.encode()))
    assert tags == tuple(str(n) for n in range(64))


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
def test_a_data_source_id_is_a_number_that_is_not_the_wire_s_null(value: bytes, number: int | None) -> None:
    assert read_attributes(attributes(source=value)) == ((), number)


def test_what_is_remembered_is_bounded_in_number_and_in_bytes() -> None:
    world = World()
    for stream_id in range(1, 5_000):
        # Never announced, so that the index has none of them.
        world.lab.hear(source(stream_id).encode(), world.now_ns)
    assert len(world.lab._last) <= 4 * 1024
    large = "x" * 60_000
    for stream_id in range(1, 400):
        world.lab.hear(announce(stream_id, header_region_uri=large).encode(), world.now_ns)
        assert world.lab._kept_bytes <= 16 << 20
    assert world.lab._kept_bytes == sum(map(len, world.lab._last.values()))
    # The same again, forgotten or not, only renews them.
    generation = world.index.generation
    for stream_id in range(1, 400):
        world.lab.hear(announce(stream_id, header_region_uri=large).encode(), world.now_ns)
    assert world.index.generation == generation
