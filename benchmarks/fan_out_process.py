"""Processes of the fan-out measurement: `python -m benchmarks.fan_out_process ROLE PLAN`.

`producer` takes one step for each line on stdin, with the next number of consumers of the plan. `readers`
takes two: it opens its share of the consumers, and later says what each of them got. Both print a line of
JSON for each step.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorpool as tp

from .driver_process import media_driver_dir
from .endpoint_process import exit_with_parent, pin_to_core, write_line
from .library import WORD_BYTES
from .peers.tensorpool import STREAM_ID, pool_stride
from .plan import JsonPlan

# A ring holds eight bursts: a reader that gets no processor for some of them loses nothing.
_NSLOTS, _BURST = 256, 32
_PAUSE_S = 0.02
_READER_PAUSE_S = 0.001
_SETTLED_S = 0.25
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class FanOutPlan(JsonPlan):
    """Plan of one run: frames of one size, growing numbers of consumers."""

    directory: str
    size_bytes: int
    counts: tuple[int, ...]
    """Consumers of the stream, by step."""
    rounds: int
    """Bursts of a step."""
    processes: int
    """Processes that the consumers are spread over."""
    share: int = 0
    """Which of these processes this one is."""

    def consumers(self, count: int) -> int:
        """Consumers of this process in a step with so many in total."""
        return len(range(self.share, count, self.processes))


def _open(plan: FanOutPlan) -> tp.Context:
    return tp.open(
        "driver",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def produce(plan: FanOutPlan) -> None:
    """Measures an offer with growing numbers of consumers."""
    array = np.zeros(plan.size_bytes // WORD_BYTES, np.uint64)
    with (
        _open(plan) as context,
        context.producer(STREAM_ID, pools=[pool_stride(plan.size_bytes)], nslots=_NSLOTS) as producer,
    ):
        pin_to_core(0)
        write_line("ready")
        for _, _ in zip(plan.counts, sys.stdin, strict=False):
            if not producer.wait_for_consumer(_TIMEOUT_S):
                raise SystemExit(f"no consumer within {_TIMEOUT_S:.0f} s")
            before = producer.counters()
            _burst(producer, array)
            bursts = [_burst(producer, array) for _ in range(plan.rounds)]
            after = producer.counters()
            cpu_ns, elapsed_ns = zip(*bursts, strict=True)
            write_line(
                json.dumps(
                    {
                        "offer_cpu_ns": statistics.median(cpu_ns),
                        "offer_ns": statistics.median(elapsed_ns),
                        "published": after.published - before.published,
                    }
                )
            )


def _burst(producer: tp.Producer, array: Any) -> tuple[float, float]:
    """Offers a burst, then gives the readers time; returns the nanoseconds of an offer: of this thread's
    processor time, and elapsed."""
    offer, values = producer.offer, array
    began, cpu_began = time.perf_counter_ns(), time.thread_time_ns()
    for number in range(_BURST):
        values[0] = values[-1] = number
        offer(values)
    cpu_ns, elapsed_ns = time.thread_time_ns() - cpu_began, time.perf_counter_ns() - began
    time.sleep(_PAUSE_S)
    return cpu_ns / _BURST, elapsed_ns / _BURST


@dataclass(slots=True)
class _Reader:
    consumer: tp.Consumer
    received: int = 0
    torn: int = 0


def read(plan: FanOutPlan) -> None:
    """Runs this process's share of the consumers."""
    readers: list[_Reader] = []
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            if not sum(_poll(reader) for reader in list(readers)):
                stop.wait(_READER_PAUSE_S)

    with ExitStack() as stack:
        context = stack.enter_context(_open(plan))
        thread = threading.Thread(target=drain)
        thread.start()
        # The thread ends before the context closes.
        stack.callback(thread.join)
        stack.callback(stop.set)
        write_line("ready")
        for count, _ in zip(plan.counts, sys.stdin, strict=False):
            while len(readers) < plan.consumers(count):
                consumer = context.consumer(STREAM_ID)
                if not consumer.wait_for_producer(_TIMEOUT_S):
                    raise SystemExit(f"no producer within {_TIMEOUT_S:.0f} s")
                readers.append(_Reader(consumer))
            before = [reader.received for reader in readers]
            write_line(json.dumps({"consumers": len(readers)}))
            if not sys.stdin.readline():
                return
            _wait_until_settled(lambda: [reader.received for reader in readers])
            received = [reader.received - start for reader, start in zip(readers, before, strict=True)]
            torn = sum(reader.torn for reader in readers)
            write_line(json.dumps({"received": received, "torn": torn}))
        sys.stdin.readline()


def _poll(reader: _Reader) -> int:
    """Reads what has come, in place; returns the number of frames."""
    frames = reader.consumer.poll(_BURST)
    for frame in frames:
        array = frame.array
        is_whole = array.item(0) == array.item(-1)
        if frame.valid():
            reader.received += 1
            reader.torn += not is_whole
    return len(frames)


def _wait_until_settled(sample: Callable[[], list[int]]) -> None:
    """Waits until the readers have read what is there."""
    previous: list[int] = []
    while (current := sample()) != previous:
        previous = current
        time.sleep(_SETTLED_S)


ROLES = {"producer": produce, "readers": read}

if __name__ == "__main__":
    exit_with_parent()
    ROLES[sys.argv[1]](FanOutPlan.from_json(sys.argv[2]))
