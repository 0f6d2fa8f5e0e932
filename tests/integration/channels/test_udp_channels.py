"""Control, QoS and metadata on UDP channels, as wire §3 allows, for every role."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.bridge import BridgeAgent
from tensorpool.context.config import AeronSettings
from tensorpool.errors import InvalidConfig
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.recorder.messages import OBSERVED_STREAMS
from tensorpool.runtime.config import Config
from tensorpool.runtime.runner import Runner
from tensorpool.sbe import DataSourceMeta, QosConsumer, TraceLinkSet, decode
from tests.integration.bridge.hosts import settings_of
from tests.integration.channels.kinds import Kinds
from tests.ports import free_port

DEADLINE_S = 60.0


def test_all_roles_use_the_configured_udp_channels(
    open_context: Callable[..., tp.Context],
    free_stream_ids: Callable[[], int],
    tmp_path: Path,
    wait_until: Callable[..., Any],
) -> None:
    hub, other = open_context("embedded"), open_context("driver")
    ids = hub.stream_ids
    assert all(
        channel.startswith("aeron:udp")
        for channel in (ids.control_channel, ids.qos_channel, ids.metadata_channel)
    )
    # The streams that would be used without the settings: nothing arrives there.
    silent = [hub.connection.subscription(each) for each in (ids.control, ids.qos, ids.metadata)]
    hub.connection.wait_ready(*silent)
    stream_id = free_stream_ids()
    monitor, kinds = SystemMonitor(other.connection), Kinds(other, stream_id)
    root = tmp_path / "run"
    try:
        with (
            hub.producer(
                stream_id, name="camera-1", metadata={"gain": 3}, pools=["4KiB"], nslots=64, traces=True
            ) as producer,
            other.consumer(name="camera-1", find_timeout=DEADLINE_S) as consumer,
            other.record(root, streams=[stream_id]) as recorder,
        ):
            assert producer.wait_for_consumer(DEADLINE_S)
            wait_until(lambda: recorder.mapped().get(stream_id) is not None, timeout=DEADLINE_S)
            assert producer.offer(np.arange(3), parents=[7, 8])
            frame = consumer.receive(DEADLINE_S)
            assert frame.array.tolist() == [0, 1, 2]
            metadata = wait_until(lambda: consumer.metadata, timeout=DEADLINE_S)
            assert metadata["gain"] == 3

            wait_until(lambda: kinds.poll(monitor) >= OBSERVED_STREAMS, timeout=DEADLINE_S)
            view = monitor.snapshot()
            assert stream_id in {stream.stream_id for stream in view.streams}
            wait_until(lambda: recorder.stats().rows >= 1, timeout=DEADLINE_S)
        for subscription in silent:
            assert subscription.poll(1024) == []
    finally:
        monitor.close()
        kinds.close()
        for subscription in silent:
            subscription.close()
    with recording.open(root) as opened:
        messages = [
            decode(message)
            for table in ("qos", "metadata")
            for message in opened.table(table).column("message").to_pylist()
        ]
    assert {DataSourceMeta, QosConsumer, TraceLinkSet} <= {type(message) for message in messages}


def test_bridge_reads_links_and_metadata_from_the_configured_channels(
    open_context: Callable[..., tp.Context],
    aeron_dir: Path,
    shm_base: Path,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
) -> None:
    here = open_context("embedded")
    source, dest = free_stream_ids(), free_stream_ids()
    base = shm_base / "there"
    base.mkdir()
    table = {
        f"{kind}_channel": f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
        for kind in ("payload", "control", "metadata")
    } | {"mappings": [{"source_stream_id": source, "dest_stream_id": dest}]}
    with tp.open("embedded", aeron_dir=f"{aeron_dir}-b", shm_base_dir=base, namespace="there") as there:
        links = there.connection.subscription(there.stream_ids.control)
        receiver = BridgeAgent(there, settings_of(instance_id="there", direction="receive", **table))
        sender = BridgeAgent(here, settings_of(instance_id="here", **table))
        with (
            Runner(receiver),
            Runner(sender),
            here.producer(
                source, name="camera-1", metadata={"gain": 3}, pools=["4KiB"], traces=True
            ) as producer,
            there.consumer(dest) as consumer,
        ):
            received: list[TraceLinkSet] = []

            def crosses() -> bool:
                producer.offer(np.arange(3), parents=[7, 8])
                messages = map(decode, links.poll(1024))
                received.extend(each for each in messages if isinstance(each, TraceLinkSet))
                frames = consumer.poll()
                return bool(received and frames and consumer.source_name == "camera-1")

            wait_until(crosses, timeout=DEADLINE_S)
            assert received[-1].stream_id == dest
        links.close()
    base.rmdir()


@pytest.mark.parametrize("kind", ["control", "qos", "metadata"])
@pytest.mark.parametrize("channel", ["aeron:udp", "aeron:tcp?endpoint=a:1", "ipc"])
def test_channel_of_another_kind_is_refused(kind: str, channel: str) -> None:
    with pytest.raises(InvalidConfig, match=f"aeron.{kind}_channel"):
        Config.load(AeronSettings, tables={"aeron": {f"{kind}_channel": channel}}, environ={})
