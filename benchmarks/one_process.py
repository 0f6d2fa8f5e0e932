"""Publish and consume in one process, compared with a bare copy of the same bytes into the same ring.

Rounds of both alternate, so that a slow moment of the machine affects both. The bare copy uses the same copy
routine, source and slots (mapped a second time: the same pages), and changes the first and the last value of
the source in the same way. Runs as `python -m benchmarks.one_process PLAN`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from .endpoint_process import exit_with_parent, write_line
from .library import Plan, Source
from .peers import tensorpool

_ROUND_S = 0.02


def run(plan: Plan) -> dict[str, Any]:
    """Measures both and returns microseconds per frame."""
    source = Source(plan.size_bytes)
    stride = tensorpool.pool_stride(plan.size_bytes)
    with (
        tensorpool.open_context(plan) as context,
        context.producer(tensorpool.STREAM_ID, pools=[stride], nslots=plan.nslots) as producer,
        context.consumer(tensorpool.STREAM_ID, idle="busy-spin") as consumer,
    ):
        offer, receive, array = producer.offer, consumer.receive_or_none, source.array
        wrong = 0

        def publish_and_consume() -> None:
            nonlocal wrong
            offer(array)
            frame = receive(1.0)
            if frame is None:
                wrong += 1
                return
            got = frame.array
            is_intact = got.item(0) == got.item(-1)
            wrong += not (frame.valid() and is_intact)

        bare_copy = tensorpool.make_bare_copy(tensorpool.map_slots(producer, plan), source)
        while True:
            offer(array)
            if receive(_ROUND_S) is not None:
                break
        while receive(_ROUND_S) is not None:
            pass
        count = _calibrate(bare_copy, source)
        for work in (bare_copy, publish_and_consume):
            _run_round(work, source, count)
        bare_ns, ours_ns = [], []
        for _ in range(max(3, int(plan.rate_s / _ROUND_S / 2))):
            bare_ns.append(_run_round(bare_copy, source, count))
            ours_ns.append(_run_round(publish_and_consume, source, count))
    return {
        "bare_copy_us": statistics.median(bare_ns) / 1e3,
        "publish_consume_us": statistics.median(ours_ns) / 1e3,
        "wrong": wrong,
    }


def _calibrate(work: Callable[[], None], source: Source) -> int:
    count = 1
    while (per_call := _run_round(work, source, count)) * count < _ROUND_S * 1e9 / 4:
        count *= 2
    return max(1, int(_ROUND_S * 1e9 / per_call))


def _run_round(work: Callable[[], None], source: Source, count: int) -> float:
    """Runs the work `count` times; returns the nanoseconds of one."""
    values, clock = source.values, time.perf_counter_ns
    began = clock()
    for number in range(count):
        values[0] = values[-1] = number
        work()
    return (clock() - began) / count


if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(run(Plan.from_json(sys.argv[1]))))
