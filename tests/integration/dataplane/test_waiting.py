"""Every way to wait for a frame ends: by a frame, in time, by a close, by Ctrl-C, by cancellation."""

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
# For waits that have to last until something else ends them.
LONG_S = 600.0


@pytest.fixture
def silent(context, free_stream_id) -> tp.Consumer:
    """A consumer whose producer never comes."""
    return context.consumer(free_stream_id)


# --- time


def test_a_wait_in_vain_says_that_no_producer_was_heard(silent) -> None:
    with pytest.raises(tp.ReceiveTimeout, match=r"within 0\.05 s: stream .* was not announced") as error:
        silent.receive(0.05)
    assert error.value.stream_id == silent.stream_id
    assert isinstance(error.value, TimeoutError)


def test_a_wait_in_vain_for_a_known_producer_says_that_it_was_silent(stream) -> None:
    with pytest.raises(tp.ReceiveTimeout, match="was published"):
        stream.consumer.receive(0.05)


def test_a_timeout_lasts_as_long_as_it_says(silent) -> None:
    for timeout in (0.0, 0.12):
        began = time.monotonic()
        assert silent.receive_or_none(timeout) is None
        assert time.monotonic() - began >= timeout


def test_a_timeout_of_an_iteration_bounds_each_step(connect) -> None:
    stream = connect(consumer={"timeout": 0.1})
    stream.producer.offer(np.zeros(1))
    assert next(stream.consumer).seq == 0
    with pytest.raises(tp.ReceiveTimeout):
        next(stream.consumer)
    stream.producer.offer(np.zeros(1))
    assert next(stream.consumer).seq == 1


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("-inf")])
def test_a_time_that_is_none_is_refused(silent, timeout) -> None:
    with pytest.raises(ValueError, match="no time to wait"):
        silent.receive(timeout)


def test_a_wait_for_ever_may_be_asked_for_by_infinity(stream) -> None:
    stream.producer.offer(np.zeros(1))
    assert stream.consumer.receive(float("inf")).seq == 0


@pytest.mark.parametrize("idle", ["backoff", "busy-spin", "yield", "sleep"])
def test_a_frame_ends_a_wait_with_every_idle_strategy(connect, idle) -> None:
    stream = connect(consumer={"idle": idle})
    sender = threading.Timer(0.05, lambda: stream.producer.offer(np.full(1, 7)))
    sender.start()
    assert stream.consumer.receive(DEADLINE_S).array[0] == 7
    sender.join()


def test_an_unknown_idle_strategy_is_refused(context, free_stream_id) -> None:
    with pytest.raises(ValueError, match="backoff, busy-spin, yield or sleep"):
        context.consumer(free_stream_id, idle="doze")


def test_an_idle_consumer_leaves_the_processor_alone(silent) -> None:
    cpu, wall = time.thread_time(), time.monotonic()
    silent.receive_or_none(1.0)
    assert time.thread_time() - cpu < 0.25 * (time.monotonic() - wall)


# --- taking


def test_poll_takes_what_is_there_up_to_its_limit(stream) -> None:
    assert stream.consumer.poll() == []
    for value in range(5):
        stream.producer.offer(np.full(1, value))
    assert stream.consumer.wait(DEADLINE_S)
    assert [frame.seq for frame in stream.consumer.poll(2)] == [0, 1]
    assert [frame.seq for frame in stream.consumer.poll(64)] == [2, 3, 4]
    assert stream.consumer.last_seq == 4


def test_waiting_takes_nothing(stream) -> None:
    stream.producer.offer(np.zeros(1))
    assert stream.consumer.wait(DEADLINE_S)
    assert stream.consumer.wait(DEADLINE_S)
    assert stream.consumer.receive(DEADLINE_S).seq == 0
    assert not stream.consumer.wait(0.0)


def test_an_iteration_gives_every_frame_in_order(stream) -> None:
    for value in range(4):
        stream.producer.offer(np.full(1, value))
    seen = []
    for frame in stream.consumer:
        seen.append(int(frame.array[0]))
        if len(seen) == 4:
            break
    assert seen == [0, 1, 2, 3]


# --- closing


@pytest.mark.parametrize("how", ["iterate", "receive_or_none", "wait"])
def test_closing_from_another_thread_ends_a_wait(silent, how) -> None:
    ended: list[object] = []

    def wait() -> None:
        if how == "iterate":
            ended.append(list(silent))
        elif how == "wait":
            ended.append(silent.wait(LONG_S))
        else:
            ended.append(silent.receive_or_none(LONG_S))

    waiter = threading.Thread(target=wait)
    waiter.start()
    silent.close()
    waiter.join(DEADLINE_S)
    assert ended == [{"iterate": [], "receive_or_none": None, "wait": False}[how]]


def test_closing_the_context_ends_a_wait(open_context, free_stream_id) -> None:
    context = open_context()
    consumer = context.consumer(free_stream_id)
    ended: list[object] = []
    waiter = threading.Thread(target=lambda: ended.append(list(consumer)))
    waiter.start()
    context.close()
    waiter.join(DEADLINE_S)
    assert ended == [[]]


def test_a_closed_consumer_gives_nothing_and_says_so(stream) -> None:
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


def test_a_consumer_closes_with_its_block(context, free_stream_id) -> None:
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


@pytest.mark.parametrize("how", WAITS)
def test_ctrl_c_ends_a_wait(media_driver, shm_base, free_stream_id, how) -> None:
    script = (
        "import sys, tensorpool as tp\n"
        "context = tp.open(aeron_dir=sys.argv[1], media_driver='external', shm_base_dir=sys.argv[2])\n"
        "consumer = context.consumer(int(sys.argv[3]))\n"
        "print('waiting', flush=True)\n" + WAITS[how]
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


def test_a_signal_handler_runs_while_waiting(silent) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        assert leaks.wait_for(lambda: silent.receive_or_none(0.2) is None and seen, timeout=DEADLINE_S)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


# --- asyncio


def test_async_for_gives_every_frame_in_order(stream) -> None:
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


def test_the_loop_goes_on_while_an_async_reader_waits(silent) -> None:
    async def read() -> int:
        ticks = 0
        reader = asyncio.create_task(anext(aiter(silent)))
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not reader.done()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return ticks

    assert asyncio.run(read()) == 20


def test_a_cancelled_async_reader_loses_no_frame(stream) -> None:
    async def read() -> int:
        reader = asyncio.create_task(anext(aiter(stream.consumer)))
        await asyncio.sleep(0.01)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.producer.offer(np.zeros(1))
        return (await anext(aiter(stream.consumer))).seq

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == 0


def test_closing_ends_an_async_for(silent) -> None:
    async def read() -> list[tp.Frame]:
        asyncio.get_running_loop().call_later(0.05, silent.close)
        return [frame async for frame in silent]

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == []


def test_closing_from_another_thread_ends_an_async_for_whenever_it_comes(context, free_stream_ids) -> None:
    async def read(consumer: tp.Consumer) -> list[tp.Frame]:
        return [frame async for frame in consumer]

    # Over and over, with the close at another moment each time: before, in and after the thread switch.
    for delay in range(12):
        consumer = context.consumer(free_stream_ids())
        closer = threading.Timer(delay * 0.01, consumer.close)
        closer.start()
        assert asyncio.run(asyncio.wait_for(read(consumer), DEADLINE_S)) == []
        closer.join()


def test_a_timeout_bounds_an_async_step(context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id, timeout=0.05)

    async def read() -> None:
        async for _ in consumer:
            pass

    with pytest.raises(tp.ReceiveTimeout):
        asyncio.run(asyncio.wait_for(read(), DEADLINE_S))


def test_another_consumer_may_be_closed_while_an_async_wait_begins(
    context, free_stream_ids, monkeypatch
) -> None:
    """By the garbage collector, on the very thread that is being started: whoever waits for that must not
    hold what the close needs."""
    consumer, other = (context.consumer(free_stream_ids(), timeout=0.05) for _ in range(2))

    class Starting(ThreadPoolExecutor):
        def submit(self, *args, **more):
            closer = threading.Thread(target=other.close)
            closer.start()
            closer.join(DEADLINE_S)
            assert not closer.is_alive()
            return super().submit(*args, **more)

    monkeypatch.setattr("tensorpool.client.consumer.ThreadPoolExecutor", Starting)
    with pytest.raises(tp.ReceiveTimeout):
        asyncio.run(asyncio.wait_for(anext(aiter(consumer)), 2 * DEADLINE_S))


def test_an_async_reader_that_is_closed_right_before_it_waits_ends(
    context, free_stream_id, monkeypatch
) -> None:
    consumer = context.consumer(free_stream_id)

    class Late(ThreadPoolExecutor):
        def submit(self, *args, **more):
            consumer.close()
            return super().submit(*args, **more)

    monkeypatch.setattr("tensorpool.client.consumer.ThreadPoolExecutor", Late)

    async def read() -> int:
        return len([frame async for frame in consumer])

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == 0


def test_an_async_reader_is_told_of_a_refused_region(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    uri = f"shm:file?path={producer.directory}/none"
    producer.announce_until(lambda: consumer.counters()["refused"], header_region_uri=uri)
    with pytest.raises(tp.RegionRejected):
        asyncio.run(asyncio.wait_for(anext(aiter(consumer)), DEADLINE_S))


@pytest.mark.parametrize("looks", [1, 2])
def test_a_close_between_the_look_and_the_wait_ends_an_async_for(silent, looks) -> None:
    # The narrowest moment there is: nothing was there, and before the wait begins another thread closes.
    look, seen = silent.receive_or_none, []

    def close_meanwhile(timeout: float | None = None) -> tp.Frame | None:
        seen.append(look(timeout))
        if len(seen) == looks:
            closer = threading.Thread(target=silent.close)
            closer.start()
            closer.join()
        return None

    async def read() -> list[tp.Frame]:
        return [frame async for frame in silent]

    silent.receive_or_none = close_meanwhile
    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == []
    assert seen == [None] * looks
    assert silent._waiter is None


def test_a_consumer_forgotten_while_another_begins_to_wait_holds_nothing_up(
    context, silent, free_stream_ids
) -> None:
    # The garbage collector may run anywhere, and closes what it finds: also between the two halves of a wait.
    others = [context.consumer(free_stream_ids())]

    async def read() -> None:
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor

        def forget_first(*args: Any) -> asyncio.Future[Any]:
            others.clear()
            gc.collect()
            return run(*args)

        loop.run_in_executor = forget_first  # type: ignore[method-assign, assignment]
        loop.call_later(0.01, silent.close)
        async for _ in silent:
            pass

    asyncio.run(asyncio.wait_for(read(), DEADLINE_S))
    assert (others, silent.closed) == ([], True)
