"""Streams in the domain REALTIME_SYNCED have the times of a synchronised wall clock (wire §10.1.1, §15.7)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.monitor.listener import read_activity
from tensorpool.sbe import ClockDomain, ShmPoolAnnounce, SlotHeader, decode

_PRODUCER = """
import sys, tensorpool as tp
aeron_dir, base, stream_id = sys.argv[1:]
options = {"media_driver": "external", "announce_period": 0.2, "clock_domain": "realtime_synced"}
context = tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=base, **options)
producer = context.producer(int(stream_id), nslots=4, pools=[64])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def open_context(aeron_dir: Path, shm_base: Path) -> Iterator[Callable[..., tp.Context]]:
    with tp.MediaDriver(aeron_dir), ExitStack() as stack:

        def make(mode: Any, **more: Any) -> tp.Context:
            options: dict[str, Any] = {"aeron_dir": aeron_dir, "shm_base_dir": shm_base, **more}
            return stack.enter_context(tp.open(mode, media_driver="external", announce_period=0.2, **options))

        yield make


@pytest.mark.requirement("wire-15.7-2")
@pytest.mark.parametrize("mode", ["standalone", "embedded", "driver"])
def test_times_of_a_stream_are_of_the_announced_clock(
    open_context: Callable[..., tp.Context], mode: str, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    if mode == "driver":
        open_context("embedded", clock_domain="realtime_synced")
    context = open_context(mode, clock_domain="realtime_synced")
    announces = context.connection.subscription(context.stream_ids.announce, tethered=True)
    before_ns = time.time_ns()
    producer = context.producer(free_stream_id, nslots=8, pools=[64], publish_timestamps=True)
    consumer = context.consumer(free_stream_id, timeout=60)
    assert consumer.wait_for_producer(60)
    assert producer.wait_for_consumer(60)
    times = []
    for claims in range(3):
        # Claims that are committed in the other order must not turn the times around.
        slots = [producer.claim((4,), "u1") for _ in range(2)]
        for slot in reversed(slots):
            slot.commit()
        producer.offer(np.zeros(4, "u1"))
        for _ in range(3):
            frame = consumer.receive(60)
            times.append((frame.timestamp_ns, frame.publish_timestamp_ns))
        assert len(times) == 3 * (claims + 1)
    after_ns = time.time_ns()
    for clock in zip(*times, strict=True):
        assert list(clock) == sorted(clock)
        assert before_ns <= clock[0] <= clock[-1] <= after_ns
    found: list[ShmPoolAnnounce] = []

    def is_announced() -> bool:
        messages = map(decode, announces.poll())
        found.extend(m for m in messages if isinstance(m, ShmPoolAnnounce) and m.epoch == producer.epoch)
        return bool(found)

    wait_until(is_announced)
    assert found[0].announce_clock_domain is ClockDomain.REALTIME_SYNCED
    assert before_ns <= found[0].announce_timestamp_ns <= time.time_ns()
    activity = read_activity(free_stream_id, found[0].epoch, found[0].header_region_uri)
    assert activity is not None
    assert abs(time.monotonic_ns() - activity.activity_ns) < 60e9
    summary = consumer.latency()
    assert summary is not None
    announces.close()


@pytest.mark.parametrize(
    ("drivers", "own"), [("monotonic", "realtime_synced"), ("realtime_synced", "monotonic")]
)
def test_producer_with_another_clock_than_its_driver_is_refused(
    open_context: Callable[..., tp.Context], free_stream_id: int, drivers: str, own: str
) -> None:
    open_context("embedded", clock_domain=drivers)
    context = open_context("driver", clock_domain=own)
    wrong = f"driver is {drivers}, that of this program is {own}; set clock_domain in .aeron."
    with pytest.raises(tp.AttachError, match=wrong) as refused:
        context.producer(free_stream_id, nslots=8, pools=[64])
    assert refused.value.code == "CLOCK_DOMAIN"
    # The lease is returned: a producer with the right clock gets it.
    right = open_context("driver", clock_domain=drivers).producer(free_stream_id, nslots=8, pools=[64])
    # A consumer takes the clock from the announce.
    consumer = context.consumer(free_stream_id, timeout=60)
    assert consumer.wait_for_producer(60)
    assert right.wait_for_consumer(60)
    right.offer(np.zeros(4, "u1"))
    consumer.receive(60)
    latency = consumer.latency()
    assert latency is not None
    assert (latency.total.count, latency.excluded) == (1, 0)


def test_partial_frame_has_the_time_of_the_announced_clock(
    open_context: Callable[..., tp.Context],
    shm_base: Path,
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    context = open_context("standalone", clock_domain="realtime_synced")
    before_ns = time.time_ns()
    producer = context.producer(free_stream_id, nslots=8, pools=[64])
    consumer = context.consumer(free_stream_id, progress=True)
    wait_until(lambda: producer.has_progress_consumers)
    assert not consumer.closed, "without a reference it is closed, perhaps before it has sent its hello"
    with producer.claim((4, 8), "u1", progress="rows"):
        # Its header is written before its rows, for consumers that read the rows.
        [ring] = shm_base.rglob("header.ring")
        timestamp_ns = SlotHeader.decode(ring.read_bytes()[64 : 64 + 256]).timestamp_ns
    assert before_ns <= timestamp_ns <= time.time_ns()


@pytest.mark.leaves_files("the producer is killed")
def test_death_of_a_producer_with_a_synchronised_clock_is_noticed(
    open_context: Callable[..., tp.Context],
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    consumer = open_context("standalone").consumer(free_stream_id)
    arguments = [str(aeron_dir), str(shm_base), str(free_stream_id)]
    with subprocess.Popen(
        [sys.executable, "-c", _PRODUCER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: consumer.epoch is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: consumer.epoch is None)
