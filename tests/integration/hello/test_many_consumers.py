"""Twenty consumers in four processes, each with its own wishes, on one producer; some of them die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, Mode
from tests.remote_process import RemoteProcess

from .roles import Watcher
from .test_orders_and_qos import order

SECOND_NS = 1_000_000_000
SOURCE_HZ = 100
# One of each kind in every process; the first asks for nothing.
WISHES: list[dict[str, Any]] = [
    {},
    {"per_consumer_stream": True},
    {"max_rate_hz": 10},
    {"max_rate_hz": 50, "policy": "latest"},
    {"per_consumer_stream": True, "progress": True},
]
OWN = 4


class Flow:
    """Frames whose times are the source's: a hundred a second, however fast they are offered."""

    def __init__(self, producer: tp.Producer) -> None:
        self.producer = producer
        self.outcomes: dict[str, int] = {}

    def run(self, frames: int) -> None:
        for _ in range(frames):
            number = self.producer.next_seq
            offered = self.producer.offer(
                np.full(4, number), timestamp_ns=SECOND_NS + number * SECOND_NS // SOURCE_HZ
            )
            self.outcomes[offered.outcome] = self.outcomes.get(offered.outcome, 0) + 1


@pytest.fixture
def crowd(context: tp.Context, options: dict[str, Any]) -> Iterator[Callable[[int], RemoteProcess]]:
    """`crowd(stream_id)`: another process with five consumers that read all the time."""
    mode = context.mode if context.mode == "standalone" else "driver"
    with ExitStack() as stack:

        def join(stream_id: int) -> RemoteProcess:
            process = stack.enter_context(RemoteProcess(Watcher, mode, options))
            process.call("watch", stream_id=stream_id, wishes=WISHES)
            process.call("read_always")
            return process

        yield join


@pytest.mark.requirement("wire-5-2", "wire-10.1.3-5")
def test_the_death_of_some_costs_the_others_nothing(
    context: tp.Context,
    crowd: Callable[[int], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    producer = context.producer(free_stream_id, pools=["4KiB"], nslots=4096)
    processes = [crowd(free_stream_id) for _ in range(4)]
    wait_until(lambda: producer.consumers() == (20, 4 * OWN), timeout=60)

    def all_on_own(process: RemoteProcess) -> bool:
        return [one["on_own"] for one in process.call("standings")] == [False, True, True, True, True]

    wait_until(lambda: all(map(all_on_own, processes)), timeout=60)
    flow = Flow(producer)
    flow.run(200)
    dead, alive = processes[:2], processes[2:]
    for process in dead:
        process.kill()
        flow.run(100)
    wait_until(lambda: producer.consumers() == (10, 2 * OWN), timeout=60)
    flow.run(100)
    assert flow.outcomes == {"published": 500}
    # What the dead had is free again.
    processes += [crowd(free_stream_id), crowd(free_stream_id)]
    wait_until(lambda: producer.consumers() == (20, 4 * OWN), timeout=60)
    last = producer.next_seq - 1

    def arrived(process: RemoteProcess) -> bool:
        # The slowest rate leaves out up to nine frames after the last one that it lets through.
        return all((one["last_seq"] or 0) > last - SOURCE_HZ // 10 for one in process.call("ledgers"))

    for process in alive:
        wait_until(lambda one=process: arrived(one), timeout=60)
        process.call("stop_reading")
        ledgers = process.call("ledgers")
        assert all(one["balanced"] for one in ledgers), ledgers
        every, own, ten, fifty, told = ledgers
        for one in (every, own, told):
            assert (one["received"], one["dropped"]) == (500, {}), one
        assert 49 <= ten["received"] <= 52, ten
        assert set(ten["dropped"]) == {"rate_limited"}
        assert fifty["received"] <= 256
        assert set(fifty["dropped"]) <= {"rate_limited", "skipped"}


def test_an_order_outlives_the_hellos_of_the_one_that_it_is_for(
    context: tp.Context,
    crowd: Callable[[int], RemoteProcess],
    wire: Callable[..., Any],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """A supervisor slows one consumer down. Its hellos go on asking for every frame; the order stands."""
    producer = context.producer(free_stream_id, pools=["4KiB"], nslots=1024)
    process = crowd(free_stream_id)
    wait_until(lambda: producer.consumers() == (5, OWN), timeout=60)
    wait_until(lambda: process.call("standings")[1]["on_own"], timeout=60)
    whom = process.call("standings")[1]["consumer_id"]
    control = wire()
    control.say(order(free_stream_id, whom, mode=Mode.RATE_LIMITED))

    def modes() -> list[str]:
        return [one["mode"] for one in process.call("standings")]

    expected = ["stream", "rate_limited", "rate_limited", "rate_limited", "stream"]
    wait_until(lambda: modes() == expected, timeout=60)
    # Many hellos later, each answered by the producer.

    def answers() -> list[ConsumerConfig]:
        return [m for m in control.listen() if isinstance(m, ConsumerConfig) and m.consumer_id == whom]

    before = len(answers())
    wait_until(lambda: len(answers()) >= before + 5, timeout=60)
    assert {answer.mode for answer in answers()[before:]} == {Mode.RATE_LIMITED}
    assert modes() == expected
    # Another consumer with the same wish is nobody's order.
    second = crowd(free_stream_id)
    wait_until(lambda: second.call("standings")[1]["on_own"], timeout=60)
    assert second.call("standings")[1]["mode"] == "stream"
