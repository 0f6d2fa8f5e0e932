"""Streams for single consumers: asked for, granted or declined, closed again (wire §5, §10.1.2, §10.1.3)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, ConsumerHello, Mode, QosConsumer
from tests.remote_process import RemoteProcess

from .roles import Watcher

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000


def hello(stream_id: int, consumer_id: int, **fields: Any) -> ConsumerHello:
    usual: dict[str, Any] = {
        "supports_shm": True,
        "supports_progress": False,
        "mode": Mode.STREAM,
        "expected_layout_version": 1,
    }
    return ConsumerHello(stream_id=stream_id, consumer_id=consumer_id, **{**usual, **fields})


@pytest.mark.requirement("wire-5-1", "wire-11-1")
@pytest.mark.parametrize(("source_hz", "max_hz"), [(100, 20), (30, 20), (21, 20), (1000, 7), (10, 50)])
def test_a_rate_is_kept_by_the_frames_own_timestamps(
    context: tp.Context, free_stream_id, wait_until, source_hz: int, max_hz: int
) -> None:
    """Ten seconds of the source's time, as fast as they can be offered."""
    few, all_ = context.consumer(free_stream_id, max_rate_hz=max_hz), context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=16)
    wait_until(lambda: few.standing()["on_own"] and all_.epoch is not None)
    assert few.standing()["mode"] == "rate_limited"
    received = 0
    for number in range(10 * source_hz):
        producer.offer(np.arange(4), timestamp_ns=SECOND_NS + number * SECOND_NS // source_hz)
        wait_until(lambda expected=number + 1: len(all_.poll()) or all_.ledger().span == expected)
        received += len(few.poll())
    wait_until(lambda: few.poll() or few.ledger().span >= 10 * source_hz - source_hz)
    received = few.ledger().received
    assert received <= 1.02 * 10 * max_hz + 1
    assert received >= 0.98 * 10 * min(max_hz, source_hz) - 1
    ledger = few.ledger()
    assert ledger.balanced
    assert {reason for reason, count in ledger.dropped.items() if count} <= {"rate_limited"}


@pytest.mark.requirement("wire-11-1")
def test_where_descriptors_have_a_time_that_one_counts(
    context: tp.Context, free_stream_id, wait_until
) -> None:
    """By the times in their slots, a second apart, all of them would be let through."""
    few, all_ = context.consumer(free_stream_id, max_rate_hz=5), context.consumer(free_stream_id)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=256, publish_timestamps=True)
    wait_until(lambda: few.standing()["on_own"] and all_.epoch is not None)
    began = time.monotonic_ns()
    for number in range(200):
        assert producer.offer(np.arange(4), timestamp_ns=SECOND_NS * (1 + number))
    seconds = (time.monotonic_ns() - began) / SECOND_NS
    wait_until(lambda: not all_.poll() and all_.last_seq == 199)
    assert all_.ledger().received == 200
    published = producer.counters()["lane_published"]
    assert 1 <= published <= 1.02 * 5 * seconds + 1
    # It has not polled before: nothing that waits on the shared stream is for it.
    wait_until(few.poll, timeout=60)
    assert few.poll() == []
    assert few.ledger().received == published
    assert not few.ledger().outside["duplicate"]


@pytest.mark.requirement("wire-10.1.2-1", "wire-10.1.2-2", "wire-10.1.3-2")
@pytest.mark.parametrize(
    ("wish", "descriptors", "control"),
    [
        ({}, False, False),
        ({"per_consumer_stream": True}, True, False),
        ({"max_rate_hz": 5}, True, False),
        ({"progress": True}, False, True),
        ({"max_rate_hz": 5, "progress": True}, True, True),
    ],
)
def test_a_consumer_asks_with_channel_and_id_or_not_at_all(
    context: tp.Context,
    wire,
    free_stream_id,
    wait_until,
    wish: dict[str, Any],
    descriptors: bool,
    control: bool,
) -> None:
    heard = wire()
    consumer = context.consumer(free_stream_id, **wish)
    with context.producer(free_stream_id):
        wait_until(lambda: consumer.epoch is not None)
        who = consumer.standing()["consumer_id"]
        # The first, which asks, and one after the answer, which names what is held.
        wait_until(lambda: len(hellos(heard, who)) >= 3)
    for said in hellos(heard, who):
        assert (said.descriptor_channel != "", said.descriptor_stream_id != 0) == (descriptors, descriptors)
        assert (said.control_channel != "", said.control_stream_id != 0) == (control, control)


def hellos(heard: Any, consumer_id: int) -> list[ConsumerHello]:
    said = [one for one in heard.listen() if isinstance(one, ConsumerHello)]
    return [one for one in said if one.consumer_id == consumer_id]


def test_without_a_limit_every_frame_comes_and_none_is_lost_on_the_way_over(
    context: tp.Context, free_stream_id, wait_until
) -> None:
    consumer = context.consumer(free_stream_id, per_consumer_stream=True)
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=1024)
    wait_until(lambda: consumer.epoch is not None)
    sent = 0

    def flow() -> bool:
        nonlocal sent
        sent += bool(producer.offer(np.arange(4)))
        consumer.poll()
        return consumer.standing()["on_own"] and producer.counters()["lane_published"] > 50

    wait_until(flow)
    wait_until(lambda: consumer.poll() == [] and consumer.last_seq == producer.next_seq - 1)
    ledger = consumer.ledger()
    assert ledger.balanced
    assert not any(ledger.dropped.values()), ledger


@pytest.mark.requirement("wire-5-4")
def test_a_rate_means_nothing_on_the_shared_stream(
    context: tp.Context, wire, free_stream_id, wait_until
) -> None:
    producer, consumer = context.producer(free_stream_id, nslots=64), context.consumer(free_stream_id)
    wait_until(lambda: consumer.epoch is not None)
    control = wire()
    # The wish for a rate without a stream of its own.
    control.say(hello(free_stream_id, 7, mode=Mode.RATE_LIMITED, max_rate_hz=1))
    answer = control.find(ConsumerConfig, consumer_id=7)
    assert answer == ConsumerConfig(stream_id=free_stream_id, consumer_id=7, use_shm=True, mode=Mode.STREAM)
    for _ in range(32):
        producer.offer(np.arange(4))
    wait_until(lambda: consumer.poll() == [] and consumer.ledger().received == 32)


@pytest.mark.requirement("wire-5-8", "wire-10.1.2-1", "wire-10.1.2-2", "wire-10.1.3-3", "wire-10.1.3-4")
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
def test_what_cannot_be_granted_is_declined(context, wire, free_stream_id, fields) -> None:
    producer = context.producer(free_stream_id)
    control = wire()
    control.say(hello(free_stream_id, 9, **fields))
    answer = control.find(ConsumerConfig, consumer_id=9)
    assert (answer.descriptor_channel, answer.descriptor_stream_id) == ("", 0)
    assert (answer.control_channel, answer.control_stream_id) == ("", 0)
    assert producer.consumers() == (1, 0)


@pytest.mark.parametrize("fields", [{"supports_shm": False}, {"expected_layout_version": 2}])
def test_who_cannot_read_shared_memory_is_not_told_to(context, wire, free_stream_id, fields) -> None:
    producer = context.producer(free_stream_id)
    control = wire()
    asks = {"descriptor_channel": "aeron:ipc", "descriptor_stream_id": 31_500, **fields}
    control.say(hello(free_stream_id, 9, **asks))
    answer = control.find(ConsumerConfig, consumer_id=9)
    assert (answer.use_shm, answer.descriptor_channel, answer.descriptor_stream_id) == (False, "", 0)
    assert producer.consumers() == (1, 0)


@pytest.mark.requirement("wire-10.1.3-2", "wire-10.1.3-4")
def test_a_declined_consumer_stays_on_the_shared_stream_and_says_so(
    options, free_stream_id, wait_until, monkeypatch
) -> None:
    with tp.open(**options) as ctx:
        producer = ctx.producer(free_stream_id)
        monkeypatch.setenv("TENSORPOOL_CONTEXT__PER_CONSUMER_DESCRIPTOR_IDS", "41000-41009")
        with tp.open("driver", **options) as other:
            consumer = other.consumer(free_stream_id, max_rate_hz=5)
            wait_until(lambda: consumer.standing()["declined"])
            assert consumer.standing()["mode"] == "stream"
            wait_until(lambda: producer.offer(np.arange(3)) and consumer.receive_or_none(0.1) is not None)
            assert "declined" in {event.kind for event in other.events(0.1)}


@pytest.mark.requirement("wire-5-2", "wire-5-3", "wire-10.1.3-5")
def test_a_stream_is_closed_when_its_consumer_falls_silent_and_qos_alone_keeps_it(
    context, wire, free_stream_id, wait_until
) -> None:
    producer = context.producer(free_stream_id)
    control, qos = wire(), wire(context.stream_ids.qos)
    control.say(hello(free_stream_id, 11, descriptor_channel="aeron:ipc", descriptor_stream_id=31_777))
    wait_until(lambda: producer.consumers() == (1, 1))
    report = QosConsumer(
        stream_id=free_stream_id,
        consumer_id=11,
        epoch=producer.epoch,
        last_seq_seen=0,
        drops_gap=0,
        drops_late=0,
        mode=Mode.STREAM,
    )
    heard_of = len(qos.heard)
    # Far longer than the five periods after which silence means gone.
    for _ in range(20):
        qos.say(report)
        wait_until(
            lambda seen=heard_of: len([m for m in qos.listen() if type(m).__name__ == "QosProducer"]) > seen
        )
        heard_of = len([m for m in qos.heard if type(m).__name__ == "QosProducer"])
        assert producer.consumers() == (1, 1)
    wait_until(lambda: producer.consumers() == (0, 0))


@pytest.mark.requirement("wire-5-2")
def test_the_streams_of_consumers_that_were_killed_are_closed(
    options, context, free_stream_id, wait_until
) -> None:
    producer = context.producer(free_stream_id)
    mode = context.mode if context.mode == "standalone" else "driver"
    with RemoteProcess(Watcher, mode, options) as watcher:
        watcher.call(
            "watch", stream_id=free_stream_id, wishes=[{"per_consumer_stream": True}, {"max_rate_hz": 5}]
        )
        wait_until(lambda: producer.consumers() == (2, 2))
        watcher.kill()
    wait_until(lambda: producer.consumers() == (0, 0))
    assert producer.offer(np.arange(3)).outcome in ("not_connected", "published")


def test_twenty_consumers_with_wishes_of_their_own(context, free_stream_id, wait_until) -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"per_consumer_stream": True},
        {"max_rate_hz": 10},
        {"policy": "latest"},
    ]
    consumers = [context.consumer(free_stream_id, **wishes[i % 4]) for i in range(20)]
    producer = context.producer(free_stream_id, pools=["64KiB"], nslots=256)
    wait_until(lambda: producer.consumers() == (20, 10) and all(c.epoch for c in consumers))
    wait_until(lambda: all(c.standing()["on_own"] for c in consumers[1::4] + consumers[2::4]))
    for number in range(200):
        producer.offer(np.full(4, number), timestamp_ns=SECOND_NS + number * SECOND_NS // 100)
        for consumer in consumers:
            consumer.poll()
    for consumer in consumers:
        wait_until(lambda one=consumer: not one.poll() and (one.last_seq or 0) >= 180)
        assert consumer.ledger().balanced
    for consumer in consumers[2::4]:
        assert 19 <= consumer.ledger().received <= 22
    for consumer in consumers[0::4] + consumers[1::4]:
        assert consumer.ledger().received == 200
