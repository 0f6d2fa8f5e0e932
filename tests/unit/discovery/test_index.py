"""The index: entries exist exactly as long as their streams are announced."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery.index import DiscoveryIndex, DriverIdentity, IndexResult
from tensorpool.errors import ConfigError
from tests.unit.discovery.provider_harness import (
    LAB,
    NO_DEADLINE,
    PERIOD_NS,
    ROOF,
    SECOND_NS,
    WINDOW_NS,
    ProviderHarness,
    announce,
    meta,
    source,
)


@pytest.mark.requirement("discovery-6.2-1", "discovery-6.2-2")
def test_entry_exists_to_the_last_nanosecond_of_its_window() -> None:
    harness = ProviderHarness()
    harness.add(10_000)
    harness.advance(WINDOW_NS)
    assert harness.found() == [10_000]
    harness.advance(1)
    assert harness.found() == []
    assert len(harness.index) == 0


@pytest.mark.requirement("discovery-6.2-1")
def test_window_starts_at_the_receipt_of_each_announce() -> None:
    """The timestamp of the announce does not matter: it is of another host's clock."""
    harness = ProviderHarness()
    for stamp in (1, 1 << 62, 0, 77):
        harness.lab.on_message(announce(announce_timestamp_ns=stamp).encode(), harness.now_ns)
        harness.advance(WINDOW_NS)
    assert harness.found() == [10_000]
    harness.advance(1)
    assert harness.found() == []


def test_each_driver_has_the_window_of_its_announce_period() -> None:
    harness = ProviderHarness()
    harness.index.set_driver(ROOF, announce_period_ns=10 * PERIOD_NS)
    harness.add(1, at="lab")
    harness.add(2, at="roof")
    harness.advance(WINDOW_NS + 1)
    assert harness.found() == [2]
    harness.advance(27 * SECOND_NS)
    assert harness.found() == []


@pytest.mark.requirement("discovery-6.3-1")
def test_newest_epoch_replaces_older_ones() -> None:
    harness = ProviderHarness()
    harness.add(epoch=5)
    harness.add(epoch=6, nslots=16)
    (result,) = harness.ask().results
    assert (result.epoch, result.header_nslots) == (6, 16)


@pytest.mark.requirement("discovery-6.3-2")
def test_older_epoch_is_ignored_and_does_not_renew_the_newer_one() -> None:
    harness = ProviderHarness()
    harness.add(epoch=6)
    harness.advance(WINDOW_NS)
    harness.add(epoch=5)
    assert [one.epoch for one in harness.ask().results] == [6]
    assert harness.counters.rejected["regressed"].value == 1
    harness.advance(1)
    assert harness.found() == []
    # Without a fresh newer epoch the older one applies.
    harness.add(epoch=5)
    assert [one.epoch for one in harness.ask().results] == [5]


@pytest.mark.requirement("discovery-6.3-2")
def test_driver_with_a_new_address_may_have_any_epoch() -> None:
    harness = ProviderHarness()
    harness.add(epoch=6)
    harness.index.set_driver(dataclasses.replace(LAB, control_stream_id=1010), announce_period_ns=PERIOD_NS)
    assert harness.found() == []
    harness.add(epoch=2)
    (result,) = harness.ask().results
    assert (result.epoch, result.driver_control_stream_id) == (2, 1010)


def test_set_driver_keeps_streams_and_remove_driver_drops_them() -> None:
    harness = ProviderHarness()
    harness.add(1, at="lab")
    harness.add(2, at="roof")
    harness.index.set_driver(LAB, announce_period_ns=PERIOD_NS)
    assert harness.found() == [1, 2]
    harness.index.remove_driver("lab")
    assert harness.found() == [2]
    assert [one.instance_id for one in harness.index.drivers] == ["roof"]


@pytest.mark.requirement("discovery-6.4-1")
def test_entry_joins_announce_metadata_and_configured_driver() -> None:
    harness = ProviderHarness()
    harness.add(10_000, name="camera-1", tags=("lab", "Lab"), data_source_id=77)
    (result,) = harness.ask().results
    assert (result.stream_id, result.producer_id, result.epoch, result.header_nslots) == (10_000, 7, 5, 8)
    assert [(pool.pool_id, pool.stride_bytes) for pool in result.payload_pools] == [(1, 4096)]
    assert result.header_region_uri == "shm:file?path=/h"
    assert (result.data_source_name, result.data_source_id) == ("camera-1", 77)
    assert {one.tag for one in result.tags} == {"lab", "Lab"}
    address = result.driver_instance_id, result.driver_control_channel, result.driver_control_stream_id
    assert address == ("lab", "aeron:ipc", 1000)


def test_same_stream_id_of_two_drivers_is_two_streams() -> None:
    harness = ProviderHarness()
    harness.add(10_000, name="a", at="lab")
    harness.add(10_000, name="b", at="roof", epoch=1)
    assert harness.found() == [10_000, 10_000]
    assert [one.driver_instance_id for one in harness.ask(name="b").results] == ["roof"]


@pytest.mark.requirement("discovery-5.2-5", "discovery-5.2-6")
@pytest.mark.parametrize("invalid", [{"control_stream_id": 0}, {"control_channel": ""}])
def test_driver_without_a_control_endpoint_is_no_result(invalid: dict[str, Any]) -> None:
    harness = ProviderHarness()
    cellar = dataclasses.replace(LAB, instance_id="cellar", **invalid)
    with pytest.raises(ConfigError, match="set both, so that clients can attach"):
        harness.index.set_driver(cellar, announce_period_ns=PERIOD_NS)
    assert [driver.instance_id for driver in harness.index.drivers] == ["lab", "roof"]


@pytest.mark.requirement("discovery-5.2-11")
@pytest.mark.parametrize("invalid", [{"pool_nslots": 4}, {"header_slot_bytes": 128}, {"stream_id": 0}])
def test_announce_with_an_invalid_layout_is_rejected(invalid: dict[str, Any]) -> None:
    harness = ProviderHarness()
    harness.lab.on_message(announce(**invalid).encode(), harness.now_ns)
    assert harness.found() == []
    assert harness.counters.rejected["invalid"].value == 1


# --- labels


def test_name_may_come_before_the_announce() -> None:
    harness = ProviderHarness()
    harness.lab.on_message(source(name="early").encode(), harness.now_ns)
    harness.lab.on_message(meta(tags=("t",)).encode(), harness.now_ns)
    assert harness.found() == []
    harness.lab.on_message(announce().encode(), harness.now_ns)
    assert harness.found(name="early", tags=("t",)) == [10_000]


def test_attributes_may_come_before_the_name() -> None:
    harness = ProviderHarness()
    harness.lab.on_message(announce().encode(), harness.now_ns)
    harness.lab.on_message(meta(tags=("t",)).encode(), harness.now_ns)
    assert harness.found(tags=("t",)) == []
    harness.lab.on_message(source().encode(), harness.now_ns)
    assert harness.found(tags=("t",)) == [10_000]


def test_metadata_that_is_not_repeated_expires() -> None:
    harness = ProviderHarness()
    harness.add(name="camera-1", tags=("t",))
    harness.advance(WINDOW_NS)
    harness.lab.on_message(announce().encode(), harness.now_ns)
    harness.advance(1)
    assert harness.found(name="camera-1") == []
    assert harness.found() == [10_000]


def test_producer_s_labels_apply_to_its_own_epoch_only() -> None:
    harness = ProviderHarness()
    harness.add(epoch=5, name="old", tags=("t",), data_source_id=1)
    harness.lab.on_message(announce(epoch=6).encode(), harness.now_ns)
    (result,) = harness.ask().results
    assert (result.data_source_name, result.tags, result.data_source_id) == ("", (), None)
    harness.lab.on_message(source(epoch=6, name="new").encode(), harness.now_ns)
    # The attributes are of the former producer, although the version is the same.
    assert harness.found(name="new", tags=("t",)) == []
    harness.lab.on_message(meta(tags=("t",)).encode(), harness.now_ns)
    assert harness.found(name="new", tags=("t",)) == [10_000]
    harness.lab.on_message(source(epoch=5, name="late").encode(), harness.now_ns)
    assert harness.found(name="new") == [10_000]


def test_attributes_of_another_version_do_not_apply() -> None:
    harness = ProviderHarness()
    harness.add(name="a", tags=("one",))
    harness.lab.on_message(source(name="a", version=2).encode(), harness.now_ns)
    assert harness.found(tags=("one",)) == []
    harness.lab.on_message(meta(tags=("two",), version=2).encode(), harness.now_ns)
    assert harness.found(tags=("two",)) == [10_000]


def test_producer_s_labels_precede_the_driver_s_which_fill_gaps() -> None:
    harness = ProviderHarness()
    harness.add(epoch=5)
    harness.lab.on_message(source(name="configured", version=0).encode(), harness.now_ns)
    harness.lab.on_message(meta(tags=("static",), data_source_id=9, version=0).encode(), harness.now_ns)
    assert harness.found(name="configured", tags=("static",), data_source_id=9) == [10_000]
    harness.lab.on_message(source(name="own").encode(), harness.now_ns)
    harness.lab.on_message(meta(tags=("mine",)).encode(), harness.now_ns)
    assert harness.found(name="own", tags=("mine",), data_source_id=9) == [10_000]
    # The driver's labels apply to every epoch.
    harness.lab.on_message(announce(epoch=6).encode(), harness.now_ns)
    assert harness.found(name="configured", tags=("static",)) == [10_000]


@pytest.mark.requirement("discovery-5.1-8", "discovery-15-8")
def test_name_of_256_bytes_is_indexed_and_a_longer_one_is_not() -> None:
    harness = ProviderHarness()
    harness.add(1, name="é" * 128)
    harness.add(2, name="é" * 128 + "x")
    assert harness.found(name="é" * 128) == [1]
    assert [(one.stream_id, one.data_source_name) for one in harness.ask(stream_id=2).results] == [(2, "")]


def test_full_index_rejects_further_streams_of_that_driver() -> None:
    harness = ProviderHarness(max_streams=2)
    for stream_id in (1, 2, 3):
        harness.add(stream_id)
    harness.add(3, at="roof")
    assert [one.driver_instance_id for one in harness.ask().results] == ["lab", "lab", "roof"]
    assert harness.counters.rejected["full"].value == 1
    # Announces of indexed streams still count.
    harness.advance(WINDOW_NS)
    harness.add(1)
    harness.advance(1)
    assert harness.found() == [1]


def test_removed_stream_is_gone_at_once() -> None:
    harness = ProviderHarness()
    harness.add(1, name="a")
    harness.add(2, name="b")
    harness.index.remove("lab", 1)
    harness.index.remove("lab", 1)
    assert harness.found() == [2]
    assert harness.found(name="a") == []
    assert harness.index.count_streams("lab") == 1
    assert harness.index.count_streams("unknown") == 0


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


@NO_DEADLINE
@given(_EVENTS)
def test_index_equals_a_simple_model_after_any_events(events: list[tuple[Any, ...]]) -> None:
    """The model keeps time and epoch of the last accepted announce of each stream."""
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
                assert outcome in (IndexResult.NEW, IndexResult.UNCHANGED, IndexResult.CHANGED)
                model[stream_id] = (epoch, now)
        elif kind == "source":
            index.on_source("lab", source(stream_id, epoch, f"n{epoch}", version), now)
        else:
            index.on_meta("lab", meta(stream_id, (f"t{version}",), version=version), now)
        alive = {id_: epoch for id_, (epoch, at) in model.items() if now - at <= WINDOW_NS}
        entries = list(index.entries(now))
        assert {one.stream_id: one.epoch for one in entries} == alive
        for entry in entries:
            # Both lookups lead to the same entry.
            assert entry in index.candidates(now, name=entry.labels.name, stream_id=None)
            assert entry in index.candidates(now, name="", stream_id=entry.stream_id)
        assert len(index) == len(alive)


def test_generation_grows_with_changes_only() -> None:
    harness = ProviderHarness()
    harness.add(1, name="a")
    before = harness.index.generation
    harness.advance(SECOND_NS)
    harness.add(1, name="a")
    harness.ask()
    assert harness.index.generation == before
    harness.add(1, name="b")
    assert harness.index.generation > before
    after = harness.index.generation
    harness.advance(WINDOW_NS + 1)
    harness.ask()
    assert harness.index.generation > after


def test_driver_identities_compare_all_fields() -> None:
    assert DriverIdentity("a", "aeron:ipc", 1) != DriverIdentity("a", "aeron:ipc", 2)


def test_source_without_metadata_keeps_the_name_that_a_driver_gives() -> None:
    """Every producer announces itself as a source; without metadata it says nothing about its stream."""
    harness = ProviderHarness()
    harness.add(10_000)
    for message in (source(name="plan", version=0), source(name="", version=0), source(name="", version=0)):
        assert harness.lab.on_message(message.encode(), harness.now_ns)
    assert [entry.labels.name for entry in harness.index.entries(harness.now_ns)] == ["plan"]
    # It does not renew the driver's entries.
    harness.advance(WINDOW_NS)
    harness.lab.on_message(announce().encode(), harness.now_ns)
    harness.lab.on_message(source(name="", version=0).encode(), harness.now_ns)
    harness.advance(1)
    assert [entry.labels.name for entry in harness.index.entries(harness.now_ns)] == [""]
    assert harness.counters.rejected["regressed"].value == 0
