"""Destinations: exclusive producers, with a given id or one of a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorpool.bridge import BridgeAgent
from tensorpool.errors import RoleFailed
from tensorpool.runtime.runner import Runner
from tests import leaks
from tests.integration.bridge.hosts import DEADLINE_S, Pair, flows, row, settings_of


@pytest.mark.requirement("bridge-4-2", "bridge-4-3")
def test_destination_with_a_producer_fails_the_bridge(pair: Pair, free_stream_ids: Callable[[], int]):
    source, dest = free_stream_ids(), free_stream_ids()
    rival = pair.there.context.producer(dest, pools=["4KiB"])
    mapping = {"source_stream_id": source, "dest_stream_id": dest, "profile": "driver"}
    table = pair.common(mappings=[mapping], direction="receive")
    runner = Runner(BridgeAgent(pair.there.context, settings_of(instance_id="there", **table)))
    runner.start()
    assert leaks.wait_for(lambda: runner.error is not None, timeout=DEADLINE_S)
    with pytest.raises(RoleFailed, match=rf"mappings\[0\].dest_stream_id {dest}"):
        runner.close()
    assert rival.attached


@pytest.mark.requirement("bridge-4-2", "bridge-4-3", "bridge-4-4")
def test_dynamic_destination_gets_the_first_free_id(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, first = free_stream_ids(), 50_000
    taken = pair.there.context.producer(first, pools=["4KiB"])
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, receiver = pair.connect(source, 0, dest_stream_id_range=[first, first + 9])
    wait_until(lambda: row(receiver)["destination"] == "attached", timeout=DEADLINE_S)
    assert row(receiver)["dest_stream_id"] == first + 1
    consumer = pair.there.context.consumer(first + 1)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    producer.offer(np.arange(10, dtype=np.uint8))
    assert consumer.receive(DEADLINE_S).copy().tolist() == list(range(10))
    assert taken.attached


@pytest.mark.requirement("bridge-4-5")
def test_destination_declines_per_consumer_streams(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ends = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest, per_consumer_stream=True)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: consumer.state().declined, timeout=DEADLINE_S)
    producer.offer(np.zeros(10, np.uint8))
    assert consumer.receive(DEADLINE_S).nbytes == 10
    assert not consumer.state().on_per_consumer


@pytest.mark.requirement("bridge-5.2-9", "bridge-6-9")
def test_frame_larger_than_the_pools_is_dropped_as_no_pool(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["64KiB"])
    small = {"name": "small", "nslots": 8, "pools": ["4KiB"]}
    sender, receiver = pair.connect(source, dest, mapping={"profile": "small"}, profiles=[small])
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    for size in (100, 5000, 100):
        producer.offer(np.zeros(size, np.uint8))
    wait_until(lambda: row(receiver)["dropped"] == {"no_pool": 1}, timeout=DEADLINE_S)
    assert [consumer.receive(DEADLINE_S).seq for _ in range(2)] == [0, 2]
    # The sender published its first ledger before its first frame, and a frame has arrived.
    assert row(receiver)["ledger"] is not None
    wait_until(lambda: row(receiver)["ledger"]["published"] == 3, timeout=DEADLINE_S)
    assert row(receiver)["ledger"]["dropped"] == {"sender": 0, "network": 0, "receiver": 1}
