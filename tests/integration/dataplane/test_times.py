"""Timestamps of frames, and the periods of announces and reports (wire §15.7, §15.11)."""

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
from tensorpool.sbe import QosConsumer, QosProducer, ShmPoolAnnounce, decode
from tests.integration.dataplane.conftest import Stream
from tests.integration.dataplane.region_files import regions_of

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000


def timestamps(stream: Stream, count: int) -> list[tuple[int, int, int | None]]:
    """Sequence, capture and publish timestamp of the next `count` received frames."""
    frames = [stream.consumer.receive(DEADLINE_S) for _ in range(count)]
    return [(frame.seq, frame.timestamp_ns, frame.publish_timestamp_ns) for frame in frames]


def is_ascending(times: list[Any]) -> bool:
    return all(earlier <= later for earlier, later in itertools.pairwise(times))


@pytest.mark.requirement("wire-15.7-1")
def test_timestamps_are_of_the_monotonic_clock(connect: Callable[..., Stream]) -> None:
    stream = connect(publish_timestamps=True)
    before = time.monotonic_ns()
    stream.producer.offer(np.zeros(4))
    with stream.producer.claim((4,), "uint8"):
        pass
    after = time.monotonic_ns()
    for _, captured, published in timestamps(stream, 2):
        assert published is not None
        assert before <= captured <= published <= after


@pytest.mark.requirement("wire-15.7-2")
def test_timestamps_of_claims_committed_out_of_order_ascend(
    connect: Callable[..., Stream], clock_passes: Callable[[int], None]
) -> None:
    stream = connect(publish_timestamps=True, nslots=8)
    slots = [stream.producer.claim((4,), "uint8") for _ in range(5)]
    stream.producer.offer(np.zeros(4))
    for index in (0, 3, 1, 4, 2):
        # Equal timestamps would hide a wrong order.
        clock_passes(time.monotonic_ns())
        slots[index].commit()
    received = timestamps(stream, 6)
    assert [seq for seq, _, _ in received] == list(range(6))
    assert is_ascending([captured for _, captured, _ in received])
    assert is_ascending([published for _, _, published in received])


@pytest.mark.requirement("wire-15.7-2")
def test_timestamps_of_concurrent_offers_ascend(connect: Callable[..., Stream]) -> None:
    stream = connect(publish_timestamps=True, nslots=1024)

    def offer() -> None:
        for _ in range(100):
            stream.producer.offer(np.zeros(4))

    threads = [threading.Thread(target=offer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = timestamps(stream, 400)
    assert is_ascending([captured for _, captured, _ in received])
    assert is_ascending([published for _, _, published in received])


def test_given_capture_timestamp_is_unchanged(stream: Stream) -> None:
    assert stream.send(np.zeros(4), timestamp_ns=12_345).timestamp_ns == 12_345


@pytest.mark.requirement("wire-15.11-1")
def test_announces_and_reports_have_a_period_of_one_second(
    open_context: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    defaults = Config.load(AeronSettings, ContextSettings, environ={})
    assert (
        defaults[AeronSettings].announce_period_ns == defaults[ContextSettings].hello_period_ns == SECOND_NS
    )
    # None: the configured period.
    context = open_context(announce_period=None)
    consumer = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=[64])
    ids = context.stream_ids
    subscriptions = [context.connection.subscription(each, tethered=True) for each in (ids.announce, ids.qos)]
    kinds = (ShmPoolAnnounce, QosConsumer, QosProducer)
    received: dict[type[Any], list[int]] = {kind: [] for kind in kinds}
    """When messages of the stream came: for announces their own time."""

    def receive() -> None:
        for subscription in subscriptions:
            for message in subscription.poll(256):
                decoded = decode(message)
                if isinstance(decoded, kinds) and decoded.stream_id == free_stream_id:
                    at_ns = time.monotonic_ns()
                    if isinstance(decoded, ShmPoolAnnounce):
                        at_ns = decoded.announce_timestamp_ns
                    received[type(decoded)].append(at_ns)

    try:
        wait_until(lambda: all(each.is_ready for each in subscriptions) and consumer.epoch is not None)
        # A producer reports from its first frame on.
        producer.offer(np.zeros(4, np.uint8))
        regions, activity = regions_of(producer), set[int]()

        def has_five_of_each() -> bool:
            receive()
            activity.add(regions.superblock("header.ring").activity_timestamp_ns)
            return len(activity) > 4 and all(len(times) > 4 for times in received.values())

        wait_until(has_five_of_each, timeout=DEADLINE_S)
    finally:
        for subscription in subscriptions:
            subscription.close()
    # A busy host delays some of them, and new consumers cause early ones: hence the median.
    for times in (*received.values(), sorted(activity)):
        periods = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert 0.7 * SECOND_NS < statistics.median_high(periods) < 5 * SECOND_NS
