"""Rates that are no whole number: the consumer keeps them itself, because the wire has whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerHello

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(("max_hz", "wire_hz"), [(0.5, 1), (2.5, 3)])
def test_fractional_rate_is_kept_by_the_consumer(
    context: tp.Context, free_stream_id, wait_until, raw_messages, max_hz: float, wire_hz: int
) -> None:
    """Frames of forty seconds of source time at 10 Hz, offered as fast as possible."""
    messages = raw_messages()
    limited = context.consumer(free_stream_id, max_rate_hz=max_hz)
    unlimited = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=16)
    wait_until(lambda: limited.state().on_per_consumer and unlimited.epoch is not None)
    for number in range(400):
        producer.offer(np.arange(4), timestamp_ns=SECOND_NS + number * SECOND_NS // 10)
        wait_until(lambda expected=number + 1: unlimited.poll() or unlimited.ledger().span == expected)
        limited.poll()
    wait_until(lambda: limited.poll() or limited.ledger().span >= 390)
    ledger = limited.ledger()
    assert abs(ledger.received - 40 * max_hz) <= 2
    assert ledger.balanced
    assert {reason for reason, count in ledger.dropped.items() if count} == {"rate_limited"}
    hello = messages.find(ConsumerHello, consumer_id=limited.state().consumer_id)
    assert hello.max_rate_hz == wire_hz


@pytest.mark.parametrize("rate", [0, -1, 0.00001, float("nan"), float("inf"), "5", True])
def test_rate_that_cannot_be_kept_is_refused(context: tp.Context, free_stream_id, rate: Any) -> None:
    with pytest.raises(tp.ConfigError, match=r"frames a second from 0\.0001 on, as in 25 or 0\.5"):
        context.consumer(free_stream_id, max_rate_hz=rate)
