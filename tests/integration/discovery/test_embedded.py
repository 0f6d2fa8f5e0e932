"""Discovery by the embedded driver: streams are found on its control stream and attached through it."""

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
from tensorpool.client.lease import lease_status
from tensorpool.discovery import DiscoveredStream, DiscoveryClient
from tensorpool.errors import ConfigError
from tensorpool.monitor.reports import read_stream_id
from tensorpool.transport import StreamAddress
from tests.integration.discovery.conftest import UNMET_S, discovery_of
from tests.unit.discovery.provider_harness import source

POOL: dict[str, Any] = {"pools": ["64KiB"], "nslots": 4}


def leases(context: tp.Context) -> list[dict[str, Any]]:
    with context.service("driver") as driver:
        rows: list[dict[str, Any]] = driver.call("leases")
    return rows


def mapped(stream_id: int) -> list[str]:
    """The regions of a stream that this process has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"/{stream_id}/" in line]


@pytest.mark.requirement("discovery-13-1", "discovery-4.3-2")
def test_stream_is_found_by_each_of_its_labels(
    local_context: tp.Context,
    remote_context: tp.Context,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    camera = local_context.producer(
        first, name="camera-1", tags=["lab", "Lab"], metadata={"tensorpool.data_source_id": 77}, **POOL
    )
    other = local_context.producer(second, name="camera-2", tags=["lab"], **POOL)
    (found,) = remote_context.discover(name="camera-1")
    # The driver that answered says that its streams can be attached to here (discovery §9).
    tags = {"lab", "Lab"}
    assert (found.stream_id, found.epoch, set(found.tags)) == (first, camera.epoch, tags)
    assert found.supports_local_attach
    assert not found.needs_bridge
    assert (found.driver_instance_id, found.control_channel) == ("default", "aeron:ipc")
    assert found.control_stream_id == local_context.stream_ids.control
    assert (found.nslots, found.pools) == (4, (1 << 16,))
    assert {stream.stream_id for stream in remote_context.discover()} == {first, second}
    assert {stream.stream_id for stream in remote_context.discover(tags=["lab"])} == {first, second}
    assert [stream.stream_id for stream in remote_context.discover(tags=["lab", "Lab"])] == [first]
    assert [stream.stream_id for stream in remote_context.discover(stream_id=second)] == [second]
    producer_id = lease_status(other).client_id
    assert [stream.stream_id for stream in remote_context.discover(producer_id=producer_id)] == [second]
    # Only the producer publishes the id, on the metadata stream.
    wait_until(lambda: [stream.stream_id for stream in remote_context.discover(data_source_id=77)] == [first])
    assert remote_context.discover(name="Camera-1") == []
    assert remote_context.discover(name="camera-1", stream_id=second) == []


def test_configured_labels_of_the_driver_are_found(
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


def test_driver_metadata_of_others_applies_to_unplanned_labels_only(
    local_context: tp.Context,
    free_stream_ids: Callable[[], int],
    publication: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    """A bridge publishes the metadata of the driver of its source streams."""
    named, unnamed = free_stream_ids(), free_stream_ids()
    producers = local_context.producer(named, name="own", **POOL), local_context.producer(unnamed, **POOL)
    announces = publication(local_context, local_context.stream_ids.announce)

    def is_applied() -> bool:
        for producer in producers:
            name = source(producer.stream_id, producer.epoch or 0, name="forwarded", version=0)
            announces.offer(name.encode())
        return [found.stream_id for found in local_context.discover(name="forwarded")] == [unnamed]

    wait_until(is_applied)
    wait_until(lambda: discovery_of(local_context)["foreign"] >= 1)
    assert [found.stream_id for found in local_context.discover(name="own")] == [named]


def test_discover_works_with_asyncio_and_without_a_context(
    local_context: tp.Context, free_stream_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    found = asyncio.run(local_context.discover_async(name="camera-1"))
    assert [stream.stream_id for stream in found] == [free_stream_id]
    assert tp.discover(name="camera-1", aeron_dir=local_context.aeron_dir) == found
    assert asyncio.run(tp.discover_async(name="camera-1", aeron_dir=local_context.aeron_dir)) == found
    from tensorpool.context import startup

    startup.close_shared_context(local_context.aeron_dir)
    assert camera.attached


@pytest.mark.requirement("discovery-7-1", "discovery-2.3-1", "discovery-3-3", "discovery-5.2-3")
def test_consumer_by_name_attaches_and_receives_frames(
    local_context: tp.Context, remote_context: tp.Context, free_stream_id: int
) -> None:
    with (
        local_context.producer(free_stream_id, name="camera-1", **POOL) as camera,
        remote_context.consumer(name="camera-1") as frames,
    ):
        assert (frames.stream_id, frames.epoch) == (free_stream_id, camera.epoch)
        # It holds a lease of the stream's driver.
        assert str(lease_status(frames).lease_id) in {lease["lease_id"] for lease in leases(local_context)}
        camera.wait_for_consumer(60)
        camera.offer(np.arange(4))
        assert frames.receive(60).copy().tolist() == [0, 1, 2, 3]
    # It follows announces: the next epoch is mapped without another request.
    with remote_context.consumer(name="camera-1") as frames:
        before = frames.epoch
        with local_context.producer(free_stream_id, name="camera-1", **POOL) as camera:
            assert wait_for_epoch(frames, camera.epoch) != before


def test_standalone_context_attaches_through_the_stream_s_driver(
    local_context: tp.Context, open_context: Callable[..., tp.Context], free_stream_id: int
) -> None:
    standalone = open_context("standalone")
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    with standalone.consumer(name="camera-1") as frames:
        assert str(lease_status(frames).lease_id) in {lease["lease_id"] for lease in leases(local_context)}
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
def test_discovered_stream_is_not_mapped_and_no_permission(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text(
        f"[driver]\nrecreate_at_start = true\n[[driver.streams]]\nstream_id = {free_stream_id}\n"
        'name = "taken"\nmax_leases = 1\nnslots = 4\npools = ["64KiB"]\n'
    )
    local_context = open_context("embedded", config=config)
    other = open_context("driver")
    before = len(mapped(free_stream_id))
    (found,) = other.discover(name="taken")
    assert len(mapped(free_stream_id)) == before
    assert leases(local_context) == []
    with local_context.consumer(free_stream_id) as holder:
        assert holder.wait_for_producer(60)
        with_holder = len(mapped(free_stream_id))
        with pytest.raises(tp.AttachError, match="lease") as refused:
            other.consumer(name="taken", find_timeout=UNMET_S)
        assert refused.value.code == "REJECTED"
        assert other.discover(name="taken") == [found]
        assert len(mapped(free_stream_id)) == with_holder


def test_consumer_waits_for_a_stream_of_its_name(
    local_context: tp.Context, remote_context: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    consumers: list[tp.Consumer] = []
    thread = threading.Thread(
        target=lambda: consumers.append(remote_context.consumer(name="late", find_timeout=60))
    )
    thread.start()
    # Its requests are answered without results.
    wait_until(lambda: discovery_of(local_context)["requests"] >= 2)
    with local_context.producer(free_stream_id, name="late", **POOL) as camera:
        thread.join(60)
        (consumer,) = consumers
        assert consumer.epoch == camera.epoch
        consumer.close()


def test_unknown_name_is_an_error_with_a_hint(local_context: tp.Context) -> None:
    with pytest.raises(tp.StreamNotFound, match=r"no stream named 'nowhere'.*tensorpool discover"):
        local_context.consumer(name="nowhere", find_timeout=UNMET_S)
    with pytest.raises(tp.StreamNotFound, match="tagged a, b"):
        local_context.consumer(tags=["b", "a"], find_timeout=UNMET_S)
    with pytest.raises(ConfigError, match="a stream id, or a name"):
        local_context.consumer()
    with pytest.raises(ConfigError, match="a stream id, or a name"):
        local_context.consumer(5, name="both")


def test_name_of_two_streams_is_ambiguous_while_both_have_producers(
    local_context: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    left = local_context.producer(first, name="twin", tags=["left"], **POOL)
    right = local_context.producer(second, name="twin", tags=["right"], **POOL)
    with pytest.raises(tp.AmbiguousStream, match=f"stream {first}.*stream {second}"):
        local_context.consumer(name="twin")
    with local_context.consumer(name="twin", tags=["right"]) as consumer:
        assert consumer.stream_id == second
    left.close()
    with local_context.consumer(name="twin", find_timeout=60) as consumer:
        assert consumer.stream_id == second
    assert right.attached


@pytest.mark.requirement("discovery-7-4")
def test_outdated_result_leads_to_another_request(
    local_context: tp.Context, free_stream_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    results: list[list[DiscoveredStream]] = []
    real = DiscoveryClient.find

    def find(self: DiscoveryClient, query: Any, *, timeout: float) -> list[DiscoveredStream]:
        found = real(self, query, timeout=timeout)
        if len(results) < 2:
            # The result of a registry that does not have the newest epoch yet.
            found = [replace(stream, epoch=stream.epoch - 1) for stream in found]
        results.append(found)
        return found

    monkeypatch.setattr(DiscoveryClient, "find", find)
    with local_context.consumer(name="camera-1", find_timeout=60) as consumer:
        assert consumer.epoch == camera.epoch
        assert len(results) == 3
    # A result that stays outdated is an error in the end.
    outdated = [replace(stream, epoch=1) for stream in results[-1]]
    monkeypatch.setattr(DiscoveryClient, "find", lambda *_, **__: outdated)
    with pytest.raises(tp.StreamNotFound, match="found in epoch 1"):
        local_context.consumer(name="camera-1", find_timeout=0.1)


def test_local_stream_needs_no_bridge_despite_its_tags(
    local_context: tp.Context, free_stream_id: int
) -> None:
    """A bridge forwards tags with the frames: at its other end they do not apply."""
    camera = local_context.producer(free_stream_id, name="near", tags=["reach:bridge"], **POOL)
    (found,) = local_context.discover(name="near")
    assert found.needs_bridge
    with local_context.consumer(name="near") as frames:
        assert frames.epoch == camera.epoch


def test_stream_without_producer_keeps_its_planned_labels(
    local_context: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    before = camera.epoch
    camera.close()

    def without_producer() -> list[DiscoveredStream]:
        return [stream for stream in local_context.discover(name="camera-1") if not stream.has_producer]

    (found,) = wait_until(without_producer)
    assert before is not None
    assert found.epoch > before


def test_stream_without_regions_is_gone_and_not_announced(
    open_context: Callable[..., tp.Context],
    tmp_path: Path,
    free_stream_id: int,
    subscription: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text('[driver]\nrelease_idle = "100ms"\n')
    local_context = open_context("embedded", config=config)
    local_context.producer(free_stream_id, name="camera-1", **POOL).close()

    def has_none() -> bool:
        with local_context.service("driver") as driver:
            return all(row["bytes"] == 0 for row in driver.call("streams"))

    # Not only between the producer's regions and the next ones.
    wait_until(has_none, timeout=60)
    assert local_context.discover(name="camera-1") == []
    announces = subscription(local_context, local_context.stream_ids.announce)
    wait_until(lambda: announces.is_connected)
    announces.poll(1024)
    # The metadata of another stream is repeated; there is none of this one.
    with local_context.producer(free_stream_id + 1, name="camera-2", **POOL):
        stream_ids: list[int | None] = []

        def is_repeated() -> bool:
            stream_ids.extend(read_stream_id(message) for message in announces.poll())
            return stream_ids.count(free_stream_id + 1) > 10

        wait_until(is_repeated)
    assert free_stream_id not in stream_ids


@pytest.mark.requirement("discovery-5.2-4")
def test_per_consumer_streams_come_from_the_producer(
    local_context: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    """A result contains the driver's control stream, and no other stream follows from it."""
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    (found,) = local_context.discover(name="camera-1")
    names = {
        name for name in DiscoveredStream.__dataclass_fields__ if "stream_id" in name or "channel" in name
    }
    assert names == {"stream_id", "control_channel", "control_stream_id"}
    with local_context.consumer(name="camera-1", per_consumer_stream=True) as frames:
        own = wait_until(lambda: frames.state().descriptors)
        assert 31_000 <= own[1] <= 31_999
    # Another driver's control stream changes that one stream and nothing else.
    other = local_context._context_for(StreamAddress("aeron:ipc", found.control_stream_id + 1))
    assert replace(other.stream_ids, control=local_context.stream_ids.control) == local_context.stream_ids
    assert camera.attached
