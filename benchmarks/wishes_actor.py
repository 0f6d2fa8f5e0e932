"""The processes behind `benchmarks.wishes`: `python -m benchmarks.wishes_actor ROLE PLAN`.

`producer` and `readers` take one step for each line on stdin and answer with a line of JSON: as many streams
for single consumers as the plan says next. `progress` measures by itself and says one line.
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
from typing import Any

import numpy as np

import tensorpool as tp

from .plan_text import PlanText
from .role import obey_the_parent, say

STREAM_ID, ASKED_STREAM_ID = 10_000, 10_001
# One burst fits the ring, and far more than one fits a consumer's own stream.
_NSLOTS, _BURST = 256, 128
_WITHIN_S = 30.0
_ROUND_S = 0.01
_SHAPE = (8, 1)

clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class WishesPlan(PlanText):
    directory: str
    counts: tuple[int, ...]
    """How many consumers have a stream of their own, step by step."""
    rounds: int


def media_driver_dir(directory: str) -> str:
    return f"{directory}/aeron"


def _open(plan: WishesPlan) -> tp.Context:
    return tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {_WITHIN_S:.0f} s")
        time.sleep(0.002)


def produce(plan: WishesPlan) -> None:
    """What one offer costs, with so many streams for single consumers beside the shared one."""
    array = np.zeros(8, np.uint64)
    with _open(plan) as context, context.producer(STREAM_ID, pools=[64], nslots=_NSLOTS) as producer:
        say("ready")
        for count, _ in zip(plan.counts, sys.stdin, strict=False):
            _wait(lambda wanted=count: producer.consumers()[1] == wanted, f"{count} own streams")  # type: ignore[misc]
            _wait(lambda: producer.is_connected, "a reader")
            # Lanes are connected a moment after they are granted: until then descriptors for them are lost.
            _wait(lambda: _burst_arrives(producer, array), "connected streams")
            before = producer.counters()
            offers_ns = [_burst(producer, array) for _ in range(plan.rounds)]
            after = producer.counters()
            told = {name: after[name] - before[name] for name in ("published", "lane_published", "lane_lost")}
            say(json.dumps({"offer_ns": statistics.median(offers_ns), **told}))


def _burst(producer: tp.Producer, array: Any) -> float:
    """Nanoseconds for each of so many offers; then the readers get their time."""
    offer = producer.offer
    began = clock()
    for _ in range(_BURST):
        offer(array)
    each = (clock() - began) / _BURST
    time.sleep(0.01)
    return each


def _burst_arrives(producer: tp.Producer, array: Any) -> bool:
    lost = producer.counters()["lane_lost"]
    _burst(producer, array)
    return producer.counters()["lane_lost"] == lost


def read(plan: WishesPlan) -> None:
    """One reader of the shared stream, and more and more with a stream of their own."""
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
            say("ready")
            for count, _ in zip(plan.counts, sys.stdin, strict=False):
                while len(consumers) < count + 1:
                    consumers.append(context.consumer(STREAM_ID, per_consumer_stream=True))
                _wait(lambda: all(one.standing()["on_own"] for one in consumers[1:]), f"{count} on their own")
                say(json.dumps({"consumers": len(consumers)}))
            sys.stdin.readline()
        finally:
            stop.set()
            thread.join()


def progress(plan: WishesPlan) -> None:
    """Frames without progress: on a stream where nobody asks for it, and on one where somebody does."""
    with (
        _open(plan) as context,
        _stream(context, STREAM_ID, asks=False) as plain,
        _stream(context, ASKED_STREAM_ID, asks=True) as asked,
    ):
        works = {
            "offer_plain_ns": _offering(*plain),
            "offer_asked_ns": _offering(*asked),
            "claim_plain_ns": _claiming(*plain),
            "claim_asked_ns": _claiming(*asked),
            "claim_unheard_ns": _claiming(*plain, progress="rows"),
        }
        count = _calibrate(works["offer_plain_ns"])
        taken: dict[str, list[float]] = {name: [] for name in works}
        for number in range(plan.rounds):
            # Each is first as often as last: whatever drifts hits all alike.
            names = list(works) if number % 2 else list(works)[::-1]
            for name in names:
                taken[name].append(_round(works[name], count))
        missed = sum(consumer.ledger().span - consumer.ledger().received for _, consumer in (plain, asked))
    say(json.dumps({name: statistics.median(ns) for name, ns in taken.items()} | {"missed": missed}))


@contextmanager
def _stream(context: tp.Context, stream_id: int, *, asks: bool) -> Iterator[tuple[tp.Producer, tp.Consumer]]:
    with (
        context.producer(stream_id, pools=[64], nslots=_NSLOTS) as producer,
        context.consumer(stream_id, progress=asks, idle="busy-spin") as consumer,
    ):
        _wait(lambda: consumer.epoch is not None and producer.is_connected, "a mapped stream")
        if asks:
            _wait(lambda: producer.has_listeners, "a listener")
        _wait(lambda: bool(producer.offer(np.zeros(8)) and consumer.receive_or_none(0.1)), "a frame")
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
    while (each := _round(work, count)) * count < _ROUND_S * 1e9 / 4:
        count *= 2
    return max(1, int(_ROUND_S * 1e9 / each))


def _round(work: Callable[[], None], count: int) -> float:
    began = clock()
    for _ in range(count):
        work()
    return (clock() - began) / count


ROLES = {"producer": produce, "readers": read, "progress": progress}

if __name__ == "__main__":
    obey_the_parent()
    ROLES[sys.argv[1]](WishesPlan.from_json(sys.argv[2]))
