"""Twenty consumers with different requests in four processes on one producer; some are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, ConsumerConfigR2, Mode
from tests.remote_process import RemoteProcess

from .roles import ConsumerProcess

SECOND_NS = 1_000_000_000
SOURCE_HZ = 100
# The requests of each process; the first consumer requests nothing.
REQUESTS: list[dict[str, Any]] = [
    {},
    {"per_consumer_stream": True},
    {"max_rate_hz": 10},
    {"max_rate_hz": 50, "policy": "latest"},
    {"per_consumer_stream": True, "progress": True},
]
PER_CONSUMER_STREAMS = 4


class FrameSource:
    """Offers frames with the timestamps of a source of 100 Hz, as fast as possible."""

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
def start_consumers(context: tp.Context, options: dict[str, Any]) -> Iterator[Callable[[int], RemoteProcess]]:
    """`start_consumers(stream_id)`: a process with five consumers that read continuously."""
    mode = context.mode if context.mode == "standalone" else "driver"
    with ExitStack() as stack:

        def start(stream_id: int) -> RemoteProcess:
            process = stack.enter_context(RemoteProcess(ConsumerProcess, mode, options))
            process.call("consume", stream_id=stream_id, requests=REQUESTS)
            process.call("start_reading")
            return process

        yield start


@pytest.mark.requirement("wire-5-2", "wire-10.1.3-5")
def test_killed_consumers_do_not_affect_the_others(
    context: tp.Context,
    start_consumers: Callable[[int], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    producer = context.producer(free_stream_id, pools=["4KiB"], nslots=4096)
    processes = [start_consumers(free_stream_id) for _ in range(4)]
    wait_until(lambda: producer.consumers() == (20, 4 * PER_CONSUMER_STREAMS), timeout=60)

    def all_granted(process: RemoteProcess) -> bool:
        return [state["on_per_consumer"] for state in process.call("states")] == [
            False,
            True,
            True,
            True,
            True,
        ]

    wait_until(lambda: all(map(all_granted, processes)), timeout=60)
    source = FrameSource(producer)

    def every_reader_is_connected() -> bool:
        # Descriptors that are sent before Aeron has connected a reader are lost to it, and a busy machine
        # may need seconds for twenty readers.
        source.run(SOURCE_HZ // 10)
        return all(ledger["received"] for process in processes for ledger in process.call("ledgers"))

    wait_until(every_reader_is_connected, timeout=60)

    def arrived(process: RemoteProcess) -> bool:
        # At the lowest rate up to nine frames follow the last delivered frame.
        last = producer.next_seq - 1
        return all((ledger["last_seq"] or 0) > last - SOURCE_HZ // 10 for ledger in process.call("ledgers"))

    for process in processes:
        wait_until(lambda process=process: arrived(process), timeout=60)
    first = producer.next_seq
    killed, alive = processes[:2], processes[2:]
    before = [[ledger["received"] for ledger in process.call("ledgers")] for process in alive]
    source.run(200)
    for process in killed:
        process.kill()
        source.run(100)
    wait_until(lambda: producer.consumers() == (10, 2 * PER_CONSUMER_STREAMS), timeout=60)
    source.run(100)
    assert source.outcomes == {"published": first + 500}
    # The streams of the killed consumers can be granted again.
    processes += [start_consumers(free_stream_id), start_consumers(free_stream_id)]
    wait_until(lambda: producer.consumers() == (20, 4 * PER_CONSUMER_STREAMS), timeout=60)
    for process, received in zip(alive, before, strict=True):
        wait_until(lambda process=process: arrived(process), timeout=60)
        process.call("stop_reading")
        ledgers = process.call("ledgers")
        assert all(ledger["balanced"] for ledger in ledgers), ledgers
        shared, granted, ten, fifty, progress = ledgers
        for ledger in (shared, granted, progress):
            assert ledger["received"] + ledger["dropped"].get("joining", 0) == first + 500, ledger
            assert set(ledger["dropped"]) <= {"joining"}, ledger
        assert 49 <= ten["received"] - received[2] <= 52, ten
        assert set(ten["dropped"]) == {"rate_limited"}
        assert fifty["received"] - received[3] <= 256
        assert set(fifty["dropped"]) <= {"rate_limited", "skipped"}


def test_order_outlives_later_hellos_of_its_consumer(
    context: tp.Context,
    start_consumers: Callable[[int], RemoteProcess],
    raw_messages: Callable[..., Any],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """A supervisor limits one consumer, whose hellos still request every frame: the order stays in force."""
    producer = context.producer(free_stream_id, pools=["4KiB"], nslots=1024)
    process = start_consumers(free_stream_id)
    wait_until(lambda: producer.consumers() == (5, PER_CONSUMER_STREAMS), timeout=60)
    wait_until(lambda: process.call("states")[1]["on_per_consumer"], timeout=60)
    state = process.call("states")[1]
    consumer_id, descriptor_stream_id = state["consumer_id"], state["descriptors"][1]
    control = raw_messages()
    # Without a rate nothing would be limited, and the producer would answer mode STREAM.
    control.publish(
        ConsumerConfigR2(
            stream_id=free_stream_id,
            consumer_id=consumer_id,
            use_shm=True,
            mode=Mode.RATE_LIMITED,
            descriptor_channel="aeron:ipc",
            descriptor_stream_id=descriptor_stream_id,
            max_rate_hz=5,
        )
    )

    def modes() -> list[str]:
        return [state["mode"] for state in process.call("states")]

    expected = ["stream", "rate_limited", "rate_limited", "rate_limited", "stream"]
    wait_until(lambda: modes() == expected, timeout=60)
    # The producer configs each of many later hellos.

    def configs() -> list[ConsumerConfig]:
        return [
            m for m in control.receive() if isinstance(m, ConsumerConfig) and m.consumer_id == consumer_id
        ]

    before = len(configs())
    wait_until(lambda: len(configs()) >= before + 5, timeout=60)
    assert {config.mode for config in configs()[before:]} == {Mode.RATE_LIMITED}
    assert modes() == expected
    # The order does not apply to another consumer with the same request.
    second = start_consumers(free_stream_id)
    wait_until(lambda: second.call("states")[1]["on_per_consumer"], timeout=60)
    assert second.call("states")[1]["mode"] == "stream"
