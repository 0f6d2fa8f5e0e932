"""Where regions are created: NUMA nodes, hugepages, and several base directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver import EmbeddedDriver
from tensorpool.driver.actions import MakeFiles
from tensorpool.driver.config import DriverSettings, StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.storage import BaseDirs
from tensorpool.sbe import (
    HugepagesPolicy,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequestR2,
    ShmAttachResponseR2,
)
from tensorpool.shm.numa import memory_on, node_of, numa_nodes
from tests.unit.driver.agent_harness import SMALL, RawClient
from tests.unit.driver.state_harness import StateHarness

HUGE, BASE = Path("/huge"), Path("/base")
BASES = BaseDirs(BASE, HUGE, frozenset({HUGE}))


def attach(harness: StateHarness, client_id: int, role: Role, **requested: Any) -> Any:
    """Sends an attach request of the later revision and runs all file work. Returns the response."""
    request = ShmAttachRequestR2(
        correlation_id=client_id << 32 | 1,
        stream_id=20_000,
        client_id=client_id,
        role=role,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
        **requested,
    )
    harness.send(request)
    harness.work()
    return harness.response(client_id << 32 | 1)


def made(harness: StateHarness) -> list[int | None]:
    """The NUMA nodes of all file creations so far."""
    return [job.plan.numa_node for job in harness.done if isinstance(job, MakeFiles)]


def test_producer_s_desired_node_places_new_files() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), numa_nodes=frozenset({0, 1}))
    assert attach(harness, 1, Role.PRODUCER, desired_node_id=1).code is ResponseCode.OK
    assert made(harness) == [1]


def test_clean_files_move_to_the_producer_s_node() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), numa_nodes=frozenset({0, 1}))
    first = attach(harness, 1, Role.CONSUMER)
    granted = attach(harness, 2, Role.PRODUCER, desired_node_id=1)
    assert made(harness) == [None, 1]
    assert granted.epoch > first.epoch
    # A consumer's request does not move the regions.
    assert attach(harness, 3, Role.CONSUMER, desired_node_id=0).code is ResponseCode.OK
    assert made(harness) == [None, 1]


def test_node_that_the_machine_lacks_is_not_met_and_not_refused() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), numa_nodes=frozenset({0}))
    assert attach(harness, 1, Role.PRODUCER, desired_node_id=7).code is ResponseCode.OK
    assert made(harness) == [None]


def test_configured_stream_keeps_its_node() -> None:
    stream = StreamSettings(stream_id=20_000, pools=(4096,), numa_node=0)
    harness = StateHarness(streams=(stream,), numa_nodes=frozenset({0, 1}))
    attach(harness, 1, Role.PRODUCER, desired_node_id=1)
    assert made(harness) == [0]


def test_provision_of_a_missing_node_is_refused() -> None:
    harness = StateHarness(numa_nodes=frozenset({0, 2}))
    refused, _ = harness.state.provision(20_000, harness.now, numa_node=1)
    assert refused == Refusal(ResponseCode.REJECTED, "numa_node 1: this machine has NUMA nodes 0, 2 only")


def test_response_has_the_node_of_the_regions(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient]
) -> None:
    embed(any_stream=True)
    client = raw_client()
    client.send(
        ShmAttachRequestR2(
            correlation_id=5 << 32 | 1,
            stream_id=SMALL.stream_id,
            client_id=5,
            role=Role.PRODUCER,
            desired_node_id=1023,
        )
    )
    response = client.next(ShmAttachResponseR2)
    path = _native.parse_region_uri(response.header_region_uri).path
    assert response.node_id == node_of([Path(path)], numa_nodes())
    assert response.node_id is None or response.node_id in numa_nodes()


@pytest.mark.parametrize(("text", "nodes"), [("0\n", {0}), ("0-1,3\n", {0, 1, 3}), ("", {0}), ("x", {0})])
def test_nodes_are_read_from_the_kernel(tmp_path: Path, text: str, nodes: set[int]) -> None:
    (tmp_path / "online").write_text(text)
    assert numa_nodes(tmp_path / "online") == nodes
    assert numa_nodes(tmp_path / "none") == {0}


def test_memory_policy_is_reset_after_the_block(tmp_path: Path) -> None:
    try:
        _native.bind_memory(0)
        _native.bind_memory(None)
    except OSError as error:
        pytest.skip(f"memory cannot be bound here: {error}")
    # As on a machine with two nodes: then the thread is bound.
    with memory_on(0, frozenset({0, 1})):
        path = tmp_path / "pages"
        path.write_bytes(bytes(1 << 16))
    assert _native.memory_node(path) == 0
    assert "bind" not in Path("/proc/thread-self/numa_maps").read_text()


def test_stream_on_hugepages_is_created_in_their_directory() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), bases=BASES)
    assert (
        attach(harness, 1, Role.CONSUMER, hugepages_policy=HugepagesPolicy.HUGEPAGES).code is ResponseCode.OK
    )
    plan = harness.state.plan[20_000]
    assert (plan.hugepages, BASES.base_dir(plan)) == (True, HUGE)
    # The next producer wants standard pages: clean files move.
    assert (
        attach(harness, 2, Role.PRODUCER, hugepages_policy=HugepagesPolicy.STANDARD).code is ResponseCode.OK
    )
    assert BASES.base_dir(harness.state.plan[20_000]) == BASE
    assert len(made(harness)) == 2


def test_consumer_cannot_move_a_stream_to_hugepages() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), bases=BASES)
    attach(harness, 1, Role.PRODUCER)
    refused = attach(harness, 2, Role.CONSUMER, hugepages_policy=HugepagesPolicy.HUGEPAGES)
    assert refused.code is ResponseCode.REJECTED
    assert "hugepages are required, but /base is not on hugetlbfs" in refused.error_message


def test_base_directories_of_settings_are_all_known(tmp_path: Path) -> None:
    fast, huge = tmp_path / "fast", tmp_path / "huge"
    settings = DriverSettings(
        hugepages_dir=huge,
        streams=(StreamSettings(stream_id=1, base_dir=fast), StreamSettings(stream_id=2, base_dir=fast)),
    )
    bases = BaseDirs.probe(tmp_path, settings)
    assert bases.all == (tmp_path, fast, huge)
    assert bases.on_hugepages == frozenset()


def test_driver_with_two_base_directories_serves_streams_of_both(
    embed: Callable[..., EmbeddedDriver],
    raw_client: Callable[..., RawClient],
    shm_base: Path,
    mounted: Callable[..., Path],
) -> None:
    second = mounted("tmpfs", "size=4m")
    streams = (SMALL, StreamSettings(stream_id=10_001, nslots=4, pools=(4096,), base_dir=second))
    driver = embed(streams=streams)
    client = raw_client()
    for stream, base in zip(streams, (shm_base, second), strict=True):
        granted = client.attach(stream.stream_id, stream.stream_id, Role.PRODUCER)
        path = Path(_native.parse_region_uri(granted.header_region_uri).path)
        assert path.is_relative_to(base)
        assert client.announce(stream.stream_id, producer_id=stream.stream_id).epoch == granted.epoch
    driver.close()
    assert list(second.iterdir()) == []
