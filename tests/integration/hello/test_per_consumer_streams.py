"""Per-consumer streams: requested, granted or declined, and closed (wire §5, §10.1.2, §10.1.3)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, ConsumerHello, Mode, QosConsumer, QosProducer
from tests.remote_process import RemoteProcess

from .conftest import RawMessages
from .roles import ConsumerProcess

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000


def hello(stream_id: int, consumer_id: int, **fields: Any) -> ConsumerHello:
    defaults: dict[str, Any] = {
        "supports_shm": True,
        "supports_progress": False,
        "mode": Mode.STREAM,
        "expected_layout_version": 1,
    }
    return ConsumerHello(stream_id=stream_id, consumer_id=consumer_id, **{**defaults, **fields})


@pytest.mark.requirement("wire-5-1", "wire-11-1")
@pytest.mark.parametrize(("source_hz", "max_hz"), [(100, 20), (30, 20), (21, 20), (1000, 7), (10, 50)])
def test_rate_limit_uses_the_timestamps_of_frames(
    context: tp.Context, free_stream_id, wait_until, source_hz: int, max_hz: int
) -> None:
    """Frames of ten seconds of source time, offered as fast as possible."""
    limited, unlimited = (
        context.consumer(free_stream_id, max_rate_hz=max_hz),
        context.consumer(free_stream_id),
    )
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=16)
    wait_until(lambda: limited.state().on_per_consumer and unlimited.epoch is not None)
    assert limited.state().mode == "rate_limited"
    received = 0
    for number in range(10 * source_hz):
        producer.offer(np.arange(4), timestamp_ns=SECOND_NS + number * SECOND_NS // source_hz)
        wait_until(lambda expected=number + 1: len(unlimited.poll()) or unlimited.ledger().span == expected)
        received += len(limited.poll())
    wait_until(lambda: limited.poll() or limited.ledger().span >= 10 * source_hz - source_hz)
    received = limited.ledger().received
    assert received <= 1.02 * 10 * max_hz + 1
    assert received >= 0.98 * 10 * min(max_hz, source_hz) - 1
    ledger = limited.ledger()
    assert ledger.balanced
    assert {reason for reason, count in ledger.dropped.items() if count} <= {"rate_limited"}


@pytest.mark.requirement("wire-11-1")
def test_rate_limit_prefers_the_publish_timestamps_of_descriptors(
    context: tp.Context, free_stream_id, wait_until
) -> None:
    """The slot timestamps are a second apart: by these, all frames would be within the rate."""
    limited, unlimited = context.consumer(free_stream_id, max_rate_hz=5), context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=256, publish_timestamps=True)
    wait_until(lambda: limited.state().on_per_consumer and unlimited.epoch is not None)
    started = time.monotonic_ns()
    for number in range(200):
        assert producer.offer(np.arange(4), timestamp_ns=SECOND_NS * (1 + number))
    seconds = (time.monotonic_ns() - started) / SECOND_NS
    wait_until(lambda: not unlimited.poll() and unlimited.last_seq == 199)
    assert unlimited.ledger().received == 200
    published = producer.counters().per_consumer_published
    assert 1 <= published <= 1.02 * 5 * seconds + 1
    # The first poll: descriptors on the shared stream are not for this consumer.
    wait_until(limited.poll, timeout=60)
    assert limited.poll() == []
    assert limited.ledger().received == published
    assert not limited.ledger().outside["duplicate"]


@pytest.mark.requirement("wire-10.1.2-1", "wire-10.1.2-2", "wire-10.1.3-2")
@pytest.mark.parametrize(
    ("keywords", "descriptors", "control"),
    [
        ({}, False, False),
        ({"per_consumer_stream": True}, True, False),
        ({"max_rate_hz": 5}, True, False),
        ({"progress": True}, False, True),
        ({"max_rate_hz": 5, "progress": True}, True, True),
    ],
)
def test_consumer_requests_a_stream_with_channel_and_id(
    context: tp.Context,
    raw_messages,
    free_stream_id,
    wait_until,
    keywords: dict[str, Any],
    descriptors: bool,
    control: bool,
) -> None:
    messages = raw_messages()
    consumer = context.consumer(free_stream_id, **keywords)
    with context.producer(free_stream_id):
        wait_until(lambda: consumer.epoch is not None)
        consumer_id = consumer.state().consumer_id or 0
        # The first hello requests a stream; a hello after the config names the granted stream.
        wait_until(lambda: len(hellos(messages, consumer_id)) >= 3)
    for message in hellos(messages, consumer_id):
        assert (message.descriptor_channel != "", message.descriptor_stream_id != 0) == (
            descriptors,
            descriptors,
        )
        assert (message.control_channel != "", message.control_stream_id != 0) == (control, control)


def hellos(messages: Any, consumer_id: int) -> list[ConsumerHello]:
    received = [message for message in messages.receive() if isinstance(message, ConsumerHello)]
    return [message for message in received if message.consumer_id == consumer_id]


def test_no_frame_is_lost_when_a_consumer_changes_streams(
    context: tp.Context, free_stream_id, wait_until
) -> None:
    consumer = context.consumer(free_stream_id, per_consumer_stream=True)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=1024)
    wait_until(lambda: consumer.epoch is not None)
    published = 0

    def offer_and_poll() -> bool:
        nonlocal published
        published += bool(producer.offer(np.arange(4)))
        consumer.poll()
        return consumer.state().on_per_consumer and producer.counters().per_consumer_published > 50

    wait_until(offer_and_poll)
    wait_until(lambda: consumer.poll() == [] and consumer.last_seq == producer.next_seq - 1)
    ledger = consumer.ledger()
    assert ledger.balanced
    assert not any(ledger.dropped.values()), ledger


@pytest.mark.requirement("wire-5-4")
def test_rate_limit_without_a_per_consumer_stream_is_declined(
    context: tp.Context, raw_messages, free_stream_id, wait_until
) -> None:
    producer, consumer = context.producer(free_stream_id, nslots=64), context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    control = raw_messages()
    # A request for a rate without a per-consumer stream.
    control.publish(hello(free_stream_id, 7, mode=Mode.RATE_LIMITED, max_rate_hz=1))
    answer = control.find(ConsumerConfig, consumer_id=7)
    assert answer == ConsumerConfig(stream_id=free_stream_id, consumer_id=7, use_shm=True, mode=Mode.STREAM)
    for _ in range(32):
        producer.offer(np.arange(4))
    wait_until(lambda: consumer.poll() == [] and consumer.ledger().received == 32)


@pytest.mark.requirement(
    "wire-5-8",
    "wire-10.1.2-1",
    "wire-10.1.2-2",
    "wire-10.1.3-3",
    "wire-10.1.3-4",
)
@pytest.mark.parametrize(
    "fields",
    [
        {"descriptor_channel": "aeron:ipc"},
        {"descriptor_stream_id": 31_500},
        {"descriptor_channel": "aeron:udp?endpoint=127.0.0.1:40123", "descriptor_stream_id": 31_500},
        {"descriptor_channel": "aeron:ipc", "descriptor_stream_id": 1100},
        {"descriptor_channel": "not a channel", "descriptor_stream_id": 31_500},
        {"control_channel": "aeron:ipc", "supports_progress": True},
        {"control_channel": "aeron:ipc", "control_stream_id": 31_000, "supports_progress": True},
    ],
)
def test_invalid_stream_request_is_declined(context, raw_messages, free_stream_id, fields) -> None:
    producer = context.producer(free_stream_id)
    control = raw_messages()
    control.publish(hello(free_stream_id, 9, **fields))
    answer = control.find(ConsumerConfig, consumer_id=9)
    assert (answer.descriptor_channel, answer.descriptor_stream_id) == ("", 0)
    assert (answer.control_channel, answer.control_stream_id) == ("", 0)
    assert producer.consumers() == (1, 0)


@pytest.mark.parametrize("fields", [{"supports_shm": False}, {"expected_layout_version": 2}])
def test_consumer_without_shared_memory_gets_use_shm_false(
    context, raw_messages, free_stream_id, fields
) -> None:
    producer = context.producer(free_stream_id)
    control = raw_messages()
    request = {"descriptor_channel": "aeron:ipc", "descriptor_stream_id": 31_500, **fields}
    control.publish(hello(free_stream_id, 9, **request))
    answer = control.find(ConsumerConfig, consumer_id=9)
    assert (answer.use_shm, answer.descriptor_channel, answer.descriptor_stream_id) == (False, "", 0)
    assert producer.consumers() == (1, 0)


@pytest.mark.requirement("wire-10.1.3-2", "wire-10.1.3-4")
def test_declined_consumer_stays_on_the_shared_stream(
    options, free_stream_id, wait_until, monkeypatch
) -> None:
    with tp.open(**options) as ctx:
        producer = ctx.producer(free_stream_id)
        monkeypatch.setenv("TENSORPOOL_CONTEXT__PER_CONSUMER_DESCRIPTOR_IDS", "41000-41009")
        with tp.open("driver", **options) as other:
            consumer = other.consumer(free_stream_id, max_rate_hz=5)
            wait_until(lambda: consumer.state().declined)
            assert not consumer.state().on_per_consumer
            wait_until(lambda: producer.offer(np.arange(3)) and consumer.receive_or_none(0.1) is not None)
            # The promised rate holds all the same: the consumer keeps it itself, and says so.
            assert consumer.state().gates_locally
            assert consumer.state().mode == "rate_limited"
            stamp_ns = 10**15
            for number in range(200):
                producer.offer(np.arange(3), timestamp_ns=stamp_ns + number * 10_000_000)
                consumer.receive_or_none(0.0)
            wait_until(lambda: consumer.receive_or_none(0.05) is None)
            ledger = consumer.ledger()
            assert ledger.dropped["rate_limited"] >= 180
            assert ledger.span == ledger.received + sum(ledger.dropped.values())
            assert "declined" in {event.kind for event in other.events(0.1)}


@pytest.mark.requirement("wire-10.1.3-4")
def test_stream_that_the_media_driver_refuses_is_withdrawn(
    options, free_stream_id, wait_until, monkeypatch
) -> None:
    # Allowed by the settings; the media driver refuses it, since the MTU is no multiple of 32.
    channel = "aeron:ipc?mtu=1001"
    monkeypatch.setenv("TENSORPOOL_CONTEXT__PER_CONSUMER_CHANNELS", f'["{channel}"]')
    with tp.open("standalone", **options) as ctx:
        producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
        wait_until(lambda: consumer.epoch is not None)
        control = RawMessages(ctx, ctx.stream_ids.control, wait_until)
        request = hello(
            free_stream_id,
            23,
            mode=Mode.RATE_LIMITED,
            max_rate_hz=5,
            descriptor_channel=channel,
            descriptor_stream_id=31_400,
        )
        control.publish(request)
        control.find(ConsumerConfig, consumer_id=23, descriptor_stream_id=31_400)
        # Without another hello: the producer informs the consumer at once.
        withdrawn = control.find(ConsumerConfig, consumer_id=23, descriptor_stream_id=0)
        assert isinstance(withdrawn, ConsumerConfig)
        assert (withdrawn.mode, withdrawn.descriptor_channel) == (Mode.STREAM, "")
        wait_until(lambda: producer.consumers()[1] == 0)
        # The same request again is declined: it would be refused again.
        control.received.clear()
        control.publish(request)
        again = control.find(ConsumerConfig, consumer_id=23)
        assert isinstance(again, ConsumerConfig)
        assert again.descriptor_stream_id == 0
        control.close()


@pytest.mark.requirement("wire-5-2", "wire-5-3", "wire-10.1.3-5")
def test_qos_reports_alone_keep_a_per_consumer_stream_open(
    context, raw_messages, free_stream_id, wait_until
) -> None:
    producer = context.producer(free_stream_id)
    control, qos = raw_messages(), raw_messages(context.stream_ids.qos)
    control.publish(hello(free_stream_id, 11, descriptor_channel="aeron:ipc", descriptor_stream_id=31_777))
    wait_until(lambda: producer.consumers() == (1, 1))
    # A producer reports from its first frame on; its reports are the clock of this test.
    producer.offer(np.arange(3))
    report = QosConsumer(
        stream_id=free_stream_id,
        consumer_id=11,
        epoch=producer.epoch,
        last_seq_seen=0,
        drops_gap=0,
        drops_late=0,
        mode=Mode.STREAM,
    )

    def reports() -> int:
        return sum(isinstance(message, QosProducer) for message in qos.receive())

    # Far longer than the five periods after which a consumer is stale.
    for _ in range(20):
        qos.publish(report)
        count = reports()
        wait_until(lambda count=count: reports() > count)
        assert producer.consumers() == (1, 1)
    wait_until(lambda: producer.consumers() == (0, 0))


@pytest.mark.requirement("wire-5-2")
def test_streams_of_killed_consumers_are_closed(options, context, free_stream_id, wait_until) -> None:
    producer = context.producer(free_stream_id)
    mode = context.mode if context.mode == "standalone" else "driver"
    with RemoteProcess(ConsumerProcess, mode, options) as process:
        process.call(
            "consume", stream_id=free_stream_id, requests=[{"per_consumer_stream": True}, {"max_rate_hz": 5}]
        )
        wait_until(lambda: producer.consumers() == (2, 2))
        process.kill()
    wait_until(lambda: producer.consumers() == (0, 0))
    assert producer.offer(np.arange(3)).outcome in ("not_connected", "published")


def test_twenty_consumers_with_different_requests_are_served(context, free_stream_id, wait_until) -> None:
    requests: list[dict[str, Any]] = [
        {},
        {"per_consumer_stream": True},
        {"max_rate_hz": 10},
        {"policy": "latest"},
    ]
    consumers = [context.consumer(free_stream_id, **requests[i % 4]) for i in range(20)]
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=256)
    wait_until(lambda: producer.consumers() == (20, 10) and all(c.epoch for c in consumers))
    wait_until(lambda: all(c.state().on_per_consumer for c in consumers[1::4] + consumers[2::4]))
    for number in range(200):
        producer.offer(np.full(4, number), timestamp_ns=SECOND_NS + number * SECOND_NS // 100)
        for consumer in consumers:
            consumer.poll()
    for consumer in consumers:
        wait_until(lambda each=consumer: not each.poll() and (each.last_seq or 0) >= 180)
        assert consumer.ledger().balanced
    for consumer in consumers[2::4]:
        assert 19 <= consumer.ledger().received <= 22
    for consumer in consumers[0::4] + consumers[1::4]:
        assert consumer.ledger().received == 200
