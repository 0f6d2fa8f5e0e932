"""Processes of the per-consumer measurements: `python -m benchmarks.per_consumer_process ROLE PLAN`.

`producer` and `readers` take one step for each line on stdin, with the next number of per-consumer streams of
the plan, and print a line of JSON. `progress` measures alone and prints one line.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tensorpool as tp

from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

STREAM_ID, PROGRESS_STREAM_ID = 10_000, 10_001
# A burst fits into the ring, and many bursts fit into a per-consumer stream.
_NSLOTS, _BURST = 256, 128
_TIMEOUT_S = 30.0
_ROUND_S = 0.01
_SHAPE = (8, 1)

clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class PerConsumerPlan(JsonPlan):
    """Plan of both measurements."""

    directory: str
    counts: tuple[int, ...]
    """Number of consumers with a per-consumer stream, by step."""
    rounds: int


def media_driver_dir(directory: str) -> str:
    """Directory of the media driver within that of the measurement."""
    return f"{directory}/aeron"


def _open(plan: PerConsumerPlan) -> tp.Context:
    return tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def _wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {_TIMEOUT_S:.0f} s")
        time.sleep(0.002)


def produce(plan: PerConsumerPlan) -> None:
    """Measures an offer with growing numbers of per-consumer streams beside the shared one."""
    array = np.zeros(8, np.uint64)
    with _open(plan) as context, context.producer(STREAM_ID, pools=[64], nslots=_NSLOTS) as producer:
        write_line("ready")
        for count, _ in zip(plan.counts, sys.stdin, strict=False):
            _wait_for(partial(_has_granted, producer, count), f"{count} per-consumer streams")
            _wait_for(lambda: producer.is_connected, "a reader")
            # Streams connect shortly after the grant: until then their descriptors are lost.
            _wait_for(lambda: _burst_arrives(producer, array), "connected streams")
            before = producer.counters()
            offers_ns = [_burst(producer, array) for _ in range(plan.rounds)]
            after = producer.counters()
            counts = {
                name: getattr(after, name) - getattr(before, name)
                for name in ("published", "per_consumer_published", "per_consumer_lost")
            }
            write_line(json.dumps({"offer_ns": statistics.median(offers_ns), **counts}))


def _has_granted(producer: tp.Producer, count: int) -> bool:
    _, per_consumer = producer.consumers()
    return per_consumer == count


def _burst(producer: tp.Producer, array: Any) -> float:
    """Offers a burst, then gives the readers time; returns the nanoseconds of an offer."""
    offer = producer.offer
    began = clock()
    for _ in range(_BURST):
        offer(array)
    each = (clock() - began) / _BURST
    time.sleep(0.01)
    return each


def _burst_arrives(producer: tp.Producer, array: Any) -> bool:
    lost = producer.counters().per_consumer_lost
    _burst(producer, array)
    return producer.counters().per_consumer_lost == lost


def read(plan: PerConsumerPlan) -> None:
    """Runs one reader of the shared stream and growing numbers with a per-consumer stream."""
    consumers: list[tp.Consumer] = []
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            if not sum(len(consumer.poll(_NSLOTS)) for consumer in list(consumers)):
                stop.wait(0.001)

    with _open(plan) as context:
        consumers.append(context.consumer(STREAM_ID))
        thread = threading.Thread(target=drain)
        thread.start()
        try:
            write_line("ready")
            for count, _ in zip(plan.counts, sys.stdin, strict=False):
                while len(consumers) < count + 1:
                    consumers.append(context.consumer(STREAM_ID, per_consumer_stream=True))
                _wait_for(
                    lambda: all(consumer.state().on_per_consumer for consumer in consumers[1:]),
                    f"{count} granted streams",
                )
                write_line(json.dumps({"consumers": len(consumers)}))
            sys.stdin.readline()
        finally:
            stop.set()
            thread.join()


def progress(plan: PerConsumerPlan) -> None:
    """Measures frames without progress, on a stream without and on one with a request for it."""
    with (
        _open(plan) as context,
        _stream(context, STREAM_ID, requests=False) as plain,
        _stream(context, PROGRESS_STREAM_ID, requests=True) as requested,
    ):
        works = {
            "offer_plain_ns": _offering(*plain),
            "offer_requested_ns": _offering(*requested),
            "claim_plain_ns": _claiming(*plain),
            "claim_requested_ns": _claiming(*requested),
            "claim_no_listener_ns": _claiming(*plain, progress="rows"),
        }
        count = _calibrate(works["offer_plain_ns"])
        taken: dict[str, list[float]] = {name: [] for name in works}
        for number in range(plan.rounds):
            # Each is first as often as last, so that drift affects all of them equally.
            names = list(works) if number % 2 else list(works)[::-1]
            for name in names:
                taken[name].append(_run_round(works[name], count))
        missed = sum(
            consumer.ledger().span - consumer.ledger().received for _, consumer in (plain, requested)
        )
    write_line(json.dumps({name: statistics.median(ns) for name, ns in taken.items()} | {"missed": missed}))


@contextmanager
def _stream(
    context: tp.Context, stream_id: int, *, requests: bool
) -> Iterator[tuple[tp.Producer, tp.Consumer]]:
    with (
        context.producer(stream_id, pools=[64], nslots=_NSLOTS) as producer,
        context.consumer(stream_id, progress=requests, idle="busy-spin") as consumer,
    ):
        _wait_for(lambda: consumer.epoch is not None and producer.is_connected, "a mapped stream")
        if requests:
            _wait_for(lambda: producer.has_progress_consumers, "a listener")
        _wait_for(lambda: bool(producer.offer(np.zeros(8)) and consumer.receive_or_none(0.1)), "a frame")
        while consumer.receive_or_none(0.0) is not None:
            pass
        yield producer, consumer


def _offering(producer: tp.Producer, consumer: tp.Consumer) -> Callable[[], None]:
    offer, receive, array = producer.offer, consumer.receive_or_none, np.zeros(8, np.uint64)

    def work() -> None:
        offer(array)
        receive(1.0)

    return work


def _claiming(producer: tp.Producer, consumer: tp.Consumer, **options: Any) -> Callable[[], None]:
    claim, receive = producer.claim, consumer.receive_or_none

    def work() -> None:
        claim(_SHAPE, "uint64", **options).commit()
        receive(1.0)

    return work


def _calibrate(work: Callable[[], None]) -> int:
    count = 16
    while (each := _run_round(work, count)) * count < _ROUND_S * 1e9 / 4:
        count *= 2
    return max(1, int(_ROUND_S * 1e9 / each))


def _run_round(work: Callable[[], None], count: int) -> float:
    began = clock()
    for _ in range(count):
        work()
    return (clock() - began) / count


ROLES = {"producer": produce, "readers": read, "progress": progress}

if __name__ == "__main__":
    exit_with_parent()
    ROLES[sys.argv[1]](PerConsumerPlan.from_json(sys.argv[2]))
