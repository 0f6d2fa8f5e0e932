"""Which clock stamps a frame, in which order, and how often signs of life go out (wire §15.7, §15.11)."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.context.config import AeronSettings, ContextSettings
from tensorpool.runtime.config import Config
from tensorpool.sbe import QosConsumer, QosProducer, ShmPoolAnnounce
from tests.integration.dataplane.conftest import Stream
from tests.integration.dataplane.regions_of import regions_of

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000


def stamps(stream: Stream, count: int) -> list[tuple[int, int, int | None]]:
    """Sequence, capture time and publish time of so many frames, as a consumer gets them."""
    frames = [stream.consumer.receive(DEADLINE_S) for _ in range(count)]
    return [(one.seq, one.timestamp_ns, one.publish_timestamp_ns) for one in frames]


def rises(times: list[Any]) -> bool:
    return all(one <= next_one for one, next_one in itertools.pairwise(times))


@pytest.mark.requirement("wire-15.7-1")
def test_both_times_come_from_the_monotonic_clock(connect: Callable[..., Stream]) -> None:
    stream = connect(publish_timestamps=True)
    before = time.monotonic_ns()
    stream.producer.offer(np.zeros(4))
    with stream.producer.claim((4,), "uint8"):
        pass
    after = time.monotonic_ns()
    for _, captured, published in stamps(stream, 2):
        assert published is not None
        assert before <= captured <= published <= after


@pytest.mark.requirement("wire-15.7-2")
def test_claims_that_are_settled_out_of_turn_keep_their_times_in_order(
    connect: Callable[..., Stream], clock_passes: Callable[[int], None]
) -> None:
    stream = connect(publish_timestamps=True, nslots=8)
    slots = [stream.producer.claim((4,), "uint8") for _ in range(5)]
    stream.producer.offer(np.zeros(4))
    for which in (0, 3, 1, 4, 2):
        # So that the clock cannot hide a wrong order.
        clock_passes(time.monotonic_ns())
        slots[which].commit()
    stamped = stamps(stream, 6)
    assert [seq for seq, _, _ in stamped] == list(range(6))
    assert rises([captured for _, captured, _ in stamped])
    assert rises([published for _, _, published in stamped])


@pytest.mark.requirement("wire-15.7-2")
def test_threads_that_offer_at_once_get_their_times_in_order(connect: Callable[..., Stream]) -> None:
    stream = connect(publish_timestamps=True, nslots=1024)

    def offer() -> None:
        for _ in range(100):
            stream.producer.offer(np.zeros(4))

    threads = [threading.Thread(target=offer) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    stamped = stamps(stream, 400)
    assert rises([captured for _, captured, _ in stamped])
    assert rises([published for _, _, published in stamped])


def test_a_capture_time_that_is_given_is_carried_as_it_is(stream: Stream) -> None:
    assert stream.send(np.zeros(4), timestamp_ns=12_345).timestamp_ns == 12_345


@pytest.mark.requirement("wire-15.11-1")
def test_signs_of_life_go_out_once_a_second_unless_configured_otherwise(
    open_context: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    defaults = Config.load(AeronSettings, ContextSettings, environ={})
    assert (
        defaults[AeronSettings].announce_period_ns == defaults[ContextSettings].hello_period_ns == SECOND_NS
    )
    # None: what the configuration says.
    context = open_context(announce_period=None)
    consumer = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=[64])
    ids = context.stream_ids
    ears = [context.connection.subscription(one, tethered=True) for one in (ids.announce, ids.qos)]
    heard: list[Any] = []

    def listen() -> None:
        for ear in ears:
            for message in ear.poll(256):
                for kind in (ShmPoolAnnounce, QosConsumer, QosProducer):
                    try:
                        heard.append(kind.decode(message))
                    except tp.CodecError:
                        continue

    def of(kind: type[Any]) -> list[Any]:
        return [one for one in heard if isinstance(one, kind) and one.stream_id == free_stream_id]

    try:
        wait_until(lambda: all(ear.is_ready for ear in ears) and consumer.epoch is not None)
        regions, lives = regions_of(producer), set[int]()

        def four_of_each() -> bool:
            listen()
            lives.add(regions.superblock("header.ring").activity_timestamp_ns)
            kinds = (ShmPoolAnnounce, QosConsumer, QosProducer)
            return len(lives) > 4 and all(len(of(kind)) > 4 for kind in kinds)

        wait_until(four_of_each, timeout=DEADLINE_S)
    finally:
        for ear in ears:
            ear.close()
    told = [one.announce_timestamp_ns for one in of(ShmPoolAnnounce)]
    # A busy machine makes them later. Some come earlier, for whoever has just joined: hence the median.
    for times in (told, sorted(lives)):
        between = [later - one for one, later in itertools.pairwise(times)]
        assert statistics.median_high(between) > 0.9 * SECOND_NS
