"""Ids of destinations beside a running driver, and beside other bridges (decision 28)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.bridge import BridgeAgent
from tensorpool.driver import DriverAgent, DriverSettings
from tensorpool.driver.config import StreamSettings
from tensorpool.errors import ConfigError, RoleFailed
from tensorpool.runtime.counters import read_aeron_counters
from tensorpool.runtime.runner import Runner
from tests import leaks
from tests.integration.bridge.hosts import DEADLINE_S, Host, Pair, flows, open_host, row, settings_of
from tests.ports import free_port

STATIC = 50_007


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def start_driver(aeron_dir: Path, shm_base: Path, stack: ExitStack) -> Callable[..., None]:
    """Runs a driver on the media driver of `host`, with the settings of a file without `[driver]`."""

    def start(**settings: Any) -> None:
        context = stack.enter_context(
            tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        )
        agent = DriverAgent(
            context.connection.conductor,
            settings=DriverSettings(**settings),
            namespace="default",
            base_dir=shm_base,
            aeron_dir=str(aeron_dir),
            stream_ids=context.stream_ids,
            service_streams=context.service_streams,
            service_token=None,
            announce_period_ns=200_000_000,
            embedded=False,
        )
        stack.enter_context(Runner(agent))
        assert leaks.wait_for(agent.is_ready, timeout=DEADLINE_S)

    return start


@pytest.fixture
def host(aeron_dir: Path, shm_base: Path, stack: ExitStack) -> Host:
    stack.enter_context(tp.MediaDriver(aeron_dir))
    return open_host("default", aeron_dir, shm_base, stack, mode="driver")


def receiving(
    instance: str, *, dest: int = 0, named: int = 0, profile: str = "source", **settings: Any
) -> Any:
    """A receiver of one stream, and with `named` of another into that destination."""
    channels = {
        name: f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
        for name in ("payload_channel", "control_channel", "metadata_channel")
    }
    mapping = {"source_stream_id": 10_000, "dest_stream_id": dest, "profile": profile}
    mappings = [mapping]
    if named:
        mappings.append(mapping | {"source_stream_id": 10_001, "dest_stream_id": named})
    table = {"instance_id": instance, "direction": "receive", "mappings": mappings, **channels, **settings}
    return settings_of(**table)


@pytest.mark.requirement("bridge-4-1", "bridge-4-4", "bridge-10-2")
@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ("50000-50009", f"contains {STATIC}, a static stream of the driver"),
        ("29990-30010", "overlaps the driver's dynamic_ids, 20000-29999"),
        ("61000-61009", r"is not within the driver's bridge_ids \(50000-59999\)"),
    ],
)
def test_bridge_is_refused_for_ids_of_a_running_driver(
    host: Host, start_driver: Callable[..., None], ids: str, reason: str
) -> None:
    start_driver(streams=(StreamSettings(stream_id=STATIC),))
    with pytest.raises(ConfigError, match=f"bridge.dest_stream_id_range: {ids} {reason}"):
        host.bridge(receiving("b", dest_stream_id_range=ids))
    assert host.bridges == []


@pytest.mark.requirement("bridge-10-2")
def test_bridge_is_refused_by_a_driver_that_starts_later(
    host: Host, start_driver: Callable[..., None]
) -> None:
    profile = {"name": "small", "nslots": 8, "pools": ["4KiB"]}
    # With a profile it attaches at once, without waiting for the source.
    settings = receiving("b", profile="small", dest_stream_id_range="29990-30010", profiles=[profile])
    runner = Runner(BridgeAgent(host.context, settings))
    runner.start()
    start_driver()
    assert leaks.wait_for(lambda: runner.error is not None, timeout=DEADLINE_S)
    with pytest.raises(RoleFailed, match="overlaps the driver's dynamic_ids"):
        runner.close()


@pytest.mark.requirement("bridge-10-2")
@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"dest_stream_id_range": "50005-50011"}, "50005-50011 overlaps 50000-50009 of bridge first"),
        ({"dest": 50_003}, "dest_stream_id 50003: in 50000-50009 of bridge first"),
        ({"dest": 50_012}, "dest_stream_id 50012: already used by bridge first"),
        ({"dest_stream_id_range": "50020-50029"}, None),
    ],
)
def test_bridge_is_refused_for_ids_of_another_running_bridge(
    host: Host,
    start_driver: Callable[..., None],
    wait_until: Callable[..., Any],
    second: dict[str, Any],
    reason: str | None,
) -> None:
    start_driver()
    first = host.bridge(receiving("first", named=50_012, dest_stream_id_range="50000-50009"))
    wait_until(first.is_ready, timeout=DEADLINE_S)
    # The counters of a bridge say that it runs: they appear some milliseconds after it is ready.
    wait_until(lambda: has_counters(host.context, "first"), timeout=DEADLINE_S)
    settings = receiving("second", **second)
    if reason is None:
        wait_until(host.bridge(settings).is_ready, timeout=DEADLINE_S)
        return
    with pytest.raises(ConfigError, match=reason):
        host.bridge(settings)
    assert len(host.bridges) == 1


def has_counters(context: tp.Context, instance: str) -> bool:
    label = f"tensorpool: bridge/{instance} sent ("
    return any(counter.label.startswith(label) for counter in read_aeron_counters(context.aeron_dir))


@pytest.mark.requirement("bridge-4-2", "bridge-4-4")
def test_stock_driver_and_stock_bridge_work_together(
    host: Host,
    start_driver: Callable[..., None],
    aeron_dir: Path,
    shm_base: Path,
    stack: ExitStack,
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """Neither `[driver]` nor a range of the bridge is set: the destination is the first id for bridges."""
    start_driver()
    sources = shm_base / "sources"
    here = open_host("here", Path(f"{aeron_dir}-a"), sources, stack)
    stack.callback(sources.rmdir)
    stack.push(here.context)
    producer = here.context.producer(free_stream_id, pools=["4KiB"])
    sender, receiver = Pair(here, host, (free_port(), free_port(), free_port()), wait_until).connect(
        free_stream_id, 0
    )
    wait_until(lambda: row(receiver)["destination"] == "attached", timeout=DEADLINE_S)
    assert row(receiver)["dest_stream_id"] == 50_000
    consumer = host.context.consumer(50_000)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    producer.offer(np.arange(10, dtype=np.uint8))
    assert consumer.receive(DEADLINE_S).copy().tolist() == list(range(10))
