"""Orders of a supervisor, QoS reports, and two consumers with one id (wire §10.1.3, §10.4)."""

from __future__ import annotations

import numpy as np
import pytest

from tensorpool.bridge.mappings import FallbackUri
from tensorpool.sbe import ConsumerConfig, ConsumerConfigR2, Mode, QosConsumer, QosProducer
from tensorpool.transport import StreamAddress
from tests.ports import free_port

from .conftest import RawMessages
from .test_per_consumer_streams import hello

DEADLINE_S = 60.0


def order(stream_id: int, consumer_id: int, **fields) -> ConsumerConfig:
    defaults = {"use_shm": True, "mode": Mode.STREAM}
    return ConsumerConfig(stream_id=stream_id, consumer_id=consumer_id, **{**defaults, **fields})


def fallback_uri() -> str:
    """The URI of a bridge that does not run."""
    payload, control = (StreamAddress(f"aeron:udp?endpoint=127.0.0.1:{free_port()}", n) for n in (1, 2))
    return str(FallbackUri("1", payload, control, 5))


def test_producer_keeps_an_order_after_a_later_hello(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    producer = context.producer(free_stream_id)
    control = raw_messages()
    request = hello(
        free_stream_id, 21, max_rate_hz=5, descriptor_channel="aeron:ipc", descriptor_stream_id=31_234
    )
    control.publish(request)
    granted = control.find(ConsumerConfig, consumer_id=21)
    assert granted.mode is Mode.STREAM
    wait_until(lambda: producer.consumers() == (1, 1))
    # The order of a supervisor is for the consumer; the producer receives it too.
    control.publish(order(free_stream_id, 21, mode=Mode.RATE_LIMITED))
    control.publish(request)
    control.find(ConsumerConfig, consumer_id=21, mode=Mode.RATE_LIMITED, descriptor_stream_id=31_234)


@pytest.mark.requirement("wire-5-4")
def test_declined_order_is_reported_and_the_next_order_takes_effect(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    """A supervisor repeats an order on another stream until the producer has granted one."""
    producer = context.producer(free_stream_id)
    consumer = context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    control, qos = raw_messages(), raw_messages(context.stream_ids.qos)
    consumer_id = consumer.state().consumer_id or 0

    def limit_at(stream_id: int) -> None:
        control.publish(
            ConsumerConfigR2(
                stream_id=free_stream_id,
                consumer_id=consumer_id,
                use_shm=True,
                mode=Mode.RATE_LIMITED,
                descriptor_channel="aeron:ipc",
                descriptor_stream_id=stream_id,
                max_rate_hz=5,
            )
        )

    def modes(messages: RawMessages, kind: type[ConsumerConfig] | type[QosConsumer]) -> list[Mode]:
        """The modes that the producer answered, or that the consumer reported, since the last order."""
        return [m.mode for m in messages.receive() if isinstance(m, kind) and m.consumer_id == consumer_id]

    def limit_and_wait(stream_id: int) -> None:
        limit_at(stream_id)
        control.find(ConsumerConfigR2, descriptor_stream_id=stream_id)
        control.received.clear()
        qos.received.clear()
        # The first ones may have been sent before the order was received.
        wait_until(lambda: len(modes(control, ConsumerConfig)) >= 4 and len(modes(qos, QosConsumer)) >= 4)

    # Outside the producer's range.
    limit_and_wait(1_100)
    assert modes(control, ConsumerConfig)[-1] is Mode.STREAM
    # The producer limits nothing: the consumer keeps the rate itself, and says so.
    assert modes(qos, QosConsumer)[-1] is Mode.RATE_LIMITED
    assert (consumer.state().mode, consumer.state().gates_locally) == ("rate_limited", True)
    limit_and_wait(31_301)
    assert modes(control, ConsumerConfig)[-1] is Mode.RATE_LIMITED
    assert modes(qos, QosConsumer)[-1] is Mode.RATE_LIMITED
    wait_until(lambda: consumer.state().on_per_consumer and producer.consumers() == (1, 1))
    assert not consumer.state().gates_locally


@pytest.mark.requirement("wire-10.1.3-1")
def test_unknown_fallback_uri_is_refused_with_an_event(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    control, consumer_id = raw_messages(), consumer.state().consumer_id or 0
    control.publish(order(free_stream_id, consumer_id, use_shm=False, payload_fallback_uri="gopher://x"))
    wait_until(lambda: any(event.kind == "fallback_unsupported" for event in context.events(0.05)))
    assert consumer.state().fallback_uri is None
    producer.offer(np.arange(3))
    assert consumer.receive(DEADLINE_S).shape == (3,)
    uri = fallback_uri()
    control.publish(order(free_stream_id, consumer_id, use_shm=False, payload_fallback_uri=uri))
    wait_until(lambda: consumer.state().fallback_uri == uri)


@pytest.mark.requirement("wire-15.4-1")
def test_qos_reports_match_the_ledgers_of_both_sides(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, nslots=4)
    wait_until(lambda: consumer.epoch is not None)
    qos = raw_messages(context.stream_ids.qos)
    for _ in range(10):
        producer.offer(np.arange(3))
    wait_until(lambda: not consumer.poll() and consumer.last_seq == 9)
    ledger, consumer_id = consumer.ledger(), consumer.state().consumer_id or 0
    late = ledger.dropped["late"] + ledger.dropped["not_committed"] + ledger.dropped["stale"]
    report = qos.find(QosConsumer, consumer_id=consumer_id, last_seq_seen=9, drops_late=late)
    assert report.stream_id == free_stream_id
    assert report.drops_gap == sum(ledger.dropped[r] for r in ("gap", "resync", "rested", "paused"))
    assert (report.epoch, report.mode) == (producer.epoch, Mode.STREAM)
    producer_report = qos.find(QosProducer, stream_id=free_stream_id, current_seq=9)
    assert producer_report.epoch == producer.epoch
    lease = producer.lease()
    assert producer_report.producer_id == (lease.client_id if lease else producer_report.producer_id) != 0


def test_qos_reports_before_the_first_frame_have_no_invented_sequence(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    qos = raw_messages(context.stream_ids.qos)
    consumer = context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, nslots=4)
    wait_until(lambda: consumer.epoch is not None)
    consumer_id = consumer.state().consumer_id
    for _ in range(3):
        report = qos.find(QosConsumer, consumer_id=consumer_id)
        assert isinstance(report, QosConsumer)
        assert (report.epoch, report.last_seq_seen) == (producer.epoch, 0)
        sent = [message for message in qos.received if isinstance(message, QosProducer)]
        assert [report for report in sent if report.stream_id == free_stream_id] == []
        qos.received.clear()
    claims = [producer.claim((3,), "u1") for _ in range(3)]
    for claim in claims:
        claim.commit()
    first = qos.find(QosProducer, stream_id=free_stream_id, current_seq=2, watermark=3)
    assert isinstance(first, QosProducer)
    # The watermark is of one period.
    qos.find(QosProducer, stream_id=free_stream_id, current_seq=2, watermark=0)


def test_consumer_with_a_used_id_chooses_a_new_one(context, raw_messages, free_stream_id, wait_until) -> None:
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    before, epoch = wait_until(
        lambda: None not in (pair := (consumer.state().consumer_id, consumer.epoch)) and pair
    )
    raw_messages(context.stream_ids.qos).publish(
        QosConsumer(
            stream_id=free_stream_id,
            consumer_id=before,
            epoch=epoch,
            last_seq_seen=123_456,
            drops_gap=0,
            drops_late=0,
            mode=Mode.STREAM,
        )
    )
    wait_until(lambda: consumer.state().consumer_id not in (None, before) and consumer.epoch is not None)
    assert "id_collision" in {event.kind for event in context.events(0.05)}
    wait_until(lambda: producer.offer(np.arange(3)) and consumer.receive_or_none(0.1) is not None)
