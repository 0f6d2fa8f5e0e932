"""A reader that does not poll stalls nobody, and counts what it missed under its own reason (decision 35)."""

from __future__ import annotations

import time

import numpy as np

from tests import leaks

DEADLINE_S = 60.0


def test_a_reader_that_stops_polling_is_put_to_rest_and_rejoins_by_itself(stream, context) -> None:
    producer, awake, tiny = stream.producer, stream.consumer, np.zeros(1, np.uint8)
    asleep = context.consumer(producer.stream_id)

    def frame_arrives() -> bool:
        producer.offer(tiny)
        awake.latest()
        return bool(asleep.poll())

    def offer_a_while() -> bool:
        for _ in range(2_000):
            producer.offer(tiny)
        awake.latest()
        return not asleep.is_connected

    assert leaks.wait_for(frame_arrives, timeout=DEADLINE_S)
    assert leaks.wait_for(offer_a_while, timeout=DEADLINE_S)
    # Nobody waited long for it: the one that reads on was served all the time.
    assert awake.ledger().balanced
    assert awake.ledger().dropped["rested"] == 0
    assert leaks.wait_for(frame_arrives, timeout=DEADLINE_S)
    ledger = asleep.ledger()
    assert ledger.dropped["rested"] > 0
    assert ledger.balanced
    assert producer.ledger().balanced
    # Let go of, the sleeper holds nothing back any more.
    assert [producer.offer(tiny).outcome for _ in range(100)] == ["published"] * 100


def test_a_reader_that_never_polls_does_not_disturb_another(connect, context) -> None:
    stream = connect(nslots=64)
    asleep = context.consumer(stream.producer.stream_id)
    assert asleep.ledger().span == 0
    for value in range(300):
        offered = stream.producer.offer(np.full(10, value))
        assert offered.outcome == "published"
        assert stream.consumer.receive(DEADLINE_S).seq == offered.seq
    assert stream.consumer.ledger().received == 300
    assert not any(stream.consumer.ledger().dropped.values())


def test_the_only_reader_asleep_costs_descriptors_but_no_time(stream) -> None:
    # With nobody ahead of it the media driver does not let go of a reader: what it cannot be told of is
    # counted at the producer, whose offers return at once.
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


def test_a_stranger_who_leaves_the_shared_stream_makes_no_rest_of_our_gaps(
    mapped, context, free_stream_ids, clock_passes
) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    with context.producer(free_stream_ids(), pools=[64]) as stranger:
        assert stranger.wait_for_consumer(DEADLINE_S)
    # Long enough for the news of its departure to come somewhere among these.
    for seq in range(2, 62, 2):
        hostile.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
        clock_passes(time.monotonic_ns() + 5_000_000)
    assert {name: n for name, n in consumer.ledger().dropped.items() if n} == {"gap": 30}
