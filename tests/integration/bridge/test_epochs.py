"""A source that comes back under another epoch, and bridges that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
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
    pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    first = frames_of(producer, consumer, 0, wait_until)
    pair.there.bridges.pop().close()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    pair.there.bridge(
        settings_of(instance_id="again", direction="receive", **pair.common(mappings=[mapping]))
    )
    second = frames_of(producer, consumer, first.epoch, wait_until)
    assert second.seq > first.seq


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
    pair.here.bridge(settings_of(instance_id="again", direction="send", **pair.common(mappings=[mapping])))
    second = frames_of(producer, consumer, first.epoch - 1, wait_until)
    assert (second.epoch, second.seq > first.seq) == (first.epoch, True), "the same epoch goes on"

    def is_accounted_for() -> bool:
        # Frames that were on the way when the new sender was first heard of are in neither account.
        producer.offer(np.zeros(100, np.uint8))
        return bool((row(receiver)["ledger"] or {}).get("delivered", 0) > 0)

    wait_until(is_accounted_for, timeout=DEADLINE_S)
