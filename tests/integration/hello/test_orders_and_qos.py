"""A supervisor's orders, reports on the QoS stream, and two consumers with one id (wire §10.1.3, §10.4)."""

from __future__ import annotations

import numpy as np
import pytest

from tensorpool.sbe import ConsumerConfig, Mode, QosConsumer, QosProducer

from .test_per_consumer_streams import hello

DEADLINE_S = 60.0


def order(stream_id: int, consumer_id: int, **fields) -> ConsumerConfig:
    usual = {"use_shm": True, "mode": Mode.STREAM}
    return ConsumerConfig(stream_id=stream_id, consumer_id=consumer_id, **{**usual, **fields})


def test_an_order_is_taken_over_so_that_a_later_hello_does_not_undo_it(
    context, wire, free_stream_id, wait_until
) -> None:
    producer = context.producer(free_stream_id)
    control = wire()
    asks = hello(
        free_stream_id, 21, max_rate_hz=5, descriptor_channel="aeron:ipc", descriptor_stream_id=31_234
    )
    control.say(asks)
    granted = control.find(ConsumerConfig, consumer_id=21)
    assert granted.mode is Mode.STREAM
    wait_until(lambda: producer.consumers() == (1, 1))
    # The order of a supervisor, to the consumer; the producer hears it too.
    control.say(order(free_stream_id, 21, mode=Mode.RATE_LIMITED))
    control.say(asks)
    control.find(ConsumerConfig, consumer_id=21, mode=Mode.RATE_LIMITED, descriptor_stream_id=31_234)


@pytest.mark.requirement("wire-10.1.3-1")
def test_a_fallback_that_nobody_has_defined_is_refused_and_said(
    context, wire, free_stream_id, wait_until
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    control, who = wire(), consumer.standing()["consumer_id"]
    control.say(order(free_stream_id, who, use_shm=False, payload_fallback_uri="gopher://x"))
    wait_until(lambda: any(e.kind == "fallback_refused" for e in context.events(0.05)))
    assert consumer.standing()["fallback_uri"] is None
    producer.offer(np.arange(3))
    assert consumer.receive(DEADLINE_S).shape == (3,)
    control.say(order(free_stream_id, who, use_shm=False, payload_fallback_uri="bridge://1?stream=5"))
    wait_until(lambda: consumer.standing()["fallback_uri"] == "bridge://1?stream=5")


@pytest.mark.requirement("wire-15.4-1")
def test_both_sides_report_what_they_count(context, wire, free_stream_id, wait_until) -> None:
    consumer = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, nslots=4)
    wait_until(lambda: consumer.epoch is not None)
    qos = wire(context.stream_ids.qos)
    for _ in range(10):
        producer.offer(np.arange(3))
    wait_until(lambda: not consumer.poll() and consumer.last_seq == 9)
    ledger, who = consumer.ledger(), consumer.standing()["consumer_id"]
    late = ledger.dropped["late"] + ledger.dropped["not_committed"] + ledger.dropped["stale"]
    report = qos.find(QosConsumer, consumer_id=who, last_seq_seen=9, drops_late=late)
    assert report.stream_id == free_stream_id
    assert report.drops_gap == sum(ledger.dropped[r] for r in ("gap", "resync", "rested", "paused"))
    assert (report.epoch, report.mode) == (producer.epoch, Mode.STREAM)
    told = qos.find(QosProducer, stream_id=free_stream_id, current_seq=9)
    assert told.epoch == producer.epoch
    lease = producer.lease()
    assert told.producer_id == (lease["client_id"] if lease else told.producer_id) != 0


def test_a_consumer_whose_id_is_another_s_takes_a_new_one(context, wire, free_stream_id, wait_until) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    before = consumer.standing()["consumer_id"]
    wire(context.stream_ids.qos).say(
        QosConsumer(
            stream_id=free_stream_id,
            consumer_id=before,
            epoch=consumer.epoch,
            last_seq_seen=123_456,
            drops_gap=0,
            drops_late=0,
            mode=Mode.STREAM,
        )
    )
    wait_until(
        lambda: consumer.standing()["consumer_id"] not in (None, before) and consumer.epoch is not None
    )
    assert "id_collision" in {event.kind for event in context.events(0.05)}
    wait_until(lambda: producer.offer(np.arange(3)) and consumer.receive_or_none(0.1) is not None)
