"""Waits for a frame, which end by a frame, a timeout, a close, Ctrl-C or a cancellation."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests import leaks

DEADLINE_S = 60.0
# For waits that something other than the timeout ends.
LONG_S = 600.0


@pytest.fixture
def unannounced(context, free_stream_id) -> tp.Consumer:
    """A consumer of a stream without a producer."""
    return context.consumer(free_stream_id)


# --- time


def test_timeout_without_a_producer_names_the_stream(unannounced) -> None:
    with pytest.raises(tp.ReceiveTimeout, match=r"within 0\.05 s: stream .* was not announced") as error:
        unannounced.receive(0.05)
    assert error.value.stream_id == unannounced.stream_id
    assert isinstance(error.value, TimeoutError)


def test_timeout_with_a_producer_names_the_cause(stream) -> None:
    with pytest.raises(tp.ReceiveTimeout, match="was published"):
        stream.consumer.receive(0.05)


def test_wait_lasts_as_long_as_its_timeout(unannounced) -> None:
    for timeout in (0.0, 0.12):
        started = time.monotonic()
        assert unannounced.receive_or_none(timeout) is None
        assert time.monotonic() - started >= timeout


def test_timeout_of_the_consumer_is_that_of_its_methods(context, free_stream_id) -> None:
    with context.consumer(free_stream_id, timeout=0.1) as consumer:
        for wait in (consumer.receive, lambda: consumer.take(4)):
            with pytest.raises(tp.ReceiveTimeout, match=r"within 0\.1 s"):
                wait()


def test_iteration_timeout_limits_each_step(connect) -> None:
    stream = connect(consumer={"timeout": 0.1})
    stream.producer.offer(np.zeros(1))
    assert next(stream.consumer).seq == 0
    with pytest.raises(tp.ReceiveTimeout):
        next(stream.consumer)
    stream.producer.offer(np.zeros(1))
    assert next(stream.consumer).seq == 1


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("-inf")])
def test_invalid_timeout_is_refused(unannounced, timeout) -> None:
    with pytest.raises(ValueError, match="no time to wait"):
        unannounced.receive(timeout)


def test_infinite_timeout_is_allowed(stream) -> None:
    stream.producer.offer(np.zeros(1))
    assert stream.consumer.receive(float("inf")).seq == 0


@pytest.mark.parametrize("idle", ["backoff", "busy-spin", "yield", "sleep"])
def test_frame_ends_a_wait_with_every_idle_strategy(connect, idle) -> None:
    stream = connect(consumer={"idle": idle})
    sender = threading.Timer(0.05, lambda: stream.producer.offer(np.full(1, 7)))
    sender.start()
    assert stream.consumer.receive(DEADLINE_S).array[0] == 7
    sender.join()


def test_unknown_idle_strategy_is_refused(context, free_stream_id) -> None:
    with pytest.raises(ValueError, match="backoff, busy-spin, yield or sleep"):
        context.consumer(free_stream_id, idle="doze")


def test_waiting_consumer_uses_little_processor_time(unannounced) -> None:
    cpu, wall = time.thread_time(), time.monotonic()
    unannounced.receive_or_none(1.0)
    assert time.thread_time() - cpu < 0.25 * (time.monotonic() - wall)


# --- receiving


def test_poll_returns_frames_up_to_its_limit(stream) -> None:
    assert stream.consumer.poll() == []
    for value in range(5):
        stream.producer.offer(np.full(1, value))
    assert stream.consumer.wait(DEADLINE_S)
    assert [frame.seq for frame in stream.consumer.poll(2)] == [0, 1]
    assert [frame.seq for frame in stream.consumer.poll(64)] == [2, 3, 4]
    assert stream.consumer.last_seq == 4


def test_wait_receives_no_frame(stream) -> None:
    stream.producer.offer(np.zeros(1))
    assert stream.consumer.wait(DEADLINE_S)
    assert stream.consumer.wait(DEADLINE_S)
    assert stream.consumer.receive(DEADLINE_S).seq == 0
    assert not stream.consumer.wait(0.0)


def test_iteration_returns_every_frame_in_order(stream) -> None:
    for value in range(4):
        stream.producer.offer(np.full(1, value))
    seen = []
    for frame in stream.consumer:
        seen.append(int(frame.array[0]))
        if len(seen) == 4:
            break
    assert seen == [0, 1, 2, 3]


# --- closing


@pytest.mark.parametrize("method", ["iterate", "receive_or_none", "wait"])
def test_close_from_another_thread_ends_a_wait(unannounced, method) -> None:
    ended: list[object] = []

    def wait() -> None:
        if method == "iterate":
            ended.append(list(unannounced))
        elif method == "wait":
            ended.append(unannounced.wait(LONG_S))
        else:
            ended.append(unannounced.receive_or_none(LONG_S))

    waiter = threading.Thread(target=wait)
    waiter.start()
    unannounced.close()
    waiter.join(DEADLINE_S)
    assert ended == [{"iterate": [], "receive_or_none": None, "wait": False}[method]]


def test_close_of_the_context_ends_a_wait(open_context, free_stream_id) -> None:
    context = open_context()
    consumer = context.consumer(free_stream_id)
    ended: list[object] = []
    waiter = threading.Thread(target=lambda: ended.append(list(consumer)))
    waiter.start()
    context.close()
    waiter.join(DEADLINE_S)
    assert ended == [[]]


def test_closed_consumer_returns_no_frames(stream) -> None:
    stream.producer.offer(np.zeros(1))
    stream.consumer.close()
    assert (stream.consumer.closed, stream.consumer.epoch) == (True, None)
    assert stream.consumer.poll() == []
    assert stream.consumer.latest() is None
    assert not stream.consumer.wait(LONG_S)
    assert list(stream.consumer) == []
    with pytest.raises(tp.ReceiveTimeout, match="the consumer is closed"):
        stream.consumer.receive(LONG_S)
    stream.consumer.close()


def test_consumer_is_closed_at_the_end_of_its_block(context, free_stream_id) -> None:
    with context.consumer(free_stream_id) as consumer:
        assert not consumer.closed
    assert consumer.closed


# --- Ctrl-C

WAITS = {
    "receive": "consumer.receive()",
    "iteration": "next(consumer)",
    "busy spin": "context.consumer(int(sys.argv[3]), idle='busy-spin').receive()",
    "async for": (
        "import asyncio\nasync def read():\n    async for frame in consumer: pass\nasyncio.run(read())"
    ),
}


@pytest.mark.parametrize("method", WAITS)
def test_ctrl_c_ends_a_wait(media_driver, shm_base, free_stream_id, method) -> None:
    script = (
        "import sys, tensorpool as tp\n"
        "context = tp.open(aeron_dir=sys.argv[1], media_driver='external', shm_base_dir=sys.argv[2])\n"
        "consumer = context.consumer(int(sys.argv[3]))\n"
        "print('waiting', flush=True)\n" + WAITS[method]
    )
    command = [sys.executable, "-c", script, media_driver.aeron_dir, str(shm_base), str(free_stream_id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], DEADLINE_S)[0]
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in errors
    assert process.returncode in {-signal.SIGINT, 130}


def test_signal_handler_runs_during_a_wait(unannounced) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        assert leaks.wait_for(lambda: unannounced.receive_or_none(0.2) is None and seen, timeout=DEADLINE_S)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


# --- asyncio


def test_async_for_returns_every_frame_in_order(stream) -> None:
    async def read() -> list[int]:
        seen = []
        async for frame in stream.consumer:
            seen.append(int(frame.array[0]))
            if len(seen) < 4:
                stream.producer.offer(np.full(1, len(seen)))
            else:
                break
        return seen

    stream.producer.offer(np.zeros(1))
    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == [0.0, 1, 2, 3]


def test_event_loop_runs_during_an_async_wait(unannounced) -> None:
    async def read() -> int:
        ticks = 0
        reader = asyncio.create_task(anext(aiter(unannounced)))
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not reader.done()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return ticks

    assert asyncio.run(read()) == 20


def test_cancelled_async_wait_loses_no_frame(stream) -> None:
    async def read() -> int:
        reader = asyncio.create_task(anext(aiter(stream.consumer)))
        await asyncio.sleep(0.01)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.producer.offer(np.zeros(1))
        return (await anext(aiter(stream.consumer))).seq

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == 0


def test_close_ends_an_async_for(unannounced) -> None:
    async def read() -> list[tp.Frame]:
        asyncio.get_running_loop().call_later(0.05, unannounced.close)
        return [frame async for frame in unannounced]

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == []


def test_close_from_another_thread_ends_an_async_for(context, free_stream_ids) -> None:
    async def read(consumer: tp.Consumer) -> list[tp.Frame]:
        return [frame async for frame in consumer]

    # With other delays each time: the close comes before, during and after the thread switch.
    for delay in range(12):
        consumer = context.consumer(free_stream_ids())
        closer = threading.Timer(delay * 0.01, consumer.close)
        closer.start()
        assert asyncio.run(asyncio.wait_for(read(consumer), DEADLINE_S)) == []
        closer.join()


def test_timeout_limits_an_async_step(context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id, timeout=0.05)

    async def read() -> None:
        async for _ in consumer:
            pass

    with pytest.raises(tp.ReceiveTimeout):
        asyncio.run(asyncio.wait_for(read(), DEADLINE_S))


def test_another_consumer_may_close_during_the_start_of_a_wait(context, free_stream_ids, monkeypatch) -> None:
    """The garbage collector may close it on the thread that is being started: the thread that waits for the
    start must not hold a lock that the close needs."""
    consumer, other = (context.consumer(free_stream_ids(), timeout=0.05) for _ in range(2))

    class ClosingOther(ThreadPoolExecutor):
        def submit(self, *args, **more):
            closer = threading.Thread(target=other.close)
            closer.start()
            closer.join(DEADLINE_S)
            assert not closer.is_alive()
            return super().submit(*args, **more)

    monkeypatch.setattr("tensorpool.client.consumer.ThreadPoolExecutor", ClosingOther)
    with pytest.raises(tp.ReceiveTimeout):
        asyncio.run(asyncio.wait_for(anext(aiter(consumer)), 2 * DEADLINE_S))


def test_close_right_before_an_async_wait_ends_it(context, free_stream_id, monkeypatch) -> None:
    consumer = context.consumer(free_stream_id)

    class ClosingConsumer(ThreadPoolExecutor):
        def submit(self, *args, **more):
            consumer.close()
            return super().submit(*args, **more)

    monkeypatch.setattr("tensorpool.client.consumer.ThreadPoolExecutor", ClosingConsumer)

    async def read() -> int:
        return len([frame async for frame in consumer])

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == 0


def test_async_wait_raises_for_a_rejected_region(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    uri = f"shm:file?path={producer.directory}/none"
    producer.announce_until(lambda: consumer.counters().refused, header_region_uri=uri)
    with pytest.raises(tp.RegionRejected):
        asyncio.run(asyncio.wait_for(anext(aiter(consumer)), DEADLINE_S))


@pytest.mark.parametrize("polls", [1, 2])
def test_close_between_poll_and_wait_ends_an_async_for(unannounced, polls) -> None:
    # Another thread closes the consumer after an empty poll and before the wait.
    receive_or_none, results = unannounced.receive_or_none, []

    def close_meanwhile(timeout: float | None = None) -> tp.Frame | None:
        results.append(receive_or_none(timeout))
        if len(results) == polls:
            closer = threading.Thread(target=unannounced.close)
            closer.start()
            closer.join()
        return None

    async def read() -> list[tp.Frame]:
        return [frame async for frame in unannounced]

    unannounced.receive_or_none = close_meanwhile
    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == []
    assert results == [None] * polls
    assert not unannounced._waiter.is_started


def test_collected_consumer_does_not_block_the_start_of_a_wait(context, unannounced, free_stream_ids) -> None:
    # The garbage collector may close another consumer at any point of a wait.
    others = [context.consumer(free_stream_ids())]

    async def read() -> None:
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor

        def forget_first(*args: Any) -> asyncio.Future[Any]:
            others.clear()
            gc.collect()
            return run(*args)

        loop.run_in_executor = forget_first  # type: ignore[method-assign, assignment]
        loop.call_later(0.01, unannounced.close)
        async for _ in unannounced:
            pass

    asyncio.run(asyncio.wait_for(read(), DEADLINE_S))
    assert (others, unannounced.closed) == ([], True)
