"""What waiting and working cost: next to no CPU, no GIL, no native allocation per frame."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.remote_process import RemoteProcess

from .conftest import Environment
from .resource_meter import ResourceMeter

SECONDS = 3.0


@pytest.fixture
def frugal(place: Environment) -> RemoteProcess:
    place.driver()
    return place._stack.enter_context(RemoteProcess(ResourceMeter, place.options, place.stream_id))


@pytest.mark.parametrize("way", ["iterate", "async"])
def test_a_waiting_consumer_uses_next_to_no_cpu(frugal: RemoteProcess, way: str) -> None:
    used = frugal.call("wait_for_frames", seconds=SECONDS, way=way)
    print(f"\nwaiting ({way}): {100 * used['all']:.1f} % of a core, by thread {used['threads']}")
    assert used["all"] < 0.10, used


def test_an_idle_process_with_its_own_media_driver_uses_little_cpu(place: Environment) -> None:
    with RemoteProcess(ResourceMeter, place.options, place.stream_id) as remote:
        used = remote.call("wait_for_frames", seconds=SECONDS, way="iterate")
        print(
            f"\nwaiting with an embedded media driver: {100 * used['all']:.1f} % of a core, {used['threads']}"
        )
        assert used["all"] < 0.25, used


@pytest.mark.parametrize("idle", ["backoff", "busy-spin"])
def test_other_threads_of_python_run_while_a_consumer_waits(frugal: RemoteProcess, idle: str) -> None:
    turns = frugal.call("count_beside_a_wait", seconds=1.0, idle=idle)
    print(f"\n{idle}: {turns['beside']:,} turns beside a wait, {turns['alone']:,} alone")
    # Two cores at least: even a spinning wait takes only its own.
    assert turns["beside"] > turns["alone"] / 4


@pytest.fixture
def counting_malloc(tmp_path: Path) -> Path:
    """A library that counts the allocations of each thread, put before the C library's own."""
    library = tmp_path / "libcounting_malloc.so"
    source = Path(__file__).with_name("counting_malloc.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def test_no_frame_costs_a_native_allocation(place: Environment, counting_malloc: Path) -> None:
    env = {"LD_PRELOAD": str(counting_malloc), "COUNTING_MALLOC": str(counting_malloc)}
    place.driver()
    frames = 100_000
    with RemoteProcess(ResourceMeter, place.options, place.stream_id, env=env) as remote:
        counts: dict[str, Any] = remote.call("count_allocations", frames=frames)
    print(f"\nallocations over {frames:,} frames: {counts}")
    # Proof that the count counts: as many objects that Python must get from the C library.
    assert counts.pop("known") >= frames
    assert counts.pop("received") > frames / 2
    assert counts.keys() == {"offer", "claim", "poll", "latest", "array", "copy_free_check"}
    for what, count in counts.items():
        assert count < frames / 100, what


def test_a_million_frames_leave_memory_as_it_was(frugal: RemoteProcess) -> None:
    grown = frugal.call("grow", frames=1_000_000, reply_timeout=100)
    print(f"\na million frames: {grown}")
    assert grown["rss_kib"] < 4096
    assert grown["python_bytes"] < 100_000
