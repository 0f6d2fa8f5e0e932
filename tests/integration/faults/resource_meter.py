"""A process that measures its processor time and memory while it waits for frames and moves them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

import tensorpool as tp
from tests.remote_process import Background

ELEMENTS = 64


class ResourceMeter:
    """Measures the process with one producer and consumers of its stream."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.context = tp.open(**options)
        self.stream_id = stream_id
        self.producer = self.context.producer(stream_id, pools=["4KiB"], nslots=64)

    # --- waiting

    def wait_for_frames(self, seconds: float, way: Literal["iterate", "async"]) -> dict[str, Any]:
        """Share of a core that the process uses while a consumer waits without frames."""
        consumer = self.context.consumer(self.stream_id)
        ways: dict[str, Callable[[threading.Event], None]] = {
            "iterate": lambda stop: drain(consumer),
            "async": lambda stop: asyncio.run(drain_async(consumer)),
        }
        waiter = Background(ways[way])
        while consumer.epoch is None:
            time.sleep(0.01)
        before, threads, began = time.process_time(), cpu_of_threads(), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        used = (time.process_time() - before) / elapsed
        by_thread = {
            name: round((cpu - threads.get(name, 0.0)) / elapsed, 4) for name, cpu in cpu_of_threads().items()
        }
        consumer.close()
        waiter.stop()
        return {"all": used, "threads": {name: share for name, share in by_thread.items() if share}}

    def count_during_wait(self, seconds: float, idle: Literal["backoff", "busy-spin"]) -> dict[str, int]:
        """Iterations of a Python loop while a consumer waits, and without."""
        consumer = self.context.consumer(self.stream_id, idle=idle)
        waiter = Background(lambda stop: drain(consumer))
        during_wait = count_for(seconds)
        consumer.close()
        waiter.stop()
        return {"during_wait": during_wait, "alone": count_for(seconds)}

    # --- allocations

    def count_allocations(self, frames: int) -> dict[str, int]:
        """Native allocations of this thread by operation, each done `frames` times."""
        counter = ctypes.CDLL(os.environ["COUNTING_MALLOC"]).allocations_of_this_thread
        counter.restype = ctypes.c_ulong
        producer, consumer = self.producer, self.context.consumer(self.stream_id)
        payload = np.arange(ELEMENTS, dtype=np.uint64)
        while consumer.epoch is None or not producer.offer(payload):
            time.sleep(0.01)
        while consumer.poll():
            pass
        received = 0

        def counted(step: Callable[[], object]) -> int:
            for _ in range(1000):
                step()
            before: int = counter()
            for _ in range(frames):
                step()
            return int(counter()) - before

        def claim() -> None:
            with producer.claim((ELEMENTS,), "uint64") as slot:
                slot.array[0] = 1

        def poll() -> None:
            nonlocal received
            producer.offer(payload)
            received += len(consumer.poll())

        def latest() -> None:
            producer.offer(payload)
            consumer.latest()

        frame = None
        while frame is None:
            producer.offer(payload)
            frame = consumer.latest()
        counts = {"offer": counted(lambda: producer.offer(payload))}
        counts["claim"] = counted(claim)
        while consumer.poll(1024):
            pass
        counts["poll"] = counted(poll)
        counts["latest"] = counted(latest)
        # The other input never comes: each frame is matched and held back, and an earlier one is dropped.
        inputs = {"here": self.stream_id, "nowhere": self.stream_id + 1}
        with self.context.join(inputs, by="sequence", depth=64) as join:
            while join.inputs["here"].epoch is None:
                time.sleep(0.01)

            def match() -> None:
                producer.offer(payload)
                join.poll()

            counts["join"] = counted(match)
            matched = join.ledger().inputs["here"].received
        counts["array"] = counted(lambda: frame.array)
        counts["copy_free_check"] = counted(frame.valid)
        counts["known"] = counted(lambda: bytes(2000))
        return {**counts, "received": received, "matched": matched}

    def grow(self, frames: int) -> dict[str, int]:
        """Growth of the process and of Python's heap over this number of frames."""
        producer, consumer = self.producer, self.context.consumer(self.stream_id)
        payload = np.arange(ELEMENTS, dtype=np.uint64)

        def move(count: int) -> None:
            for number in range(count):
                producer.offer(payload)
                if number % 16 == 0:
                    for frame in consumer.poll():
                        frame.array.sum()
                        frame.valid()

        while consumer.epoch is None:
            time.sleep(0.01)
        # The first round touches all pages of the descriptor log.
        move(frames)
        gc.collect()
        tracemalloc.start()
        python, resident = tracemalloc.get_traced_memory()[0], rss_kib()
        tracemalloc.stop()
        move(frames)
        gc.collect()
        grown_kib = rss_kib() - resident
        tracemalloc.start()
        python = tracemalloc.get_traced_memory()[0]
        move(frames // 10)
        gc.collect()
        grown_python = tracemalloc.get_traced_memory()[0] - python
        tracemalloc.stop()
        received = consumer.ledger().received
        consumer.close()
        return {"rss_kib": grown_kib, "python_bytes": grown_python, "received": received}


def drain(consumer: tp.Consumer) -> None:
    """Receives frames until the consumer is closed."""
    for _ in consumer:
        pass


async def drain_async(consumer: tp.Consumer) -> None:
    """Receives frames with `async for` until the consumer is closed."""
    async for _ in consumer:
        pass


def count_for(seconds: float) -> int:
    """Iterations of a loop in this time."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
    return count


def cpu_of_threads() -> dict[str, float]:
    """Processor seconds so far by thread name."""
    seconds: dict[str, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        name, _, rest = (task / "stat").read_text().rpartition(")")
        fields = rest.split()
        name = name.partition("(")[2]
        seconds[name] = seconds.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return seconds


def rss_kib() -> int:
    """Resident memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
