"""Rested consumers: a consumer that does not poll holds no producer back (decision 35)."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tensorpool.runtime.counters import read_aeron_counters
from tests import leaks

DEADLINE_S = 60.0


def test_consumer_that_stops_polling_is_rested_and_rejoins(stream, context) -> None:
    producer, polling, tiny = stream.producer, stream.consumer, np.zeros(1, np.uint8)
    idle = context.consumer(producer.stream_id)

    def frame_arrives() -> bool:
        producer.offer(tiny)
        polling.latest()
        return bool(idle.poll())

    def offer_a_while() -> bool:
        for _ in range(2_000):
            producer.offer(tiny)
        polling.latest()
        return not idle.is_connected

    assert leaks.wait_for(frame_arrives, timeout=DEADLINE_S)
    assert leaks.wait_for(offer_a_while, timeout=DEADLINE_S)
    # The polling consumer received all frames meanwhile.
    assert polling.ledger().balanced
    assert polling.ledger().dropped["rested"] == 0
    assert leaks.wait_for(frame_arrives, timeout=DEADLINE_S)
    ledger = idle.ledger()
    assert ledger.dropped["rested"] > 0
    assert ledger.balanced
    assert producer.ledger().balanced
    # A rested consumer does not hold the producer back.
    assert [producer.offer(tiny).outcome for _ in range(100)] == ["published"] * 100


def test_consumer_that_never_polls_does_not_affect_another(connect, context) -> None:
    stream = connect(nslots=64)
    idle = context.consumer(stream.producer.stream_id)
    assert idle.ledger().span == 0
    for value in range(300):
        offered = stream.producer.offer(np.full(10, value))
        assert offered.outcome == "published"
        assert stream.consumer.receive(DEADLINE_S).seq == offered.seq
    assert stream.consumer.ledger().received == 300
    assert not any(stream.consumer.ledger().dropped.values())


def test_idle_consumer_of_another_stream_holds_no_producer_back(connect, context, media_driver) -> None:
    """All producers publish on one stream, so the idle consumer has an image of the busy one too."""
    busy, quiet = connect(), connect()
    tiny = np.zeros(1, np.uint8)
    stream_id = context.stream_ids.descriptor
    # A window has 10,922 descriptors.
    for _ in range(20):
        for _ in range(2_000):
            busy.producer.offer(tiny)
            busy.consumer.latest()

        def has_room() -> bool:
            log = busiest_log(media_driver.aeron_dir, stream_id)
            # Both consumers are near the end, and the media driver knows it.
            return len(log.read) == 2 and log.limit > max(log.read) + 500_000

        assert leaks.wait_for(has_room, timeout=DEADLINE_S)
    assert busy.producer.counters().back_pressured == 0
    assert quiet.consumer.is_connected
    # Its own descriptors are still there.
    offered = [quiet.producer.offer(tiny).seq for _ in range(4)]
    assert [quiet.consumer.receive(DEADLINE_S).seq for _ in range(4)] == offered
    assert not any(quiet.consumer.ledger().dropped.values())


@dataclass
class Log:
    """The log of a publication: how far its subscriptions have read, and how far it may be written."""

    read: list[int] = field(default_factory=list)
    limit: int = 0


def busiest_log(aeron_dir: str, stream_id: int) -> Log:
    """The log of the publication on a stream that was written most."""
    logs: defaultdict[str, Log] = defaultdict(Log)
    for counter in read_aeron_counters(aeron_dir):
        # The label: kind, registration, session, stream, channel.
        kind, _, session, *rest = [*counter.label.split(), "", "", ""]
        if rest[0] == str(stream_id):
            if kind == "sub-pos:":
                logs[session].read.append(counter.value)
            elif kind == "pub-lmt:":
                logs[session].limit = counter.value
    return max(logs.values(), key=lambda log: log.limit)


def test_only_consumer_that_does_not_poll_loses_descriptors(stream) -> None:
    # The media driver does not rest the only subscription of a stream. The producer counts the descriptors
    # that do not fit, and its offers return at once.
    tiny = np.zeros(1, np.uint8)
    for _ in range(100_000):
        last = stream.producer.offer(tiny)
        if last.outcome != "published":
            break
    assert last.outcome == "back_pressured"
    assert last.seq is not None
    ledger = stream.producer.ledger()
    assert (ledger.unpublished["back_pressured"], ledger.balanced) == (1, True)
    assert stream.consumer.wait(DEADLINE_S)
    while stream.consumer.wait(0.0):
        stream.consumer.poll(1024)
    assert stream.consumer.last_seq == last.seq - 1
    assert stream.consumer.ledger().balanced


def test_other_producer_that_closes_does_not_count_as_rested(
    mapped, context, free_stream_ids, clock_passes
) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    with context.producer(free_stream_ids(), pools=[64]) as other_producer:
        assert other_producer.wait_for_consumer(DEADLINE_S)
    # Long enough that the other producer's image disappears during this loop.
    for seq in range(2, 62, 2):
        hostile.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
        clock_passes(time.monotonic_ns() + 5_000_000)
    assert {name: n for name, n in consumer.ledger().dropped.items() if n} == {"gap": 30}
