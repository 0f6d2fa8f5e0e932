"""Closing in every order, from every thread, or never: nothing hangs, crashes or stays behind."""

from __future__ import annotations

import gc
import itertools
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests import leaks
from tests.remote_process import ROOT, TIMEOUT_S, Background

from .conftest import Environment

WaitUntil = Callable[..., Any]
PAYLOAD = np.arange(64, dtype=np.uint64)


def mapped_pair(
    context: tp.Context, place: Environment, wait_until: WaitUntil
) -> tuple[tp.Producer, tp.Consumer]:
    producer = context.producer(place.stream_id, pools=["4KiB"])
    consumer = context.consumer(place.stream_id)
    wait_until(lambda: consumer.epoch == producer.epoch and producer.is_connected)
    return producer, consumer


def one_frame(producer: tp.Producer, consumer: tp.Consumer, wait_until: WaitUntil) -> tp.Frame:
    frame = wait_until(lambda: producer.offer(PAYLOAD) and consumer.receive_or_none(0.01))
    assert isinstance(frame, tp.Frame)
    return frame


# --- while another thread is at work


USES: dict[str, Callable[[tp.Producer, tp.Consumer, threading.Event], None]] = {}


def use(function: Callable[..., None]) -> Callable[..., None]:
    USES[function.__name__] = function
    return function


@use
def iterating(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    for frame in consumer:
        frame.valid()


@use
def polling(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    while not stop.is_set():
        for frame in consumer.poll():
            frame.valid()


@use
def taking_the_latest(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    while not stop.is_set():
        consumer.latest()


@use
def offering(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    while not stop.is_set():
        producer.offer(PAYLOAD)


@use
def claiming(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            with producer.claim((64,), np.uint64) as slot:
                slot.array[:] = 1
        except tp.ClaimRefused as error:
            if error.outcome != "closed":
                raise


@pytest.mark.parametrize("what", ["endpoints", "context"])
@pytest.mark.parametrize("name", USES)
def test_closing_while_another_thread_works(
    place: Environment, wait_until: WaitUntil, name: str, what: str
) -> None:
    for _ in range(5):
        with tp.open(**place.options) as context:
            producer, consumer = mapped_pair(context, place, wait_until)
            one_frame(producer, consumer, wait_until)
            worker = Background(lambda stop: USES[name](producer, consumer, stop))  # noqa: B023
            feeder = Background(lambda stop: offering(producer, consumer, stop))  # noqa: B023
            received = consumer.ledger().span
            wait_until(lambda: consumer.ledger().span != received or name in ("offering", "claiming"))  # noqa: B023
            if what == "context":
                context.close()
            else:
                consumer.close()
                producer.close()
            worker.stop()
            feeder.stop()
            assert producer.offer(PAYLOAD).outcome == tp.Outcome.CLOSED
            assert consumer.poll() == []
            assert consumer.ledger().balanced
            assert producer.ledger().balanced


def test_two_threads_that_close_the_same_context_both_return(place: Environment) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            context = tp.open(**place.options)
            context.producer(place.stream_id, pools=["4KiB"])
            list(threads.map(lambda _: context.close(), range(4)))  # noqa: B023
            context.close()


class Growing(weakref.WeakSet[Any]):
    """Gets one more when it is looked through, as from another thread."""

    more: Any = None

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            if self.more is not None:
                more, self.more = self.more, None
                self.add(more)
            yield one


def test_what_is_made_right_when_the_context_closes_is_closed_too(place: Environment) -> None:
    context = tp.open(**place.options)
    first, second = context.consumer(place.stream_id), context.consumer(place.stream_id)
    context._endpoints = growing = Growing([first])
    growing.more = second
    context.close()
    assert first.closed
    assert second.closed


# --- in every order


@pytest.mark.parametrize("order", list(itertools.permutations(["producer", "consumer", "context", "driver"])))
def test_any_order_of_closing_will_do(
    place: Environment, wait_until: WaitUntil, order: tuple[str, ...]
) -> None:
    driver = tp.MediaDriver(str(place.aeron_dir))
    context = tp.open(**place.options, media_driver="external")
    producer, consumer = mapped_pair(context, place, wait_until)
    frame = one_frame(producer, consumer, wait_until)
    view = frame.array
    slot = producer.claim((64,), np.uint64)
    handles: dict[str, Any] = {
        "producer": producer,
        "consumer": consumer,
        "context": context,
        "driver": driver,
    }
    for name in order:
        handles[name].close()
    for name in order:
        handles[name].close()
    # The memory outlives everything that led to it.
    assert view.tolist() == PAYLOAD.tolist()
    assert frame.valid()
    assert slot.commit().outcome == tp.Outcome.CLOSED
    assert place.epochs() == set()


def test_views_outlive_the_context_and_die_with_the_last_reference(
    place: Environment, wait_until: WaitUntil
) -> None:
    with tp.open(**place.options) as context:
        producer, consumer = mapped_pair(context, place, wait_until)
        frame = one_frame(producer, consumer, wait_until)
        array, view = frame.array, memoryview(frame)
        torch_like = np.from_dlpack(frame)
        slot = producer.claim((64,), np.uint64)
        claimed = slot.array
        claimed[:] = 3
    del frame, context, producer, consumer
    gc.collect()
    assert (
        array.tolist() == PAYLOAD.tolist() == np.frombuffer(view, np.uint64).tolist() == torch_like.tolist()
    )
    assert claimed.tolist() == [3] * 64
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    slot.abandon()
    assert region_mappings(place) > 0
    del array, view, torch_like, slot, claimed
    gc.collect()
    assert region_mappings(place) == 0


def region_mappings(place: Environment) -> int:
    return Path("/proc/self/maps").read_text().count(str(place.base))


# --- never


FORGETFUL = {
    "everything held": """
context = tp.open(**options)
producer, consumer = context.producer(stream), context.consumer(stream)
producer.offer(np.zeros(4))
""",
    "nothing held": """
def work():
    context = tp.open(**options)
    context.producer(stream).offer(np.zeros(4))
    context.consumer(stream)
work()
""",
    "only the producer held": """
producer = tp.open(**options).producer(stream)
producer.offer(np.zeros(4))
""",
    "an exception": """
context = tp.open(**options)
producer = context.producer(stream)
slot = producer.claim((4,), "uint8")
view = slot.array
raise SystemExit(0)
""",
    "a thread that waits": """
import threading
context = tp.open(**options)
producer, consumer = context.producer(stream), context.consumer(stream)
threading.Thread(target=lambda: list(consumer), daemon=True).start()
""",
    "a cycle": """
class Holder: pass
holder = Holder()
holder.me = holder
holder.context = tp.open(**options)
holder.producer = holder.context.producer(stream)
del holder
""",
    "a driver of its own": """
driver = tp.MediaDriver(options["aeron_dir"])
context = tp.open(**options)
producer = context.producer(stream)
""",
}


@pytest.mark.parametrize("script", FORGETFUL)
def test_a_script_that_never_closes_leaves_nothing_behind(place: Environment, script: str) -> None:
    prelude = (
        f"import numpy as np, tensorpool as tp\noptions, stream = {place.options!r}, {place.stream_id}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", prelude + FORGETFUL[script]],
        cwd=ROOT,
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(place.base.rglob("*")) == []
    assert not place.aeron_dir.exists()


def test_a_producer_that_is_forgotten_makes_room_for_the_next(
    place: Environment, wait_until: WaitUntil
) -> None:
    with tp.open(**place.options) as context:
        consumer = context.consumer(place.stream_id)
        epochs = set()
        for _ in range(5):
            producer = context.producer(place.stream_id, pools=["4KiB"])
            epoch = producer.epoch
            wait_until(lambda: consumer.epoch == epoch)  # noqa: B023
            epochs.add(epoch)
            del producer
            gc.collect()
            assert place.epochs() == set()
        assert len(epochs) == 5


# --- again and again


def counts() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "rss_kib": own_kib(),
    }


def own_kib() -> int:
    """Memory of this process alone: of Aeron's own files every page that was ever used stays resident."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def cycle_endpoints(context: tp.Context, place: Environment, rounds: int) -> None:
    for turn in range(rounds):
        with context.consumer(place.stream_id), context.producer(place.stream_id, pools=["4KiB"]) as producer:
            if turn % 10 == 0:
                producer.offer(PAYLOAD)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(500, id="500"),
        pytest.param(10_000, id="10000", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_opening_and_closing_endpoints_leaks_nothing(
    place: Environment, wait_until: WaitUntil, rounds: int
) -> None:
    place.driver()
    with tp.open(**place.options) as context:
        cycle_endpoints(context, place, 200)
        gc.collect()
        before = counts()
        cycle_endpoints(context, place, rounds)
        gc.collect()
        # Aeron lets go of the logs of closed publications some seconds later.
        leaks.wait_for(lambda: counts()["mappings"] <= before["mappings"], timeout=30)
        grown = {name: count - before[name] for name, count in counts().items()}
    print(f"\n{rounds} producers and consumers: grown by {grown}")
    assert grown["descriptors"] <= 0
    assert grown["threads"] <= 0
    assert grown["mappings"] <= 10
    assert grown["rss_kib"] < 2 * 1024


def test_opening_and_closing_contexts_leaks_nothing(place: Environment) -> None:
    def cycle(rounds: int) -> None:
        for _ in range(rounds):
            with tp.open(**place.options) as context:
                context.producer(place.stream_id, pools=["4KiB"])

    cycle(10)
    gc.collect()
    before = counts()
    cycle(40)
    gc.collect()
    grown = {name: count - before[name] for name, count in counts().items()}
    print(f"\n40 contexts with embedded drivers: grown by {grown}")
    assert grown["descriptors"] <= 0
    assert grown["threads"] <= 0
    assert grown["mappings"] <= 10
    assert grown["rss_kib"] < 4 * 1024


def test_many_producers_come_and_go_beside_each_other(
    place: Environment, free_stream_ids: Callable[[], int]
) -> None:
    """Each removes the empty directories above its own while others are making theirs."""

    def cycle(context: tp.Context) -> None:
        stream_id = free_stream_ids()
        for _ in range(100):
            context.producer(stream_id, pools=["64B"], nslots=2).close()

    with tp.open(**place.options) as context, ThreadPoolExecutor(4) as threads:
        list(threads.map(cycle, [context] * 4))
    assert list(place.base.rglob("*")) == []
