"""Discovery inside a driver, on its control stream: found, attached to, and only through the driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.discovery import DiscoveredStream, DiscoveryClient
from tensorpool.errors import ConfigError
from tensorpool.monitor.reports import read_stream_id
from tests.integration.discovery.conftest import UNMET_S, discovery_of
from tests.unit.discovery.provider_harness import source

POOL: dict[str, Any] = {"pools": ["64KiB"], "nslots": 4}


def leases(context: tp.Context) -> list[dict[str, Any]]:
    with context.service("driver") as driver:
        found: list[dict[str, Any]] = driver.call("leases")
    return found


def mapped(stream_id: int) -> list[str]:
    """Regions of a stream that this process has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"/{stream_id}/" in line]


@pytest.mark.requirement("discovery-13-1", "discovery-4.3-2")
def test_a_stream_is_found_by_everything_that_is_said_of_it(
    home: tp.Context, away: tp.Context, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    camera = home.producer(
        first, name="camera-1", tags=["lab", "Lab"], metadata={"tensorpool.data_source_id": 77}, **POOL
    )
    other = home.producer(second, name="camera-2", tags=["lab"], **POOL)
    (found,) = away.discover(name="camera-1")
    assert (found.stream_id, found.epoch, set(found.tags)) == (first, camera.epoch, {"lab", "Lab"})
    assert (found.driver_instance_id, found.control_channel) == ("default", "aeron:ipc")
    assert found.control_stream_id == home.stream_ids.control
    assert (found.nslots, found.pools) == (4, (1 << 16,))
    assert {one.stream_id for one in away.discover()} == {first, second}
    assert {one.stream_id for one in away.discover(tags=["lab"])} == {first, second}
    assert [one.stream_id for one in away.discover(tags=["lab", "Lab"])] == [first]
    assert [one.stream_id for one in away.discover(stream_id=second)] == [second]
    producer_id = (other.lease() or {})["client_id"]
    assert [one.stream_id for one in away.discover(producer_id=producer_id)] == [second]
    # Said by the producer alone, on the metadata stream.
    wait_until(lambda: [one.stream_id for one in away.discover(data_source_id=77)] == [first])
    assert away.discover(name="Camera-1") == []
    assert away.discover(name="camera-1", stream_id=second) == []


def test_names_tags_and_sources_of_the_driver_s_configuration_are_found_too(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text(
        f"""
        [driver]
        recreate_at_start = true
        instance_id = "lab"
        [[driver.streams]]
        stream_id = {free_stream_id}
        name = "caméra"
        tags = ["static"]
        data_source_id = 18446744073709551614
        nslots = 4
        pools = ["64KiB"]
        """,
        "utf-8",
    )
    context = open_context("embedded", config=config)
    (found,) = context.discover(name="caméra", tags=["static"], data_source_id=(1 << 64) - 2)
    assert (found.stream_id, found.has_producer, found.driver_instance_id) == (free_stream_id, False, "lab")
    with context.consumer(name="caméra") as consumer:
        assert consumer.epoch == found.epoch


def test_what_others_say_for_a_driver_holds_only_where_its_own_plan_says_nothing(
    home: tp.Context,
    free_stream_ids: Callable[[], int],
    voice: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    """As a bridge does, which brings the words of the driver that its streams come from."""
    named, nameless = free_stream_ids(), free_stream_ids()
    one, two = home.producer(named, name="own", **POOL), home.producer(nameless, **POOL)
    speak = voice(home, home.stream_ids.announce)

    def is_told() -> bool:
        for producer in (one, two):
            speak.offer(source(producer.stream_id, producer.epoch or 0, name="brought", version=0).encode())
        return [found.stream_id for found in home.discover(name="brought")] == [nameless]

    wait_until(is_told)
    wait_until(lambda: discovery_of(home)["foreign"] >= 1)
    assert [found.stream_id for found in home.discover(name="own")] == [named]


def test_discovering_is_also_for_asyncio_and_for_scripts(
    home: tp.Context, free_stream_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    found = asyncio.run(home.discover_async(name="camera-1"))
    assert [one.stream_id for one in found] == [free_stream_id]
    assert tp.discover(name="camera-1", aeron_dir=home.aeron_dir) == found
    assert asyncio.run(tp.discover_async(name="camera-1", aeron_dir=home.aeron_dir)) == found
    from tensorpool.context import startup

    startup._shared.pop(home.aeron_dir).close()
    assert camera.attached


@pytest.mark.requirement(
    "discovery-7-1", "discovery-2.3-1", "discovery-2.3-2", "discovery-3-3", "discovery-5.2-3"
)
def test_a_consumer_by_name_goes_all_the_way_to_the_frames(
    home: tp.Context, away: tp.Context, free_stream_id: int
) -> None:
    with (
        home.producer(free_stream_id, name="camera-1", **POOL) as camera,
        away.consumer(name="camera-1") as frames,
    ):
        assert (frames.stream_id, frames.epoch) == (free_stream_id, camera.epoch)
        # It holds a lease of the stream's own driver, like everybody who attaches.
        lease = frames.lease() or {}
        assert str(lease["lease_id"]) in {one["lease_id"] for one in leases(home)}
        camera.wait_for_consumer(60)
        camera.offer(np.arange(4))
        assert frames.receive(60).copy().tolist() == [0, 1, 2, 3]
    # Announces are followed: the next epoch is mapped without another question.
    with away.consumer(name="camera-1") as frames:
        before = frames.epoch
        with home.producer(free_stream_id, name="camera-1", **POOL) as camera:
            assert wait_for_epoch(frames, camera.epoch) != before


def test_a_context_without_a_driver_of_its_own_attaches_through_the_stream_s(
    home: tp.Context, open_context: Callable[..., tp.Context], free_stream_id: int
) -> None:
    looker = open_context("standalone")
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    with looker.consumer(name="camera-1") as frames:
        lease = frames.lease() or {}
        assert str(lease["lease_id"]) in {one["lease_id"] for one in leases(home)}
        camera.wait_for_consumer(60)
        camera.offer(np.arange(2))
        assert frames.receive(60).copy().tolist() == [0, 1]


def wait_for_epoch(frames: tp.Consumer, epoch: int | None) -> int | None:
    deadline = threading.Event()
    for _ in range(6000):
        if frames.epoch == epoch:
            return epoch
        deadline.wait(0.01)
    raise AssertionError(f"epoch {epoch} was never mapped")


@pytest.mark.requirement("discovery-3-1", "discovery-3-2", "discovery-7-2", "discovery-12-1")
def test_finding_a_stream_maps_nothing_and_is_no_permission(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text(
        f"[driver]\nrecreate_at_start = true\n[[driver.streams]]\nstream_id = {free_stream_id}\n"
        'name = "taken"\nmax_leases = 1\nnslots = 4\npools = ["64KiB"]\n'
    )
    home = open_context("embedded", config=config)
    other = open_context("driver")
    before = len(mapped(free_stream_id))
    (found,) = other.discover(name="taken")
    assert len(mapped(free_stream_id)) == before
    assert leases(home) == []
    with home.consumer(free_stream_id) as holder:
        assert holder.wait_for_producer(60)
        with_one = len(mapped(free_stream_id))
        with pytest.raises(tp.AttachError, match="lease") as refused:
            other.consumer(name="taken", find_timeout=UNMET_S)
        assert refused.value.code == "REJECTED"
        assert other.discover(name="taken") == [found]
        assert len(mapped(free_stream_id)) == with_one


def test_a_name_that_is_not_there_yet_is_waited_for(
    home: tp.Context, away: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    got: list[tp.Consumer] = []
    thread = threading.Thread(target=lambda: got.append(away.consumer(name="late", find_timeout=60)))
    thread.start()
    # It asks and is told that there is none.
    wait_until(lambda: discovery_of(home)["questions"] >= 2)
    with home.producer(free_stream_id, name="late", **POOL) as camera:
        thread.join(60)
        (consumer,) = got
        assert consumer.epoch == camera.epoch
        consumer.close()


def test_a_name_that_nobody_has_is_an_error_that_says_what_to_do(home: tp.Context) -> None:
    with pytest.raises(tp.StreamNotFound, match=r"no stream named 'nowhere'.*tensorpool discover"):
        home.consumer(name="nowhere", find_timeout=UNMET_S)
    with pytest.raises(tp.StreamNotFound, match="tagged a, b"):
        home.consumer(tags=["b", "a"], find_timeout=UNMET_S)
    with pytest.raises(ConfigError, match="a stream id, or a name"):
        home.consumer()
    with pytest.raises(ConfigError, match="a stream id, or a name"):
        home.consumer(5, name="both")


def test_a_name_that_two_streams_have_is_ambiguous_unless_one_of_them_is_produced(
    home: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    one = home.producer(first, name="twin", tags=["left"], **POOL)
    two = home.producer(second, name="twin", tags=["right"], **POOL)
    with pytest.raises(tp.AmbiguousStream, match=f"stream {first}.*stream {second}"):
        home.consumer(name="twin")
    with home.consumer(name="twin", tags=["right"]) as consumer:
        assert consumer.stream_id == second
    one.close()
    with home.consumer(name="twin", find_timeout=60) as consumer:
        assert consumer.stream_id == second
    assert two.attached


@pytest.mark.requirement("discovery-7-4")
def test_an_answer_that_is_no_longer_true_leads_to_another_question_and_not_to_an_error(
    home: tp.Context, free_stream_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    asked: list[list[DiscoveredStream]] = []
    real = DiscoveryClient.find

    def find(self: DiscoveryClient, wanted: Any, *, timeout: float) -> list[DiscoveredStream]:
        found = real(self, wanted, timeout=timeout)
        if len(asked) < 2:
            # What a registry says that has not heard of the newest epoch yet.
            found = [replace(one, epoch=one.epoch - 1) for one in found]
        asked.append(found)
        return found

    monkeypatch.setattr(DiscoveryClient, "find", find)
    with home.consumer(name="camera-1", find_timeout=60) as consumer:
        assert consumer.epoch == camera.epoch
        assert len(asked) == 3
    # One that stays wrong is not believed in the end either.
    wrong = [replace(one, epoch=1) for one in asked[-1]]
    monkeypatch.setattr(DiscoveryClient, "find", lambda *_, **__: wrong)
    with pytest.raises(tp.StreamNotFound, match="found in epoch 1"):
        home.consumer(name="camera-1", find_timeout=0.1)


def test_on_its_own_machine_a_stream_needs_no_bridge_whatever_its_tags_say(
    home: tp.Context, free_stream_id: int
) -> None:
    """Tags cross a bridge with the frames: at the other end they would deny what is there."""
    camera = home.producer(free_stream_id, name="near", tags=["reach:bridge"], **POOL)
    (found,) = home.discover(name="near")
    assert found.needs_bridge
    with home.consumer(name="near") as frames:
        assert frames.epoch == camera.epoch


def test_a_stream_that_its_producer_left_stays_known_by_its_plan(
    home: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    before = camera.epoch
    camera.close()

    def alone() -> list[DiscoveredStream]:
        return [one for one in home.discover(name="camera-1") if not one.has_producer]

    (found,) = wait_until(alone)
    assert before is not None
    assert found.epoch > before


def test_a_stream_that_lost_its_memory_is_gone_and_no_longer_spoken_of(
    open_context: Callable[..., tp.Context],
    tmp_path: Path,
    free_stream_id: int,
    ear: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text('[driver]\nrelease_idle = "100ms"\n')
    home = open_context("embedded", config=config)
    home.producer(free_stream_id, name="camera-1", **POOL).close()

    def has_none() -> bool:
        with home.service("driver") as driver:
            return all(row["bytes"] == 0 for row in driver.call("streams"))

    # Not only for the moment between the memory that its producer had and the next.
    wait_until(has_none, timeout=60)
    assert home.discover(name="camera-1") == []
    heard = ear(home, home.stream_ids.announce)
    wait_until(lambda: heard.is_connected)
    heard.poll(1024)
    # Another stream's words come and come again; of this one there is none.
    with home.producer(free_stream_id + 1, name="camera-2", **POOL):
        about: list[int | None] = []

        def often() -> bool:
            about.extend(read_stream_id(message) for message in heard.poll())
            return about.count(free_stream_id + 1) > 10

        wait_until(often)
    assert free_stream_id not in about


@pytest.mark.requirement("discovery-5.2-4")
def test_a_consumer_s_own_streams_come_from_its_producer_and_not_from_what_was_found(
    home: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    """A result names the driver's control stream, and no other stream is made up from it."""
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    (found,) = home.discover(name="camera-1")
    names = {
        name for name in DiscoveredStream.__dataclass_fields__ if "stream_id" in name or "channel" in name
    }
    assert names == {"stream_id", "control_channel", "control_stream_id"}
    with home.consumer(name="camera-1", own_stream=True) as frames:
        own = wait_until(lambda: frames.standing()["descriptors"])
        assert 31_000 <= own[1] <= 31_999
    # Another driver's control stream changes that one stream and nothing else.
    other = home._home_of(replace(found, control_stream_id=found.control_stream_id + 1))
    assert replace(other.stream_ids, control=home.stream_ids.control) == home.stream_ids
    assert camera.attached
