"""Control and QoS streams of single streams, so that a thousand streams do not share one (decision 41)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.context.config import AeronSettings
from tensorpool.context.startup import load_config, read_stream_ids
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.recorder.messages import OBSERVED_STREAMS
from tensorpool.runtime.runner import Runner
from tensorpool.sbe import (
    ConsumerConfigR2,
    ConsumerHello,
    DataSourceAnnounce,
    QosConsumer,
    QosProducer,
    TraceLinkSet,
    decode,
)
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import SupervisorSettings
from tensorpool.transport import DedicatedStreams
from tests.integration.channels.kinds import Kinds

DEADLINE_S = 60.0


class Listener:
    """The messages of one stream."""

    def __init__(self, ctx: tp.Context, stream_id: int) -> None:
        self.subscription = ctx.connection.subscription(stream_id)
        self.kinds: set[type] = set()

    def poll(self) -> set[type]:
        self.kinds |= {type(decode(message)) for message in self.subscription.poll(1024)}
        return self.kinds


def test_endpoints_with_dedicated_streams_leave_the_shared_ones_alone(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    dedicated: dict[str, Any] = {"control_stream_id": 6100, "qos_stream_id": 6200}
    with tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx:
        ids = ctx.stream_ids
        shared = [Listener(ctx, stream_id) for stream_id in (ids.control, ids.qos)]
        control, qos = Listener(ctx, 6100), Listener(ctx, 6200)
        wait_until(lambda: all(each.subscription.is_ready for each in (*shared, control, qos)))
        producer = ctx.producer(free_stream_id, **dedicated)
        # Progress without a per-consumer stream comes on the control stream.
        consumer = ctx.consumer(free_stream_id, progress=True, per_consumer_control=False, **dedicated)
        assert producer.wait_for_consumer(DEADLINE_S)
        assert producer.offer(np.arange(3)).outcome == "published"
        assert consumer.receive(DEADLINE_S).shape == (3,)
        wait_until(lambda: ConsumerHello in control.poll())
        wait_until(lambda: {QosConsumer, QosProducer} <= qos.poll())
        wait_until(lambda: producer.has_progress_consumers)
        for listener in shared:
            assert not {ConsumerHello, QosConsumer, QosProducer} & listener.poll()
        for listener in (*shared, control, qos):
            listener.subscription.close()


@pytest.mark.parametrize("name", ["control_stream_id", "qos_stream_id"])
def test_dedicated_stream_must_be_an_aeron_stream(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, name: str
) -> None:
    dedicated: dict[str, Any] = {name: 0}
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        pytest.raises(tp.ConfigError, match="stream id 0: use 1 to"),
    ):
        ctx.producer(free_stream_id, **dedicated)


DEDICATED = DedicatedStreams(0, descriptor=6110, control=6100, qos=6200, metadata=6300)


def test_monitor_and_recorder_read_the_dedicated_streams_of_a_stream(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
) -> None:
    ids = tp.StreamIds(dedicated=(replace(DEDICATED, stream_id=free_stream_id),))
    root = tmp_path / "run"
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base, stream_ids=ids) as ctx,
        tp.open("driver", aeron_dir=aeron_dir, shm_base_dir=shm_base, stream_ids=ids) as other,
        SystemMonitor(other.connection) as monitor,
    ):
        # Neither names the streams: the context knows them.
        producer = ctx.producer(free_stream_id, name="camera-1", traces=True)
        consumer = other.consumer(free_stream_id)
        with other.record(root, streams=[free_stream_id]) as recorder:
            wait_until(lambda: recorder.mapped().get(free_stream_id) is not None, timeout=DEADLINE_S)
            assert producer.wait_for_consumer(DEADLINE_S)
            producer.offer(np.arange(3), parents=[7, 8])
            assert consumer.receive(DEADLINE_S).shape == (3,)
            listener = Kinds(other, free_stream_id)
            wait_until(lambda: listener.poll(monitor) >= OBSERVED_STREAMS, timeout=DEADLINE_S)
            listener.close()
            wait_until(lambda: consumer.source_name == "camera-1", timeout=DEADLINE_S)
    with recording.open(root) as opened:
        kinds = {
            type(decode(message))
            for table in ("qos", "metadata")
            for message in opened.table(table).column("message").to_pylist()
        }
    assert {QosConsumer, DataSourceAnnounce, TraceLinkSet} <= kinds


def test_orders_of_a_supervisor_go_to_the_dedicated_control_stream(
    aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    """An endpoint of another implementation reads no other control stream than its own."""
    with_dedicated, without = free_stream_ids(), free_stream_ids()
    ids = tp.StreamIds(dedicated=(DedicatedStreams(with_dedicated, control=6100),))
    options: dict[str, Any] = {"aeron_dir": aeron_dir, "shm_base_dir": shm_base, "stream_ids": ids}
    with tp.open("embedded", **options) as ctx, ExitStack() as stack:
        agent = SupervisorAgent(ctx, settings=SupervisorSettings())
        stack.enter_context(Runner(agent))
        listeners = {stream_id: Listener(ctx, stream_id) for stream_id in (ids.control, 6100)}
        for listener in listeners.values():
            stack.callback(listener.subscription.close)
        consumers = []
        for stream_id in (with_dedicated, without):
            stack.enter_context(ctx.producer(stream_id))
            consumers.append(stack.enter_context(ctx.consumer(stream_id)))
        supervisor = stack.enter_context(ctx.service("supervisor", timeout=DEADLINE_S))
        for consumer, control in zip(consumers, (6100, ids.control), strict=True):
            wait_until(lambda consumer=consumer: is_known(agent, consumer), timeout=DEADLINE_S)
            number = consumer.state().consumer_id
            supervisor.call("limit", stream_id=consumer.stream_id, consumer_id=number, max_rate_hz=4)
            wait_until(lambda consumer=consumer: consumer.state().mode == "rate_limited", timeout=DEADLINE_S)
            # The order itself, which has a rate; configs of producers have none.
            wait_until(lambda control=control: ConsumerConfigR2 in listeners[control].poll())
            if control == 6100:
                assert ConsumerConfigR2 not in listeners[ids.control].poll()


def is_known(agent: SupervisorAgent, consumer: tp.Consumer) -> bool:
    number = consumer.state().consumer_id
    return number is not None and agent.latest.consumer(consumer.stream_id, number) is not None


def test_dedicated_streams_are_a_table_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "tensorpool.toml"
    file.write_text("[[aeron.streams]]\nstream_id = 7\ncontrol_stream_id = 6100\nqos_stream_id = 6200\n")
    ids = read_stream_ids(load_config(file)[AeronSettings])
    assert ids.dedicated == (DedicatedStreams(7, control=6100, qos=6200),)
    assert [address.stream_id for address in ids.control_addresses] == [1000, 6100]
    assert ids.control_address_of(7).stream_id == 6100
    assert ids.control_address_of(8).stream_id == 1000
    file.write_text(2 * "[[aeron.streams]]\nstream_id = 7\n")
    with pytest.raises(tp.InvalidConfig, match="stream 7 is listed 2 times"):
        load_config(file)
