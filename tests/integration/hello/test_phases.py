"""Phases of a consumer: UNMAPPED, MAPPED and FALLBACK (wire §15.12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerHello

from .test_orders_and_qos import DEADLINE_S, fallback_uri, order


@pytest.mark.parametrize("mode", ["auto", "standalone"])
def test_consumer_is_unmapped_before_and_after_its_producer(
    options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any], mode: Any
) -> None:
    # Without a driver a closed producer is stale after three announce periods.
    with tp.open(mode, **{**options, "announce_period": 1.0}) as context:
        consumer = context.consumer(free_stream_id)
        assert str(consumer.phase) == "unmapped"
        with context.producer(free_stream_id):
            wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
        wait_until(lambda: consumer.phase is tp.Phase.UNMAPPED, timeout=60)
        consumer.close()
        assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.UNMAPPED, None)


def test_order_switches_to_the_fallback_and_back(
    context: tp.Context, raw_messages: Callable[..., Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    control, consumer_id = raw_messages(), consumer.state().consumer_id or 0
    uri = fallback_uri()
    control.publish(order(free_stream_id, consumer_id, use_shm=False, payload_fallback_uri=uri))
    wait_until(lambda: consumer.phase is tp.Phase.FALLBACK)
    assert consumer.fallback_uri == uri
    # Later hellos do not undo the order: the producer keeps it.
    before = producer.counters().published
    wait_until(lambda: sum(isinstance(message, ConsumerHello) for message in control.receive()) > 5)
    assert (consumer.phase, producer.counters().published) == (tp.Phase.FALLBACK, before)
    control.publish(order(free_stream_id, consumer_id))
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    assert consumer.fallback_uri is None


@pytest.mark.requirement("wire-10.1.3-1")
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("gopher://x", "use bridge://"),
        ("aeron:udp?endpoint=127.0.0.1:40123", "use bridge://"),
        ("bridge://1?stream=5", "payload, payload_stream, control, control_stream is missing"),
    ],
)
def test_unreadable_fallback_uri_leaves_the_consumer_mapped(
    context: tp.Context,
    raw_messages: Callable[..., Any],
    free_stream_id: int,
    wait_until: Callable[..., Any],
    uri: str,
    reason: str,
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED)
    consumer_id = consumer.state().consumer_id or 0
    raw_messages().publish(order(free_stream_id, consumer_id, use_shm=False, payload_fallback_uri=uri))
    refused = wait_until(
        lambda: [event for event in context.events(0.05) if event.kind == "fallback_unsupported"]
    )
    assert refused[0].detail.startswith(reason)
    assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.MAPPED, None)
    producer.offer(np.arange(3))
    assert consumer.receive(DEADLINE_S).shape == (3,)


@pytest.mark.requirement("wire-15.22-13")
def test_rejected_region_without_a_fallback_raises(
    options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    # The producer is valid; the consumer may map regions of another directory only.
    with (
        tp.open("standalone", **options) as ctx,
        tp.open("standalone", **{**options, "allowed_base_dirs": [tmp_path]}) as restricted,
        ctx.producer(free_stream_id),
        restricted.consumer(free_stream_id) as consumer,
    ):
        with pytest.raises(tp.RegionRejected):
            consumer.receive(DEADLINE_S)
        assert (consumer.phase, consumer.epoch) == (tp.Phase.UNMAPPED, None)
