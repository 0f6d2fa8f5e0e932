"""Latency of frames: measured by the consumer, published on the status stream and as Aeron counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import sbe
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.runtime import read_aeron_counters
from tests.remote_process import Background

DEADLINE_S = 60.0
FRAMES = 20


def pair(ctx: tp.Context, stream_id: int, **options: Any) -> tuple[tp.Producer, tp.Consumer]:
    producer, consumer = ctx.producer(stream_id, nslots=64, **options), ctx.consumer(stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    return producer, consumer


def send(producer: tp.Producer, consumer: tp.Consumer, frames: int = FRAMES, **options: Any) -> list[int]:
    """Nanoseconds from the offer to the receipt of each frame, measured by the test."""
    durations = []
    for number in range(frames):
        started = time.monotonic_ns()
        assert producer.offer(np.full(4, number), **options)
        consumer.receive(DEADLINE_S)
        durations.append(time.monotonic_ns() - started)
    return durations


@pytest.mark.requirement("wire-10.2.1-4")
@pytest.mark.parametrize("has_publish_time", [False, True])
def test_latency_is_measured_from_the_publication_of_a_frame(
    connect: Callable[..., tp.Context], free_stream_id: int, has_publish_time: bool
) -> None:
    producer, consumer = pair(connect(), free_stream_id, publish_timestamps=has_publish_time)
    assert consumer.latency().since is None
    durations = send(producer, consumer)
    latency = consumer.latency()
    assert latency.since == ("publish" if has_publish_time else "capture")
    assert (latency.total.count, latency.excluded) == (FRAMES, 0)
    # Shorter than measured by the test; the figures are exact to one part in 64.
    assert 0 < latency.total.p50_ns <= latency.total.p99_ns <= latency.total.max_ns <= max(durations)
    assert latency.total.p50_ns <= sorted(durations)[FRAMES // 2] * 65 // 64 + 1


@pytest.mark.parametrize("policy", ["stream", "latest"])
def test_latency_includes_the_wait_for_the_consumer(
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
    assert consumer.latency().total.max_ns > 40_000_000


def test_timestamps_of_another_clock_are_excluded_and_counted(
    connect: Callable[..., tp.Context], free_stream_id: int
) -> None:
    producer, consumer = pair(connect(), free_stream_id)
    now = time.monotonic_ns()
    for stamp in (1, now + 3_600_000_000_000, time.time_ns()):
        send(producer, consumer, 1, timestamp_ns=stamp)
    latency = consumer.latency()
    assert (latency.since, latency.total.count, latency.excluded) == (None, 0, 3)
    send(producer, consumer, 2)
    assert (consumer.latency().total.count, consumer.latency().excluded) == (2, 3)


def test_latency_uses_the_publish_timestamp_before_the_source_time(
    connect: Callable[..., tp.Context], free_stream_id: int
) -> None:
    """A bridge or a replay keeps the timestamps of the source and publishes the frames now."""
    producer, consumer = pair(connect(), free_stream_id, publish_timestamps=True)
    durations = send(producer, consumer, timestamp_ns=1)
    latency = consumer.latency()
    assert (latency.since, latency.total.count, latency.excluded) == ("publish", FRAMES, 0)
    assert latency.total.max_ns <= max(durations)


def test_last_interval_is_empty_after_a_period_without_frames(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    producer, consumer = pair(connect(), free_stream_id)
    wait_until(lambda: send(producer, consumer, 2) and consumer.latency().last.count > 0)
    wait_until(lambda: consumer.latency().last.count == 0)
    assert consumer.latency().total.count == consumer.ledger().received > 0


def test_latency_is_published_on_the_status_stream(
    connect: Callable[..., tp.Context], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect()
    producer, consumer = pair(ctx, free_stream_id)
    events: list[Any] = []

    def listen(stop: threading.Event) -> None:
        for event in ctx.status_events(timeout=DEADLINE_S):
            if event.tag != f"service:consumer:{free_stream_id}":
                continue
            assert isinstance(event.value, bytes)
            # The first report may be of an interval without frames.
            if sbe.ConsumerStatus.decode(event.value).interval_frames:
                events.append(event)
                return

    listener = Background(listen)
    wait_until(lambda: send(producer, consumer, 5) and events)
    listener.stop()
    (event,) = events
    assert (event.key, event.correlation_id) == ("status", 0)
    assert abs(event.timestamp_ns - time.time_ns()) < DEADLINE_S * 1e9
    report = sbe.ConsumerStatus.decode(event.value)
    assert report.stream_id == free_stream_id
    assert report.consumer_id == consumer.state().consumer_id
    assert report.latency_since is sbe.TimeOrigin.CAPTURE
    assert 0 < report.interval_p50_ns <= report.interval_p99_ns <= report.interval_max_ns
    assert report.interval_max_ns <= consumer.latency().total.max_ns
    assert 0 < report.interval_frames <= report.total_frames <= consumer.latency().total.count


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

    def has_both_consumers() -> bool:
        send(producer, first, 3)
        second.poll()
        monitor.poll()
        return reported_latencies(monitor, free_stream_id) == 2

    wait_until(has_both_consumers)
    monitor.close()


def stream_counters(aeron_dir: Path, stream_id: int) -> dict[str, int]:
    """Values of the Aeron counters of a stream, by name."""
    counters = [counter for counter in read_aeron_counters(str(aeron_dir)) if counter.is_tensorpool]
    return {
        counter.label.split("@")[1].split(" ", 1)[1]: counter.value
        for counter in counters
        if f"/{stream_id}@" in counter.label
    }


def test_aeron_counters_exist_as_long_as_their_endpoint(
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
    wait_until(lambda: names.items() <= stream_counters(aeron_dir, free_stream_id).items())
    assert stream_counters(aeron_dir, free_stream_id).keys() - names == {
        "latency p50 (ns)",
        "latency p99 (ns)",
    }
    wait_until(
        lambda: (
            send(producer, consumer, 2) and stream_counters(aeron_dir, free_stream_id)["latency p99 (ns)"] > 0
        )
    )
    consumer.close()
    wait_until(
        lambda: (
            set(stream_counters(aeron_dir, free_stream_id)) == {"published (frames)", "unpublished (frames)"}
        )
    )
    producer.close()
    wait_until(lambda: not stream_counters(aeron_dir, free_stream_id))


def test_latency_reports_and_aeron_counters_can_be_disabled(
    connect: Callable[..., tp.Context], aeron_dir: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect(report_latency="false", aeron_counters="false")
    producer, consumer = pair(ctx, free_stream_id)
    monitor = SystemMonitor(ctx.connection)
    wait_until(lambda: send(producer, consumer, 2) and consumer.latency().last.count)
    monitor.poll()
    assert reported_latencies(monitor, free_stream_id) == 0
    assert stream_counters(aeron_dir, free_stream_id) == {}
    assert consumer.latency().total.count > 0
    monitor.close()


def test_at_most_64_endpoints_of_a_context_publish_reports(
    connect: Callable[..., tp.Context], aeron_dir: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ctx = connect(mode="standalone")
    consumers = [ctx.consumer(free_stream_id) for _ in range(66)]
    expected = 64 * 4

    def counters() -> int:
        return sum(f"/{free_stream_id}@" in counter.label for counter in read_aeron_counters(str(aeron_dir)))

    wait_until(lambda: counters() == expected)
    consumers[0].close()
    wait_until(lambda: counters() == expected - 4)
    consumers.append(ctx.consumer(free_stream_id))
    wait_until(lambda: counters() == expected)
