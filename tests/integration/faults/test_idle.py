"""Cost of waiting and working: little processor time, no GIL, no native allocation per frame."""

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
def resource_meter(environment: Environment) -> RemoteProcess:
    """A meter process on a media driver in another process."""
    environment.driver()
    return environment.stack.enter_context(
        RemoteProcess(ResourceMeter, environment.options, environment.stream_id)
    )


@pytest.mark.parametrize("way", ["iterate", "async"])
def test_waiting_consumer_uses_little_cpu(resource_meter: RemoteProcess, way: str) -> None:
    used = resource_meter.call("wait_for_frames", seconds=SECONDS, way=way)
    print(f"\nwaiting ({way}): {100 * used['all']:.1f} % of a core, by thread {used['threads']}")
    assert used["all"] < 0.10, used


def test_idle_process_with_embedded_media_driver_uses_little_cpu(environment: Environment) -> None:
    with RemoteProcess(ResourceMeter, environment.options, environment.stream_id) as remote:
        used = remote.call("wait_for_frames", seconds=SECONDS, way="iterate")
        print(
            f"\nwaiting with an embedded media driver: {100 * used['all']:.1f} % of a core, {used['threads']}"
        )
        assert used["all"] < 0.25, used


@pytest.mark.parametrize("idle", ["backoff", "busy-spin"])
def test_python_threads_run_while_a_consumer_waits(resource_meter: RemoteProcess, idle: str) -> None:
    counts = resource_meter.call("count_during_wait", seconds=1.0, idle=idle)
    print(f"\n{idle}: {counts['during_wait']:,} iterations during a wait, {counts['alone']:,} alone")
    # At least two cores: a spinning wait takes only one.
    assert counts["during_wait"] > counts["alone"] / 4


@pytest.fixture
def counting_malloc(tmp_path: Path) -> Path:
    """A preloaded library that counts the allocations of each thread."""
    library = tmp_path / "libcounting_malloc.so"
    source = Path(__file__).with_name("counting_malloc.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def test_frames_need_no_native_allocation(environment: Environment, counting_malloc: Path) -> None:
    env = {"LD_PRELOAD": str(counting_malloc), "COUNTING_MALLOC": str(counting_malloc)}
    environment.driver()
    frames = 100_000
    with RemoteProcess(ResourceMeter, environment.options, environment.stream_id, env=env) as remote:
        counts: dict[str, Any] = remote.call("count_allocations", frames=frames)
    print(f"\nallocations over {frames:,} frames: {counts}")
    # The counter works: Python must get these objects from the C library.
    assert counts.pop("known") >= frames
    assert counts.pop("received") > frames / 2
    assert counts.pop("matched") > frames / 2
    assert counts.keys() == {"offer", "claim", "poll", "latest", "array", "copy_free_check", "join"}
    for what, count in counts.items():
        assert count < frames / 100, what


def test_memory_does_not_grow_over_a_million_frames(resource_meter: RemoteProcess) -> None:
    grown = resource_meter.call("grow", frames=1_000_000, reply_timeout=100)
    print(f"\na million frames: {grown}")
    assert grown["rss_kib"] < 4096
    assert grown["python_bytes"] < 100_000
