"""A flood of hellos does not become a flood of announces (wire §10.1.1, §10.1.2)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.sbe import ShmPoolAnnounce

from .conftest import RawMessages
from .test_per_consumer_streams import hello

# Far longer than the test's floods: nearly all announces that are counted are those for new consumers.
ANNOUNCE_PERIOD_S = 20.0
HELLOS_PER_S = 1000
FLOOD_S = 2.0
# At most ten a second for new consumers.
MAX_ANNOUNCES_PER_S = 10


@pytest.fixture
def context(options: dict[str, Any]) -> Iterator[tp.Context]:
    with tp.open("standalone", **{**options, "announce_period": ANNOUNCE_PERIOD_S}) as ctx:
        yield ctx


def test_hellos_at_a_high_rate_cause_few_announces(
    context: tp.Context, raw_messages: Callable[..., RawMessages], free_stream_id, wait_until
) -> None:
    control, announces = raw_messages(), raw_messages(context.stream_ids.announce)
    producer = context.producer(free_stream_id)

    def announced() -> int:
        return sum(
            isinstance(m, ShmPoolAnnounce) and m.stream_id == free_stream_id for m in announces.receive()
        )

    def flood(next_id: Callable[[], int]) -> tuple[int, float]:
        """Sends hellos at the rate; returns how many announces came meanwhile, and the seconds it took."""
        before, started = announced(), time.monotonic()
        for number in range(int(HELLOS_PER_S * FLOOD_S)):
            while time.monotonic() < started + number / HELLOS_PER_S:
                announced()
            control.publish(hello(free_stream_id, next_id()))
            # A tethered subscription that is not polled would hold up the producer's answers.
            control.receive()
            control.received.clear()
        return announced() - before, time.monotonic() - started

    # The first announces: for the subscription, and for the first hello.
    control.publish(hello(free_stream_id, 7))
    wait_until(lambda: announced() >= 2)

    count, seconds = flood(lambda: 7)
    # The repeated announce for the new subscription, and the periodic ones.
    assert count <= 2 + seconds / ANNOUNCE_PERIOD_S
    ids = random.Random(19)
    count, seconds = flood(lambda: ids.randrange(1 << 20, 1 << 31))
    assert 1 <= count <= 2 + seconds * (MAX_ANNOUNCES_PER_S + 1 / ANNOUNCE_PERIOD_S)

    consumer = context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch == producer.epoch, timeout=ANNOUNCE_PERIOD_S)
