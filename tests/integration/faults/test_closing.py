"""Closing in every order, from every thread, or never: no hang, no crash, no leak."""

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
    context: tp.Context, environment: Environment, wait_until: WaitUntil
) -> tuple[tp.Producer, tp.Consumer]:
    """A producer and a connected consumer of its stream."""
    producer = context.producer(environment.stream_id, pools=["4KiB"])
    consumer = context.consumer(environment.stream_id)
    wait_until(lambda: consumer.epoch == producer.epoch and producer.is_connected)
    return producer, consumer


def one_frame(producer: tp.Producer, consumer: tp.Consumer, wait_until: WaitUntil) -> tp.Frame:
    """Offers frames until one is received."""
    frame = wait_until(lambda: producer.offer(PAYLOAD) and consumer.receive_or_none(0.01))
    assert isinstance(frame, tp.Frame)
    return frame


# --- while another thread works


USES: dict[str, Callable[[tp.Producer, tp.Consumer, threading.Event], None]] = {}


def use(function: Callable[..., None]) -> Callable[..., None]:
    """Adds a function to USES."""
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
def reading_the_latest(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
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


# The thread may offer once more after the close.
@pytest.mark.filterwarnings("ignore::tensorpool.errors.OfferWarning")
@pytest.mark.parametrize("closed", ["endpoints", "context"])
@pytest.mark.parametrize("name", USES)
def test_closing_while_another_thread_works(
    environment: Environment, wait_until: WaitUntil, name: str, closed: str
) -> None:
    for _ in range(5):
        with tp.open(**environment.options) as context:
            producer, consumer = mapped_pair(context, environment, wait_until)
            one_frame(producer, consumer, wait_until)
            worker = Background(lambda stop: USES[name](producer, consumer, stop))  # noqa: B023
            feeder = Background(lambda stop: offering(producer, consumer, stop))  # noqa: B023
            received = consumer.ledger().span
            wait_until(lambda: consumer.ledger().span != received or name in ("offering", "claiming"))  # noqa: B023
            if closed == "context":
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


def test_concurrent_closes_of_a_context_all_return(environment: Environment) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            context = tp.open(**environment.options)
            context.producer(environment.stream_id, pools=["4KiB"])
            list(threads.map(lambda _: context.close(), range(4)))  # noqa: B023
            context.close()


class GrowingSet(weakref.WeakSet[Any]):
    """A set that gets another element during an iteration, as if from another thread."""

    added: Any = None

    def __iter__(self) -> Iterator[Any]:
        for element in super().__iter__():
            if self.added is not None:
                added, self.added = self.added, None
                self.add(added)
            yield element


def test_endpoint_created_during_close_is_closed_too(environment: Environment) -> None:
    context = tp.open(**environment.options)
    first, second = context.consumer(environment.stream_id), context.consumer(environment.stream_id)
    context._endpoints.opened = growing = GrowingSet([first])
    growing.added = second
    context.close()
    assert first.closed
    assert second.closed


# --- in every order


@pytest.mark.parametrize("order", list(itertools.permutations(["producer", "consumer", "context", "driver"])))
def test_handles_can_be_closed_in_any_order(
    environment: Environment, wait_until: WaitUntil, order: tuple[str, ...]
) -> None:
    driver = tp.MediaDriver(str(environment.aeron_dir))
    context = tp.open(**environment.options, media_driver="external")
    producer, consumer = mapped_pair(context, environment, wait_until)
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
    # A view keeps the memory mapped after all handles are closed.
    assert view.tolist() == PAYLOAD.tolist()
    assert frame.valid()
    assert slot.commit().outcome == tp.Outcome.CLOSED
    assert environment.epochs() == set()


def test_views_keep_the_memory_until_the_last_reference(
    environment: Environment, wait_until: WaitUntil
) -> None:
    with tp.open(**environment.options) as context:
        producer, consumer = mapped_pair(context, environment, wait_until)
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
    assert region_mappings(environment) > 0
    del array, view, torch_like, slot, claimed
    gc.collect()
    assert region_mappings(environment) == 0


def region_mappings(environment: Environment) -> int:
    """Number of mapped regions of this test."""
    return Path("/proc/self/maps").read_text().count(str(environment.base))


# --- never closed


SCRIPTS = {
    "all handles held": """
context = tp.open(**options)
producer, consumer = context.producer(stream), context.consumer(stream)
producer.offer(np.zeros(4))
""",
    "no handle held": """
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
    "a waiting thread": """
import threading
context = tp.open(**options)
producer, consumer = context.producer(stream), context.consumer(stream)
threading.Thread(target=lambda: list(consumer), daemon=True).start()
""",
    "a reference cycle": """
class Holder: pass
holder = Holder()
holder.me = holder
holder.context = tp.open(**options)
holder.producer = holder.context.producer(stream)
del holder
""",
    "its own media driver": """
driver = tp.MediaDriver(options["aeron_dir"])
context = tp.open(**options)
producer = context.producer(stream)
""",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_that_never_closes_leaves_no_files(environment: Environment, script: str) -> None:
    options, stream = environment.options, environment.stream_id
    prelude = f"import numpy as np, tensorpool as tp\noptions, stream = {options!r}, {stream}\n"
    result = subprocess.run(
        [sys.executable, "-c", prelude + SCRIPTS[script]],
        cwd=ROOT,
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert list(environment.base.rglob("*")) == []
    assert not environment.aeron_dir.exists()


def test_collected_producer_releases_its_stream(environment: Environment, wait_until: WaitUntil) -> None:
    with tp.open(**environment.options) as context:
        consumer = context.consumer(environment.stream_id)
        epochs = set()
        for _ in range(5):
            producer = context.producer(environment.stream_id, pools=["4KiB"])
            epoch = producer.epoch
            wait_until(lambda: consumer.epoch == epoch)  # noqa: B023
            epochs.add(epoch)
            del producer
            gc.collect()
            assert environment.epochs() == set()
        assert len(epochs) == 5


# --- many times


def counts() -> dict[str, int]:
    """Resources of this process."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "rss_kib": anonymous_kib(),
    }


def anonymous_kib() -> int:
    """Anonymous memory of this process; used pages of Aeron's files stay resident and do not count."""
    match = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


def cycle_endpoints(context: tp.Context, environment: Environment, rounds: int) -> None:
    """Opens and closes a consumer and a producer this many times."""
    for number in range(rounds):
        with (
            context.consumer(environment.stream_id),
            context.producer(environment.stream_id, pools=["4KiB"]) as producer,
        ):
            if number % 10 == 0:
                producer.offer(PAYLOAD)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(500, id="500"),
        pytest.param(10_000, id="10000", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_reopened_endpoints_leak_no_resources(
    environment: Environment, wait_until: WaitUntil, rounds: int
) -> None:
    environment.driver()
    with tp.open(**environment.options) as context:
        cycle_endpoints(context, environment, 200)
        gc.collect()
        before = counts()
        cycle_endpoints(context, environment, rounds)
        gc.collect()
        # Aeron unmaps the logs of closed publications some seconds later.
        leaks.wait_for(lambda: counts()["mappings"] <= before["mappings"], timeout=30)
        grown = {name: count - before[name] for name, count in counts().items()}
    print(f"\n{rounds} producers and consumers: grown by {grown}")
    assert grown["descriptors"] <= 0
    assert grown["threads"] <= 0
    assert grown["mappings"] <= 10
    assert grown["rss_kib"] < 2 * 1024


def test_reopened_contexts_leak_no_resources(environment: Environment) -> None:
    def cycle(rounds: int) -> None:
        for _ in range(rounds):
            with tp.open(**environment.options) as context:
                context.producer(environment.stream_id, pools=["4KiB"])

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


def test_concurrent_producers_open_and_close(
    environment: Environment, free_stream_ids: Callable[[], int]
) -> None:
    """Each producer removes empty parent directories while others create theirs."""

    def cycle(context: tp.Context) -> None:
        stream_id = free_stream_ids()
        for _ in range(100):
            context.producer(stream_id, pools=["64B"], nslots=2).close()

    with tp.open(**environment.options) as context, ThreadPoolExecutor(4) as threads:
        list(threads.map(cycle, [context] * 4))
    assert list(environment.base.rglob("*")) == []
