"""Limits that a producer declines: the consumer keeps them itself, and the supervisor tries again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.errors import CodecError
from tensorpool.monitor.snapshot import ConsumerView
from tensorpool.sbe import ConsumerConfig, decode
from tensorpool.sbe.wire import ConsumerConfigR2, Mode
from tensorpool.supervisor.agent import SupervisorAgent
from tests.integration.bridge.hosts import DEADLINE_S, Pair, flows, open_host
from tests.integration.supervisor.test_policy import supervising
from tests.ports import free_port


def decode_or_none(message: bytes) -> object:
    try:
        return decode(message)
    except CodecError:
        return None


def proposals(received: list[bytes], consumer_id: int) -> set[int]:
    """The descriptor streams that the supervisor proposed for a limited consumer."""
    ids = set()
    for config in map(decode_or_none, received):
        if not isinstance(config, ConsumerConfig | ConsumerConfigR2) or config.consumer_id != consumer_id:
            continue
        if config.mode is Mode.RATE_LIMITED and config.descriptor_stream_id:
            ids.add(config.descriptor_stream_id)
    return ids


def answered_modes(received: list[bytes], consumer_id: int) -> set[Mode]:
    """The modes in the producer's own answers. Orders of a supervisor have a rate."""
    configs = (config for config in map(decode_or_none, received) if isinstance(config, ConsumerConfig))
    return {config.mode for config in configs if config.consumer_id == consumer_id}


def view_of(agent: SupervisorAgent, stream_id: int, consumer_id: int) -> ConsumerView:
    view = agent.latest.consumer(stream_id, consumer_id)
    assert view is not None
    return view


@pytest.fixture
def pair(aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]) -> Iterator[Pair]:
    with ExitStack() as stack:
        here = open_host("here", Path(f"{aeron_dir}-a"), shm_base / "a", stack)
        there = open_host("there", Path(f"{aeron_dir}-b"), shm_base / "b", stack)
        yield Pair(here, there, (free_port(), free_port(), free_port()), wait_until)
    for name in ("a", "b"):
        (shm_base / name).rmdir()


@pytest.mark.requirement("bridge-4-5")
def test_declined_limit_on_a_bridged_stream_is_kept_by_the_consumer(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ends = pair.connect(source, dest)
    local = pair.there.context
    consumer = local.consumer(dest)
    control = local.connection.subscription(local.stream_ids.control)
    received: list[bytes] = []
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    consumer_id = consumer.state().consumer_id or 0
    with supervising(local) as agent, local.service("supervisor", timeout=60) as supervisor:
        wait_until(lambda: agent.latest.consumer(dest, consumer_id) is not None, timeout=DEADLINE_S)
        supervisor.call("limit", stream_id=dest, consumer_id=consumer_id, max_rate_hz=1)

        def has_tried_twice() -> bool:
            received.extend(control.poll())
            return len(proposals(received, consumer_id)) >= 2

        # A bridge opens no per-consumer streams, so every attempt is declined, with another id each time. The
        # producer's answers never say that it limits.
        wait_until(has_tried_twice, timeout=DEADLINE_S)
        assert answered_modes(received, consumer_id) == {Mode.STREAM}
        assert consumer.state().gates_locally
        # The consumer heeds the order, and its QoS reports say so.
        wait_until(lambda: view_of(agent, dest, consumer_id).mode == "rate_limited", timeout=DEADLINE_S)
        times_ns = count(10**15, 10**7)

        def are_held_back() -> bool:
            producer.offer(np.zeros(10, np.uint8), timestamp_ns=next(times_ns))
            consumer.poll()
            return consumer.ledger().dropped["rate_limited"] >= 20

        wait_until(are_held_back, timeout=DEADLINE_S)
        supervisor.call("release", stream_id=dest, consumer_id=consumer_id)
        wait_until(lambda: consumer.state().mode == "stream", timeout=DEADLINE_S)
        for number in range(1, 21):
            producer.offer(np.full(10, number, np.uint8))
            # Zeros are of before: they were on their way.
            values = (consumer.receive(DEADLINE_S).copy()[0] for _ in range(1000))
            assert next(value for value in values if value) == number
    control.close()


def test_next_attempt_of_a_declined_limit_is_reached(
    options: dict[str, Any],
    free_stream_id: int,
    wait_until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor proposes ids that the producer's configuration does not allow, then one that it does."""
    ids = "TENSORPOOL_CONTEXT__PER_CONSUMER_DESCRIPTOR_IDS"
    with ExitStack() as stack:
        monkeypatch.setenv(ids, "31000-31003")
        hub = stack.enter_context(tp.open("embedded", **options))
        monkeypatch.setenv(ids, "31002-31003")
        source = stack.enter_context(tp.open("driver", **options))
        producer = stack.enter_context(source.producer(free_stream_id, pools=["4KiB"], nslots=64))
        # The first proposal follows from the ids: take a consumer for which it is not allowed.
        while True:
            consumer = stack.enter_context(hub.consumer(free_stream_id))
            wait_until(lambda: consumer.epoch == producer.epoch)  # noqa: B023  called at once
            consumer_id = consumer.state().consumer_id or 0
            if hash((free_stream_id, consumer_id)) % 4 < 2:
                break
        control = hub.connection.subscription(hub.stream_ids.control)
        stack.callback(control.close)
        received: list[bytes] = []
        agent = stack.enter_context(supervising(hub))
        supervisor = stack.enter_context(hub.service("supervisor", timeout=60))
        wait_until(lambda: agent.latest.consumer(free_stream_id, consumer_id) is not None, timeout=60)
        supervisor.call("limit", stream_id=free_stream_id, consumer_id=consumer_id, max_rate_hz=4)

        def is_limited() -> bool:
            received.extend(control.poll())
            # Until then it keeps the rate itself.
            assert consumer.state().mode == "rate_limited" or not consumer.state().gates_locally
            return consumer.state().on_per_consumer

        wait_until(is_limited, timeout=120)
        assert (consumer.state().descriptors or ("", 0))[1] in (31_002, 31_003)
        proposed = proposals(received, consumer_id)
        assert proposed & {31_000, 31_001}
        wait_until(lambda: view_of(agent, free_stream_id, consumer_id).mode == "rate_limited")
        view = view_of(agent, free_stream_id, consumer_id)
        assert view.per_consumer_stream_id in (31_002, 31_003)
