"""Publish and consume in one process, next to the bare copy of the same bytes into the same ring.

Rounds of both alternate, so that whatever slows the machine slows both. The bare copy goes through the
same routine, from the same source, around the same slots (mapped a second time: the same pages), and
changes the first and last word of the source like the other. Runs as `python -m benchmarks.one_process PLAN`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from . import ours
from .library import Plan, Source
from .role import obey_the_parent, say

_ROUND_S = 0.02


def run(plan: Plan) -> dict[str, Any]:
    source = Source(plan.size_bytes)
    stride = ours.stride_of(plan.size_bytes)
    with (
        ours.open_context(plan) as context,
        context.producer(ours.STREAM_ID, pools=[stride], nslots=plan.nslots) as producer,
        context.consumer(ours.STREAM_ID, idle="busy-spin") as consumer,
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
            whole = got.item(0) == got.item(-1)
            wrong += not (frame.valid() and whole)

        bare_copy = ours.bare_copier(ours.ring_of(producer, plan), source)
        while True:
            offer(array)
            if receive(_ROUND_S) is not None:
                break
        while receive(_ROUND_S) is not None:
            pass
        count = _calibrate(bare_copy, source)
        for work in (bare_copy, publish_and_consume):
            _round(work, source, count)
        bare_ns, ours_ns = [], []
        for _ in range(max(3, int(plan.rate_s / _ROUND_S / 2))):
            bare_ns.append(_round(bare_copy, source, count))
            ours_ns.append(_round(publish_and_consume, source, count))
    return {
        "bare_copy_us": statistics.median(bare_ns) / 1e3,
        "publish_consume_us": statistics.median(ours_ns) / 1e3,
        "wrong": wrong,
    }


def _calibrate(work: Callable[[], None], source: Source) -> int:
    count = 1
    while (per_call := _round(work, source, count)) * count < _ROUND_S * 1e9 / 4:
        count *= 2
    return max(1, int(_ROUND_S * 1e9 / per_call))


def _round(work: Callable[[], None], source: Source, count: int) -> float:
    """Nanoseconds for each of `count` times."""
    words, clock = source.words, time.perf_counter_ns
    began = clock()
    for number in range(count):
        words[0] = words[-1] = number
        work()
    return (clock() - began) / count


if __name__ == "__main__":
    obey_the_parent()
    say(json.dumps(run(Plan.from_json(sys.argv[1]))))
