"""How long frames take: measured by the consumer, told on the status stream and among Aeron's counters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.runtime import read_aeron_counters
from tests.remote import Background

DEADLINE_S = 60.0
FRAMES = 20


def pair(ctx: tp.Context, stream_id: int, **options: Any) -> tuple[tp.Producer, tp.Consumer]:
    producer, consumer = ctx.producer(stream_id, nslots=64, **options), ctx.consumer(stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    return producer, consumer


def send(producer: tp.Producer, consumer: tp.Consumer, frames: int = FRAMES, **options: Any) -> list[int]:
    """Nanoseconds between the offer and the consumer's having each frame, from outside."""
    taken = []
    for number in range(frames):
        began = time.monotonic_ns()
        assert producer.offer(np.full(4, number), **options)
        consumer.receive(DEADLINE_S)
        taken.append(time.monotonic_ns() - began)
    return taken


@pytest.mark.requirement("wire-10.2.1-4")
@pytest.mark.parametrize("has_publish_time", [False, True])
def test_every_frame_counts_from_its_publication(
    connect: Callable[..., tp.Context], free_stream_id: int, has_publish_time: bool
) -> None:
    producer, consumer = pair(connect(), free_stream_id, publish_timestamps=has_publish_time)
    assert consumer.latency().since is None
    taken = send(producer, consumer)
    latency = consumer.latency()
    assert latency.since == ("publish" if has_publish_time else "capture")
    assert (latency.life.count, latency.left_out) == (FRAMES, 0)
    # Within the offers as they were seen from outside; figures are true to one part in 64.
    assert 0 < latency.life.p50_ns <= latency.life.p99_ns <= latency.life.max_ns <= max(taken)
    assert latency.life.p50_ns <= sorted(taken)[FRAMES // 2] * 65 // 64 + 1


@pytest.mark.parametrize("policy", ["stream", "latest"])
def test_a_frame_that_waits_for_its_reader_is_late(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any], policy: Any
) -> None:
    ctx = connect()
    producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id, policy=policy)
    assert consumer.wait_for_producer(DEADLINE_S)
    published = time.monotonic_ns()
    assert producer.offer(np.zeros(4))
    wait_until(lambda: time.monotonic_ns() > published + 50_000_000)
    if policy == "latest":
        assert consumer.receive(DEADLINE_S) is not None
    else:
        wait_until(consumer.poll)
    assert consumer.latency().life.max_ns > 40_000_000


def test_times_of_another_clock_are_left_out_and_counted(
    connect: Callable[..., tp.Context], free_stream_id: int
) -> None:
    producer, consumer = pair(connect(), free_stream_id)
    now = time.monotonic_ns()
    for stamp in (1, now + 3_600_000_000_000, time.time_ns()):
        send(producer, consumer, 1, timestamp_ns=stamp)
    latency = consumer.latency()
    assert (latency.since, latency.life.count, latency.left_out) == (None, 0, 3)
    send(producer, consumer, 2)
    assert (consumer.latency().life.count, consumer.latency().left_out) == (2, 3)


def test_a_source_time_does_not_hide_the_time_of_publication(
    connect: Callable[..., tp.Context], free_stream_id: int
) -> None:
    """A bridge, a replay: frames keep the times of their source and are published here and now."""
    producer, consumer = pair(connect(), free_stream_id, publish_timestamps=True)
    taken = send(producer, consumer, timestamp_ns=1)
    latency = consumer.latency()
    assert (latency.since, latency.life.count, latency.left_out) == ("publish", FRAMES, 0)
    assert latency.life.max_ns <= max(taken)


def test_the_last_interval_ends_by_itself_and_forgets(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = pair(connect(), free_stream_id)
    wait_until(lambda: send(producer, consumer, 2) and consumer.latency().last.count > 0)
    wait_until(lambda: consumer.latency().last.count == 0)
    assert consumer.latency().life.count == consumer.ledger().received > 0


def test_it_is_told_on_the_status_stream(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect()
    producer, consumer = pair(ctx, free_stream_id)
    heard: list[Any] = []

    def listen(stop: threading.Event) -> None:
        for event in ctx.status_events(timeout=DEADLINE_S):
            if event.tag == f"service:consumer:{free_stream_id}":
                heard.append(event)
                return

    listening = Background(listen)
    wait_until(lambda: send(producer, consumer, 5) and heard)
    listening.stop()
    (event,) = heard
    assert (event.key, event.correlation_id) == ("latency", 0)
    assert abs(event.timestamp_ns - time.time_ns()) < DEADLINE_S * 1e9
    told = json.loads(event.value)
    assert told["stream_id"] == free_stream_id
    assert told["consumer_id"] == consumer.standing()["consumer_id"]
    assert told["since"] == "capture"
    assert 0 < told["p50_ns"] <= told["p99_ns"] <= told["max_ns"] <= consumer.latency().life.max_ns
    assert 0 < told["count"] <= told["life"]["count"] == told["received"]


def reported_latencies(monitor: SystemMonitor, stream_id: int) -> int:
    """The number of consumers that report a latency."""
    stream = monitor.snapshot().stream(stream_id)
    consumers = () if stream is None else stream.consumers
    return sum(consumer.latency is not None for consumer in consumers)


def test_monitor_has_the_latency_of_every_consumer(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect()
    producer, first = pair(ctx, free_stream_id)
    second = ctx.consumer(free_stream_id)
    assert second.wait_for_producer(DEADLINE_S)
    monitor = SystemMonitor(ctx.connection)

    def has_both() -> bool:
        send(producer, first, 3)
        second.poll()
        monitor.poll()
        return reported_latencies(monitor, free_stream_id) == 2

    wait_until(has_both)
    monitor.close()


def labels(aeron_dir: Path, stream_id: int) -> dict[str, int]:
    """What stands among the media driver's counters of that stream, by its name."""
    found = [one for one in read_aeron_counters(str(aeron_dir)) if one.is_tensorpool]
    return {
        one.label.split("@")[1].split(" ", 1)[1]: one.value for one in found if f"/{stream_id}@" in one.label
    }


def test_a_few_counters_stand_in_the_media_driver_and_go_with_their_owner(
    connect: Callable[..., tp.Context], aeron_dir: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = pair(connect(), free_stream_id)
    send(producer, consumer)
    names = {
        "published (frames)": FRAMES,
        "unpublished (frames)": 0,
        "received (frames)": FRAMES,
        "dropped (frames)": 0,
    }
    wait_until(lambda: names.items() <= labels(aeron_dir, free_stream_id).items())
    assert labels(aeron_dir, free_stream_id).keys() - names == {"latency p50 (ns)", "latency p99 (ns)"}
    wait_until(
        lambda: send(producer, consumer, 2) and labels(aeron_dir, free_stream_id)["latency p99 (ns)"] > 0
    )
    consumer.close()
    wait_until(
        lambda: set(labels(aeron_dir, free_stream_id)) == {"published (frames)", "unpublished (frames)"}
    )
    producer.close()
    wait_until(lambda: not labels(aeron_dir, free_stream_id))


def test_both_can_be_switched_off(
    connect: Callable[..., tp.Context], aeron_dir: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect(tell_latency="false", aeron_counters="false")
    producer, consumer = pair(ctx, free_stream_id)
    monitor = SystemMonitor(ctx.connection)
    wait_until(lambda: send(producer, consumer, 2) and consumer.latency().last.count)
    monitor.poll()
    assert reported_latencies(monitor, free_stream_id) == 0
    assert labels(aeron_dir, free_stream_id) == {}
    assert consumer.latency().life.count > 0
    monitor.close()


def test_no_more_than_so_many_of_a_program_are_told_of(
    connect: Callable[..., tp.Context], aeron_dir: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect(mode="standalone")
    consumers = [ctx.consumer(free_stream_id) for _ in range(66)]
    wanted = 64 * 4
    found = lambda: sum(f"/{free_stream_id}@" in one.label for one in read_aeron_counters(str(aeron_dir)))  # noqa: E731
    wait_until(lambda: found() == wanted)
    consumers[0].close()
    wait_until(lambda: found() == wanted - 4)
    consumers.append(ctx.consumer(free_stream_id))
    wait_until(lambda: found() == wanted)
