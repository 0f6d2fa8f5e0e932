"""The index: what is announced is there, for as long as it is announced, and not a moment longer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery import DiscoveryIndex, DriverIdentity
from tensorpool.discovery.index import IndexResult
from tests.unit.discovery.world import (
    IN_ITS_OWN_TIME,
    LAB,
    PERIOD_NS,
    ROOF,
    SECOND_NS,
    WINDOW_NS,
    World,
    announce,
    meta,
    source,
)


@pytest.mark.requirement("discovery-6.2-1", "discovery-6.2-2")
def test_an_entry_is_there_to_the_last_nanosecond_of_its_window_and_not_after() -> None:
    world = World()
    world.add(10_000)
    world.pass_time(WINDOW_NS)
    assert world.found() == [10_000]
    world.pass_time(1)
    assert world.found() == []
    assert len(world.index) == 0


@pytest.mark.requirement("discovery-6.2-1")
def test_each_announce_begins_the_window_anew_by_the_time_of_its_receipt() -> None:
    """Whatever time stamp it carries: another host's clock means nothing here."""
    world = World()
    for stamp in (1, 1 << 62, 0, 77):
        world.lab.hear(announce(announce_timestamp_ns=stamp).encode(), world.now_ns)
        world.pass_time(WINDOW_NS)
    assert world.found() == [10_000]
    world.pass_time(1)
    assert world.found() == []


def test_each_driver_has_the_window_of_its_own_announce_period() -> None:
    world = World()
    world.index.set_driver(ROOF, announce_period_ns=10 * PERIOD_NS)
    world.add(1, at="lab")
    world.add(2, at="roof")
    world.pass_time(WINDOW_NS + 1)
    assert world.found() == [2]
    world.pass_time(27 * SECOND_NS)
    assert world.found() == []


@pytest.mark.requirement("discovery-6.3-1")
def test_the_newest_epoch_replaces_what_was() -> None:
    world = World()
    world.add(epoch=5)
    world.add(epoch=6, nslots=16)
    (result,) = world.ask().results
    assert (result.epoch, result.header_nslots) == (6, 16)


@pytest.mark.requirement("discovery-6.3-2")
def test_an_epoch_that_falls_is_passed_over_and_does_not_keep_the_newer_one_alive() -> None:
    world = World()
    world.add(epoch=6)
    world.pass_time(WINDOW_NS)
    world.add(epoch=5)
    assert [one.epoch for one in world.ask().results] == [6]
    assert world.counters.unheard["regressed"].value == 1
    world.pass_time(1)
    assert world.found() == []
    # Nothing newer is alive, so that is what there is.
    world.add(epoch=5)
    assert [one.epoch for one in world.ask().results] == [5]


@pytest.mark.requirement("discovery-6.3-2")
def test_a_driver_that_moved_has_restarted_and_may_have_any_epoch() -> None:
    world = World()
    world.add(epoch=6)
    world.index.set_driver(dataclasses.replace(LAB, control_stream_id=1010), announce_period_ns=PERIOD_NS)
    assert world.found() == []
    world.add(epoch=2)
    (result,) = world.ask().results
    assert (result.epoch, result.driver_control_stream_id) == (2, 1010)


def test_a_driver_that_is_told_of_again_keeps_its_streams_and_one_that_is_dropped_loses_them() -> None:
    world = World()
    world.add(1, at="lab")
    world.add(2, at="roof")
    world.index.set_driver(LAB, announce_period_ns=PERIOD_NS)
    assert world.found() == [1, 2]
    world.index.drop_driver("lab")
    assert world.found() == [2]
    assert [one.instance_id for one in world.index.drivers] == ["roof"]


@pytest.mark.requirement("discovery-6.4-1")
def test_an_entry_is_made_of_announce_metadata_and_the_configured_driver() -> None:
    world = World()
    world.add(10_000, name="camera-1", tags=("lab", "Lab"), data_source_id=77)
    (result,) = world.ask().results
    assert (result.stream_id, result.producer_id, result.epoch, result.header_nslots) == (10_000, 7, 5, 8)
    assert [(pool.pool_id, pool.stride_bytes) for pool in result.payload_pools] == [(1, 4096)]
    assert result.header_region_uri == "shm:file?path=/h"
    assert (result.data_source_name, result.data_source_id) == ("camera-1", 77)
    assert {one.tag for one in result.tags} == {"lab", "Lab"}
    authority = result.driver_instance_id, result.driver_control_channel, result.driver_control_stream_id
    assert authority == ("lab", "aeron:ipc", 1000)


def test_the_same_stream_id_of_two_drivers_is_two_streams() -> None:
    world = World()
    world.add(10_000, name="a", at="lab")
    world.add(10_000, name="b", at="roof", epoch=1)
    assert world.found() == [10_000, 10_000]
    assert [one.driver_instance_id for one in world.ask(name="b").results] == ["roof"]


@pytest.mark.requirement("discovery-5.2-11", "discovery-5.2-6")
@pytest.mark.parametrize("wrong", [{"pool_nslots": 4}, {"header_slot_bytes": 128}, {"stream_id": 0}])
def test_an_announce_that_could_not_be_answered_for_is_not_taken(wrong: dict[str, Any]) -> None:
    world = World()
    world.lab.hear(announce(**wrong).encode(), world.now_ns)
    assert world.found() == []
    assert world.counters.unheard["invalid"].value == 1


# --- words


def test_a_name_that_comes_before_its_announce_is_not_lost() -> None:
    world = World()
    world.lab.hear(source(name="early").encode(), world.now_ns)
    world.lab.hear(meta(tags=("t",)).encode(), world.now_ns)
    assert world.found() == []
    world.lab.hear(announce().encode(), world.now_ns)
    assert world.found(name="early", tags=("t",)) == [10_000]


def test_attributes_that_come_before_the_source_s_announce_are_not_lost() -> None:
    world = World()
    world.lab.hear(announce().encode(), world.now_ns)
    world.lab.hear(meta(tags=("t",)).encode(), world.now_ns)
    assert world.found(tags=("t",)) == []
    world.lab.hear(source().encode(), world.now_ns)
    assert world.found(tags=("t",)) == [10_000]


def test_words_that_are_no_longer_said_are_no_longer_true() -> None:
    world = World()
    world.add(name="camera-1", tags=("t",))
    world.pass_time(WINDOW_NS)
    world.lab.hear(announce().encode(), world.now_ns)
    world.pass_time(1)
    assert world.found(name="camera-1") == []
    assert world.found() == [10_000]


def test_a_producer_s_words_hold_for_its_own_epoch_only() -> None:
    world = World()
    world.add(epoch=5, name="old", tags=("t",), data_source_id=1)
    world.lab.hear(announce(epoch=6).encode(), world.now_ns)
    (result,) = world.ask().results
    assert (result.data_source_name, result.tags, result.data_source_id) == ("", (), None)
    world.lab.hear(source(epoch=6, name="new").encode(), world.now_ns)
    # Of the producer before: the same version says nothing.
    assert world.found(name="new", tags=("t",)) == []
    world.lab.hear(meta(tags=("t",)).encode(), world.now_ns)
    assert world.found(name="new", tags=("t",)) == [10_000]
    world.lab.hear(source(epoch=5, name="a last word").encode(), world.now_ns)
    assert world.found(name="new") == [10_000]


def test_attributes_of_another_version_than_the_announced_one_do_not_count() -> None:
    world = World()
    world.add(name="a", tags=("one",))
    world.lab.hear(source(name="a", version=2).encode(), world.now_ns)
    assert world.found(tags=("one",)) == []
    world.lab.hear(meta(tags=("two",), version=2).encode(), world.now_ns)
    assert world.found(tags=("two",)) == [10_000]


def test_a_producer_s_words_come_before_its_driver_s_and_the_driver_s_fill_the_gaps() -> None:
    world = World()
    world.add(epoch=5)
    world.lab.hear(source(name="configured", version=0).encode(), world.now_ns)
    world.lab.hear(meta(tags=("static",), data_source_id=9, version=0).encode(), world.now_ns)
    assert world.found(name="configured", tags=("static",), data_source_id=9) == [10_000]
    world.lab.hear(source(name="own").encode(), world.now_ns)
    world.lab.hear(meta(tags=("mine",)).encode(), world.now_ns)
    assert world.found(name="own", tags=("mine",), data_source_id=9) == [10_000]
    # The driver's hold for every epoch.
    world.lab.hear(announce(epoch=6).encode(), world.now_ns)
    assert world.found(name="configured", tags=("static",)) == [10_000]


@pytest.mark.requirement("discovery-5.1-8", "discovery-15-8")
def test_a_name_of_256_bytes_is_known_and_a_longer_one_is_not() -> None:
    world = World()
    world.add(1, name="é" * 128)
    world.add(2, name="é" * 128 + "x")
    assert world.found(name="é" * 128) == [1]
    assert [(one.stream_id, one.data_source_name) for one in world.ask(stream_id=2).results] == [(2, "")]


def test_an_index_that_is_full_takes_no_further_stream_of_that_driver() -> None:
    world = World(max_streams=2)
    for stream_id in (1, 2, 3):
        world.add(stream_id)
    world.add(3, at="roof")
    assert [one.driver_instance_id for one in world.ask().results] == ["lab", "lab", "roof"]
    assert world.counters.unheard["full"].value == 1
    # What is there goes on being heard.
    world.pass_time(WINDOW_NS)
    world.add(1)
    world.pass_time(1)
    assert world.found() == [1]


def test_a_stream_that_its_driver_gives_up_is_gone_at_once() -> None:
    world = World()
    world.add(1, name="a")
    world.add(2, name="b")
    world.index.remove("lab", 1)
    world.index.remove("lab", 1)
    assert world.found() == [2]
    assert world.found(name="a") == []
    assert world.index.count_of("lab") == 1
    assert world.index.count_of("nobody") == 0


# --- any sequence

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["announce", "source", "meta", "pass"]),
        st.integers(1, 3),
        st.integers(1, 4),
        st.integers(0, 2),
        st.integers(0, WINDOW_NS + 1),
    ),
    max_size=60,
)


@IN_ITS_OWN_TIME
@given(_EVENTS)
def test_after_any_sequence_the_index_has_what_a_plain_model_has(events: list[tuple[Any, ...]]) -> None:
    """The model keeps, for each stream, the time and epoch of the last announce that counted."""
    index = DiscoveryIndex()
    index.set_driver(LAB, announce_period_ns=PERIOD_NS)
    model: dict[int, tuple[int, int]] = {}
    now = 0
    for kind, stream_id, epoch, version, step in events:
        if kind == "pass":
            now += step
        elif kind == "announce":
            known = model.get(stream_id)
            is_alive = known is not None and now - known[1] <= WINDOW_NS
            outcome = index.on_announce("lab", announce(stream_id, epoch), now)
            if known is not None and is_alive and epoch < known[0]:
                assert outcome is IndexResult.REGRESSED
            else:
                assert outcome in (IndexResult.NEW, IndexResult.AGAIN, IndexResult.CHANGED)
                model[stream_id] = (epoch, now)
        elif kind == "source":
            index.on_source("lab", source(stream_id, epoch, f"n{epoch}", version), now)
        else:
            index.on_meta("lab", meta(stream_id, (f"t{version}",), version=version), now)
        alive = {one: epoch for one, (epoch, heard) in model.items() if now - heard <= WINDOW_NS}
        entries = list(index.entries(now))
        assert {one.stream_id: one.epoch for one in entries} == alive
        for entry in entries:
            # Both ways to an entry lead to the same one.
            assert entry in index.candidates(now, name=entry.words.name, stream_id=None)
            assert entry in index.candidates(now, name="", stream_id=entry.stream_id)
        assert len(index) == len(alive)


def test_the_generation_grows_with_every_change_and_with_nothing_else() -> None:
    world = World()
    world.add(1, name="a")
    before = world.index.generation
    world.pass_time(SECOND_NS)
    world.add(1, name="a")
    world.ask()
    assert world.index.generation == before
    world.add(1, name="b")
    assert world.index.generation > before
    after = world.index.generation
    world.pass_time(WINDOW_NS + 1)
    world.ask()
    assert world.index.generation > after


def test_identities_are_compared_as_a_whole() -> None:
    assert DriverIdentity("a", "aeron:ipc", 1) != DriverIdentity("a", "aeron:ipc", 2)
