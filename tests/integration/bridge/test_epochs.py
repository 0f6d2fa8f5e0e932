"""A source that comes back under another epoch, and bridges that do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.bridge import BridgeAgent
from tests.integration.bridge.hosts import DEADLINE_S, Pair, row, settings_of


def frames_of(
    producer: tp.Producer, consumer: tp.Consumer, epoch: int, wait_until: Callable[..., Any]
) -> Any:
    """Offers until one arrives under a later local epoch than `epoch`."""

    def arrived() -> Any:
        producer.offer(np.full(100, 7, np.uint8))
        found = [frame for frame in consumer.poll() if frame.epoch > epoch]
        return found[0] if found else None

    return wait_until(arrived, timeout=DEADLINE_S)


@pytest.mark.requirement("bridge-8-1", "bridge-8-4", "bridge-8-5")
def test_another_epoch_of_the_source_is_another_epoch_here(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    _, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    seen = [0]
    for _ in range(3):
        with pair.here.context.producer(source, pools=["4KiB"]) as producer:
            frame = frames_of(producer, consumer, seen[-1], wait_until)
            assert frame.copy().tobytes() == bytes([7]) * 100
            seen.append(frame.epoch)
            assert row(receiver)["source_epoch"] == str(producer.epoch)
    assert seen == sorted(set(seen))


@pytest.mark.requirement("bridge-8-5")
def test_a_receiver_that_comes_back_goes_on_under_a_later_epoch(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, _ = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    first = frames_of(producer, consumer, 0, wait_until)
    pair.there.bridges.pop().close()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    receiver = pair.there.bridge(
        settings_of(instance_id="again", direction="receive", **pair.common(mappings=[mapping]))
    )
    second = frames_of(producer, consumer, first.epoch, wait_until)
    assert second.seq > first.seq
    settle(sender, receiver, producer, wait_until)


def settle(
    sender: BridgeAgent, receiver: BridgeAgent, producer: tp.Producer, wait_until: Callable[..., Any]
) -> dict[str, Any]:
    """Offers until the account goes on, and stops. Nothing was lost on the way, so all of it adds up: whoever
    came while frames were on their way began with the same one as the other end."""

    book = receiver._running[1]._arrivals[0].book

    def ledger() -> dict[str, Any]:
        return row(receiver)["ledger"] or {"published": 0, "delivered": 0}

    def goes_on() -> bool:
        producer.offer(np.zeros(100, np.uint8))
        is_its_own = book.latest is not None and book.latest.run == sender._running[0]._run
        return is_its_own and bool(ledger()["delivered"] > 5)

    wait_until(goes_on, timeout=DEADLINE_S)

    def is_settled() -> bool:
        found = ledger()
        time.sleep(0.2)
        assert book.latest is not None
        assert book._first is not None
        told = book.latest.published - book._first.published
        is_told = book.latest.published == row(sender)["published"] and told == found["published"]
        # The sender has told of every frame that is here, and of none that is not.
        return is_told and found == ledger() and found["dropped"]["network"] == 0

    wait_until(is_settled, timeout=DEADLINE_S)
    found = ledger()
    assert found["exact"]
    assert found["published"] == found["delivered"] + sum(found["dropped"].values())
    return found


def test_a_sender_that_comes_back_is_heard_again(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"])
    _, receiver = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    first = frames_of(producer, consumer, 0, wait_until)
    pair.here.bridges.pop().close()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    sender = pair.here.bridge(
        settings_of(instance_id="again", direction="send", **pair.common(mappings=[mapping]))
    )
    second = frames_of(producer, consumer, first.epoch - 1, wait_until)
    assert (second.epoch, second.seq > first.seq) == (first.epoch, True), "the same epoch goes on"
    found = settle(sender, receiver, producer, wait_until)
    sent = row(sender)
    assert found["published"] == sent["published"], "from its first frame on"
    assert found["delivered"] == sent["sent"]
