"""Frames of one host in the shared memory of another, over UDP."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
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
    assert row(sender)["sent"] == sender.sender_counters(source).sent == len(SIZES)
    with pytest.raises(KeyError):
        sender.sender_counters(dest)


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


def test_frames_with_padded_rows_keep_their_strides(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16)
    sender, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    # A frame of several chunks, one of a single chunk, and columns with padding.
    for shape, order, strides in (
        ((40, 100), "C", (256, 2)),
        ((3, 4), "C", (64, 2)),
        ((100, 30), "F", (2, 1024)),
    ):
        image = np.random.default_rng(1).integers(0, 1 << 16, shape, dtype=np.uint16)
        with producer.claim(shape, "u2", order=order, strides=strides) as slot:
            slot.array[:] = image
        frame = consumer.receive(DEADLINE_S)
        assert (frame.array.strides, frame.array.tolist()) == (strides, image.tolist())
    assert row(receiver)["dropped"] == {}


def test_requested_rate_of_a_bridged_stream_is_kept_by_the_consumer(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    """A bridge grants no per-consumer stream: the consumer holds frames back itself, and says so."""
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"], nslots=1024)
    ends = pair.connect(source, dest)
    with pair.there.context.consumer(dest, max_rate_hz=5) as consumer:
        wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
        wait_until(lambda: consumer.state().gates_locally, timeout=DEADLINE_S)
        assert (consumer.state().mode, consumer.state().on_per_consumer) == ("rate_limited", False)
        times: list[int] = []
        numbers = count()

        def offer() -> None:
            # A hundred frames a second, by their own time.
            number = next(numbers)
            producer.offer(np.full(10, number % 256, np.uint8), timestamp_ns=10**15 + number * 10**7)

        for _ in range(200):
            offer()

        def all_counted() -> bool:
            # The last frames might be lost on the way, which only later ones show.
            offer()
            times.extend(frame.timestamp_ns for frame in consumer.poll())
            return consumer.ledger().span >= 200

        wait_until(all_counted, timeout=DEADLINE_S)
        assert len(times) >= 2
        # The gate lets the first frame pass at once, and then keeps a schedule.
        assert len(times) <= (times[-1] - times[0]) / 2e8 + 2
        ledger = consumer.ledger()
        assert ledger.dropped["rate_limited"] > 100
        assert ledger.span == ledger.received + sum(ledger.dropped.values())
