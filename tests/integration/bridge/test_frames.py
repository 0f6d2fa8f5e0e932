"""Frames of one host in the shared memory of another, over UDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.integration.bridge.hosts import DEADLINE_S, Pair, flows, row

SIZES = (0, 1, 1000, 1024, 1025, 65_536, 655_360)


def array(number: int, size: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.requirement("bridge-6-10", "bridge-6-11", "bridge-7-1", "bridge-8-5", "bridge-10-1")
def test_delivered_frames_equal_the_offered_frames(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["64KiB", "1MiB"], nslots=16)
    sender, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    for number, size in enumerate(SIZES):
        sent = array(number, size).reshape(1, size)
        offered = producer.offer(sent, timestamp_ns=1000 + number)
        frame = consumer.receive(DEADLINE_S)
        assert frame.seq == offered.seq
        assert frame.timestamp_ns == 1000 + number
        assert frame.shape == (1, size)
        assert frame.copy().tobytes() == sent.tobytes()
    assert row(receiver)["delivered"] == len(SIZES)
    assert consumer.epoch != producer.epoch
    wait_until(lambda: (row(receiver)["ledger"] or {}).get("published") == len(SIZES))
    assert row(receiver)["ledger"] == {
        "published": len(SIZES),
        "delivered": len(SIZES),
        "dropped": {"sender": 0, "network": 0, "receiver": 0},
        "exact": True,
        "whole": True,
    }
    assert row(sender)["sent"] == len(SIZES)


def test_frames_overwritten_during_sending_are_counted(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["1MiB"], nslots=2)
    deep = {"name": "deep", "nslots": 64, "pools": ["1MiB"]}
    sender, receiver = pair.connect(source, dest, mapping={"profile": "deep"}, profiles=[deep])
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    seen = 0

    def is_enough() -> bool:
        nonlocal seen
        # A burst that is faster than the network: slots are overwritten while they are sent.
        for _ in range(20):
            producer.offer(np.full(640 << 10, producer.next_seq % 251, np.uint8))
        for frame in consumer.poll():
            with frame:
                assert (frame.array == frame.seq % 251).all(), frame.seq
            seen += 1
        return seen > 5 and row(sender)["dropped"].get("overwritten", 0) > 5

    wait_until(is_enough, timeout=DEADLINE_S)
    committed = producer.next_seq

    def is_reported() -> bool:
        ledger = row(receiver)["ledger"]
        return bool(ledger and ledger["published"] == committed and ledger["dropped"]["network"] == 0)

    wait_until(is_reported, timeout=DEADLINE_S)
    ledger = row(receiver)["ledger"]
    assert ledger["published"] == ledger["delivered"] + ledger["dropped"]["sender"]
    assert ledger["exact"]
