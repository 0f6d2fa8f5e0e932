"""Streams of another host by name: forwarded by a bridge, read as a fallback, or an error with a hint.

Two hosts on one machine, each with its own media driver, driver and shared memory. The registry of the client
knows only the driver of the other host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.bridge import FallbackUri
from tensorpool.discovery import DiscoverySettings
from tensorpool.registry import DriverSource, RegistryAgent, RegistrySettings
from tensorpool.runtime.runner import Runner
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, decode
from tensorpool.transport import StreamAddress
from tests.integration.bridge.hosts import DEADLINE_S, Pair, flows, open_host, settings_of
from tests.integration.discovery.conftest import UNMET_S
from tests.ports import free_port

PERIOD_NS = 200_000_000
PLANNED = 7_000_001


@pytest.fixture
def pair(aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until: Callable[..., Any]) -> Iterator[Pair]:
    announced = f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
    source_config, client_config = tmp_path / "here.toml", tmp_path / "there.toml"
    source_config.write_text(
        f"""
        [driver]
        announce_to = ["{announced}"]
        [[driver.streams]]
        stream_id = {PLANNED}
        name = "planned"
        tags = ["lab"]
        nslots = 4
        pools = ["64KiB"]
        """
    )
    client_config.write_text('[discovery]\nchannel = "aeron:ipc"\n')
    with ExitStack() as stack:
        here = open_host("here", Path(f"{aeron_dir}-a"), shm_base / "a", stack, config=source_config)
        there = open_host("there", Path(f"{aeron_dir}-b"), shm_base / "b", stack, config=client_config)
        source = DriverSource(
            instance_id="here",
            announce_channel=announced,
            announce_period_ns=PERIOD_NS,
            tags=("reach:bridge",),
        )
        registry = RegistryAgent(
            there.context.connection,
            settings=RegistrySettings(drivers=(source,)),
            discovery=DiscoverySettings(),
        )
        stack.enter_context(Runner(registry))
        yield Pair(here, there, (free_port(), free_port(), free_port()), wait_until)
    for name in ("a", "b"):
        (shm_base / name).rmdir()


def is_known(pair: Pair, name: str, producer: tp.Producer) -> bool:
    """Whether the registry has the present epoch of a producer."""
    return [stream.epoch for stream in pair.there.context.discover(name=name)] == [producer.epoch]


def test_stream_without_a_bridge_is_an_error_with_a_hint(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    # A local stream of another name has the same id.
    camera = pair.here.context.producer(free_stream_id, pools=["64KiB"], name="far")
    other = pair.there.context.producer(free_stream_id, pools=["64KiB"], name="near")
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    (found,) = pair.there.context.discover(name="far")
    assert (found.needs_bridge, found.fallback_uri) == (True, None)
    with pytest.raises(
        tp.StreamNotLocal, match=rf"no bridge has a copy of it.*source_stream_id {free_stream_id}"
    ) as error:
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
    assert (error.value.stream_id, error.value.driver_instance_id) == (free_stream_id, "here")
    assert other.attached


@pytest.mark.parametrize("named_by", ["producer", "driver"])
def test_forwarded_stream_is_found_by_its_source_s_name(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], named_by: str
) -> None:
    dest = free_stream_ids()
    if named_by == "producer":
        name, source = "camera-1", free_stream_ids()
        camera = pair.here.context.producer(source, pools=["64KiB"], name=name, tags=["lab"])
    else:
        name, source = "planned", PLANNED
        camera = pair.here.context.producer(source)
    there = pair.there.context
    metadata = _native.Subscription(
        there.connection.conductor, "aeron:ipc?tether=false", there.stream_ids.metadata
    )
    wait_until(lambda: metadata.is_ready, timeout=DEADLINE_S)
    ends = pair.connect(source, dest)
    wait_until(lambda: is_known(pair, name, camera), timeout=DEADLINE_S)
    # The consumer waits for the first frame of the bridge.
    with there.consumer(name=name, tags=["lab"], find_timeout=DEADLINE_S) as frames:
        assert frames.stream_id == dest
        wait_until(lambda: flows(*ends, camera, frames), timeout=DEADLINE_S)
        camera.offer(np.arange(7))
        assert frames.receive(DEADLINE_S).copy().tolist() == list(range(7))
    # Metadata of the source's driver is not forwarded as metadata of frames.
    received = [
        message
        for message in map(decode, metadata.poll(1024))
        if isinstance(message, DataSourceAnnounce | DataSourceMeta)
    ]
    # Of version 0 there is only the announce of a producer without metadata, which names nothing.
    unnamed = [message for message in received if message.meta_version == 0]
    assert all(isinstance(message, DataSourceAnnounce) and not message.name for message in unnamed)
    assert any(message.meta_version for message in received) == (named_by == "producer")
    metadata.close()


def fallback_tag(pair: Pair, stream_id: int) -> str:
    payload, control, _ = pair.common().values()
    return f"reach:{FallbackUri('b', StreamAddress(payload, 3000), StreamAddress(control, 3001), stream_id)}"


def test_stream_with_a_bridge_tag_is_read_as_fallback(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    tag = fallback_tag(pair, free_stream_id)
    camera = pair.here.context.producer(
        free_stream_id, pools=["64KiB"], nslots=8, name="far", tags=["lab", tag]
    )
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    with pytest.raises(tp.StreamNotLocal, match="the bridge of its tag announces nothing"):
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
    table = pair.common(mappings=[{"source_stream_id": free_stream_id, "dest_stream_id": 50_000}])
    pair.here.bridge(settings_of(instance_id="b", direction="send", **table))
    frames = pair.there.context.consumer(name="far", find_timeout=DEADLINE_S)

    def arrived() -> Any:
        camera.offer(np.full(7, camera.next_seq % 200, np.uint8))
        return next(iter(frames.poll()), None)

    frame = wait_until(arrived, timeout=DEADLINE_S)
    assert frame.copy().tolist() == [frame.seq % 200] * 7
    # It holds no lease of the local driver.
    assert frames.lease() is None
    frames.close()


def test_invalid_fallback_uri_in_a_tag_is_not_used(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    tag = fallback_tag(pair, free_stream_id).replace("udp", "ipc")
    camera = pair.here.context.producer(free_stream_id, pools=["64KiB"], name="far", tags=[tag])
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    with pytest.raises(tp.StreamNotLocal, match="cannot be used"):
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
