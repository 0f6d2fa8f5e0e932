"""Streams of another machine by name: as a bridge has brought them here, read off it, or a helpful error.

Two hosts on one machine, each with a media driver, a driver and memory of its own. The one that looks asks a
registry which knows the other's driver alone.
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
    telling, poller = tmp_path / "here.toml", tmp_path / "there.toml"
    telling.write_text(
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
    poller.write_text('[discovery]\nchannel = "aeron:ipc"\n')
    with ExitStack() as stack:
        here = open_host("here", Path(f"{aeron_dir}-a"), shm_base / "a", stack, config=telling)
        there = open_host("there", Path(f"{aeron_dir}-b"), shm_base / "b", stack, config=poller)
        source = DriverSource(
            instance_id="here",
            announce_channel=announced,
            announce_period_ns=PERIOD_NS,
            tags=("reach:bridge",),
        )
        registry = RegistryAgent(
            there.context._conductor,
            settings=RegistrySettings(drivers=(source,)),
            discovery=DiscoverySettings(),
            service_streams=there.context.service_streams,
        )
        stack.enter_context(Runner(registry))
        yield Pair(here, there, (free_port(), free_port(), free_port()), wait_until)
    for name in ("a", "b"):
        (shm_base / name).rmdir()


def is_known(pair: Pair, name: str, producer: tp.Producer) -> bool:
    """Whether the registry has heard of it as it is now."""
    return [one.epoch for one in pair.there.context.discover(name=name)] == [producer.epoch]


def test_a_stream_that_no_bridge_has_brought_is_an_error_that_says_what_to_do(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    # The same id is taken here, by a stream of another name.
    camera = pair.here.context.producer(free_stream_id, pools=["64KiB"], name="far")
    other = pair.there.context.producer(free_stream_id, pools=["64KiB"], name="near")
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    (found,) = pair.there.context.discover(name="far")
    assert (found.needs_bridge, found.fallback_uri) == (True, None)
    with pytest.raises(
        tp.StreamNotLocal, match=rf"no bridge has brought it.*source_stream_id {free_stream_id}"
    ) as error:
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
    assert (error.value.stream_id, error.value.driver_instance_id) == (free_stream_id, "here")
    assert other.attached


@pytest.mark.parametrize("said_by", ["its producer", "its driver"])
def test_a_stream_that_a_bridge_has_brought_is_found_by_the_name_that_it_has_at_home(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], said_by: str
) -> None:
    dest = free_stream_ids()
    if said_by == "its producer":
        name, source = "camera-1", free_stream_ids()
        camera = pair.here.context.producer(source, pools=["64KiB"], name=name, tags=["lab"])
    else:
        name, source = "planned", PLANNED
        camera = pair.here.context.producer(source)
    there = pair.there.context
    ear = _native.Subscription(there._conductor, "aeron:ipc?tether=false", there.stream_ids.metadata)
    wait_until(lambda: ear.is_ready, timeout=DEADLINE_S)
    ends = pair.connect(source, dest)
    wait_until(lambda: is_known(pair, name, camera), timeout=DEADLINE_S)
    # It is asked for before the bridge has the first frame, and waited for.
    with there.consumer(name=name, tags=["lab"], find_timeout=DEADLINE_S) as frames:
        assert frames.stream_id == dest
        wait_until(lambda: flows(*ends, camera, frames), timeout=DEADLINE_S)
        camera.offer(np.arange(7))
        assert frames.receive(DEADLINE_S).copy().tolist() == list(range(7))
    # What the source's driver says of it is no metadata of frames.
    said = [
        one for one in map(decode, ear.poll(1024)) if isinstance(one, DataSourceAnnounce | DataSourceMeta)
    ]
    assert all(one.meta_version > 0 for one in said)
    assert bool(said) == (said_by == "its producer")
    ear.close()


def fallback_tag(pair: Pair, stream_id: int) -> str:
    payload, control, _ = pair.common().values()
    return f"reach:{FallbackUri('b', StreamAddress(payload, 3000), StreamAddress(control, 3001), stream_id)}"


def test_a_stream_whose_tags_name_a_bridge_is_read_off_it(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    tag = fallback_tag(pair, free_stream_id)
    camera = pair.here.context.producer(
        free_stream_id, pools=["64KiB"], nslots=8, name="far", tags=["lab", tag]
    )
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    with pytest.raises(tp.StreamNotLocal, match="the bridge that it names says nothing"):
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
    table = pair.common(mappings=[{"source_stream_id": free_stream_id, "dest_stream_id": 50_000}])
    pair.here.bridge(settings_of(instance_id="b", direction="send", **table))
    frames = pair.there.context.consumer(name="far", find_timeout=DEADLINE_S)

    def arrived() -> Any:
        camera.offer(np.full(7, camera.next_seq % 200, np.uint8))
        return next(iter(frames.poll()), None)

    frame = wait_until(arrived, timeout=DEADLINE_S)
    assert frame.copy().tolist() == [frame.seq % 200] * 7
    # It needs nothing of the driver here, and leaves nothing: the fixtures look.
    assert frames.lease() is None
    frames.close()


def test_a_way_that_a_stranger_made_up_is_not_followed(
    pair: Pair, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    tag = fallback_tag(pair, free_stream_id).replace("udp", "ipc")
    camera = pair.here.context.producer(free_stream_id, pools=["64KiB"], name="far", tags=[tag])
    wait_until(lambda: is_known(pair, "far", camera), timeout=DEADLINE_S)
    with pytest.raises(tp.StreamNotLocal, match="cannot be used"):
        pair.there.context.consumer(name="far", find_timeout=UNMET_S)
