"""Where a consumer's frames come from: nowhere yet, shared memory, another way (wire §15.12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp

from .test_orders_and_qos import DEADLINE_S, order

BRIDGE = "bridge://1?stream=5"


@pytest.mark.parametrize("mode", ["auto", "standalone"])
def test_it_is_unmapped_until_there_is_a_producer_and_after_it(
    options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any], mode: Any
) -> None:
    # Alone, a producer that has left is known by its silence of three periods.
    with tp.open(mode, **{**options, "announce_period": 1.0}) as context:
        consumer = context.consumer(free_stream_id)
        assert str(consumer.phase) == "unmapped"
        with context.producer(free_stream_id):
            wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
        wait_until(lambda: consumer.phase is tp.Phase.UNMAPPED, timeout=60)
        consumer.close()
        assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.UNMAPPED, None)


def test_an_order_sends_it_another_way_and_back(
    context: tp.Context, wire: Callable[..., Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    control, who = wire(), consumer.standing()["consumer_id"]
    control.say(order(free_stream_id, who, use_shm=False, payload_fallback_uri=BRIDGE))
    wait_until(lambda: consumer.phase is tp.Phase.FALLBACK)
    assert consumer.fallback_uri == BRIDGE
    # Later hellos do not undo it: the producer has taken the order over.
    before = producer.counters()["published"]
    wait_until(lambda: len([e for e in control.listen() if type(e).__name__ == "ConsumerHello"]) > 5)
    assert (consumer.phase, producer.counters()["published"]) == (tp.Phase.FALLBACK, before)
    control.say(order(free_stream_id, who))
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    assert consumer.fallback_uri is None


@pytest.mark.requirement("wire-10.1.3-1")
def test_a_way_that_nobody_has_defined_is_no_way(
    context: tp.Context, wire: Callable[..., Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    who = consumer.standing()["consumer_id"]
    wire().say(order(free_stream_id, who, use_shm=False, payload_fallback_uri="gopher://x"))
    wait_until(lambda: any(e.kind == "fallback_refused" for e in context.events(0.05)))
    assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.MAPPED, None)
    producer.offer(np.arange(3))
    assert consumer.receive(DEADLINE_S).shape == (3,)


@pytest.mark.requirement("wire-15.22-13")
def test_without_another_way_a_refusal_is_an_error_that_says_why(
    options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    # An owner makes, announces and refreshes; the reader is told of other directories.
    with (
        tp.open("standalone", **options) as ctx,
        tp.open("standalone", **{**options, "allowed_base_dirs": [tmp_path]}) as elsewhere,
        ctx.producer(free_stream_id),
        elsewhere.consumer(free_stream_id) as consumer,
    ):
        with pytest.raises(tp.RegionRejected):
            consumer.receive(DEADLINE_S)
        assert (consumer.phase, consumer.epoch) == (tp.Phase.UNMAPPED, None)
