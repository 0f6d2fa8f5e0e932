"""New epochs of a source, and restarted bridges."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.bridge import BridgeAgent
from tests.integration.bridge.hosts import DEADLINE_S, Pair, row, settings_of


def receive_after(
    producer: tp.Producer, consumer: tp.Consumer, epoch: int, wait_until: Callable[..., Any]
) -> Any:
    """Offers until a frame of a later local epoch than `epoch` is received."""

    def arrived() -> Any:
        producer.offer(np.full(100, 7, np.uint8))
        return next((frame for frame in consumer.poll() if frame.epoch > epoch), None)

    return wait_until(arrived, timeout=DEADLINE_S)


@pytest.mark.requirement("bridge-8-1", "bridge-8-4", "bridge-8-5")
def test_new_source_epoch_begins_a_new_local_epoch(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    _, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    epochs = [0]
    for _ in range(3):
        with pair.here.context.producer(source, pools=["4KiB"]) as producer:
            frame = receive_after(producer, consumer, epochs[-1], wait_until)
            assert frame.copy().tobytes() == bytes([7]) * 100
            epochs.append(frame.epoch)
            assert row(receiver)["source_epoch"] == str(producer.epoch)
    assert epochs == sorted(set(epochs))


@pytest.mark.requirement("bridge-8-5")
def test_restarted_receiver_continues_in_a_later_epoch(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, _ = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    first = receive_after(producer, consumer, 0, wait_until)
    pair.there.bridges.pop().close()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    receiver = pair.there.bridge(
        settings_of(instance_id="restarted", direction="receive", **pair.common(mappings=[mapping]))
    )
    second = receive_after(producer, consumer, first.epoch, wait_until)
    assert second.seq > first.seq
    settle(sender, receiver, producer, wait_until)


def settle(
    sender: BridgeAgent, receiver: BridgeAgent, producer: tp.Producer, wait_until: Callable[..., Any]
) -> dict[str, Any]:
    """Offers until the ledger grows, then waits for the final ledger.

    The network loses nothing, so the ledger balances only if both ends started with the same frame.
    """
    joined = receiver._ends.receiver._mappings[0].ledger

    def ledger() -> dict[str, Any]:
        return row(receiver)["ledger"] or {"published": 0, "delivered": 0}

    def grows() -> bool:
        producer.offer(np.zeros(100, np.uint8))
        is_current = joined.latest is not None and joined.latest.run == sender._ends.sender._run
        return is_current and bool(ledger()["delivered"] > 5)

    wait_until(grows, timeout=DEADLINE_S)

    def is_settled() -> bool:
        before = ledger()
        time.sleep(0.2)
        assert joined.latest is not None
        assert joined.start is not None
        reported = joined.latest.published - joined.start.published
        is_reported = joined.latest.published == row(sender)["published"] and reported == before["published"]
        # The sender's ledger includes exactly the frames that are here.
        return is_reported and before == ledger() and before["dropped"]["network"] == 0

    wait_until(is_settled, timeout=DEADLINE_S)
    final = ledger()
    assert final["exact"]
    assert final["published"] == final["delivered"] + sum(final["dropped"].values())
    return final


def test_restarted_sender_continues_in_the_same_epoch(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    _, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    first = receive_after(producer, consumer, 0, wait_until)
    pair.here.bridges.pop().close()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    sender = pair.here.bridge(
        settings_of(instance_id="restarted", direction="send", **pair.common(mappings=[mapping]))
    )
    second = receive_after(producer, consumer, first.epoch - 1, wait_until)
    assert (second.epoch, second.seq > first.seq) == (first.epoch, True), "the same epoch continues"
    ledger = settle(sender, receiver, producer, wait_until)
    sent = row(sender)
    assert ledger["published"] == sent["published"], "from its first frame on"
    assert ledger["delivered"] == sent["sent"]
