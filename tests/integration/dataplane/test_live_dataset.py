"""A running stream as a dataset of torch: shares of workers, and frames that are overwritten meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.integration.dataplane.conftest import DEADLINE_S, Stream
from tests.stand_in_torch import torch_datasets


@pytest.fixture
def datasets() -> Iterator[Any]:
    with torch_datasets() as module:
        yield module


@pytest.fixture
def items_of(datasets: Any, context: tp.Context, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`items_of(stream, …)`: the iteration of a dataset of the stream, on the context of the test."""

    class Opened:
        def __enter__(self) -> tp.Context:
            return context

        def __exit__(self, *exc: object) -> None:
            """The context belongs to the test."""

    monkeypatch.setattr(datasets, "open_context", Opened)

    def items_of(stream: Stream, **options: Any) -> Iterator[Any]:
        return iter(datasets.live(stream.producer.stream_id, timeout=DEADLINE_S, **options))

    return items_of


def first_of(frame: tp.Frame) -> int:
    return int(frame.array[0])


def test_workers_share_no_frame_of_a_limited_stream(
    datasets: Any, items_of: Any, connect: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    """Every second frame passes the limit. By even and odd sequences, one worker would get none of them."""
    workers = threading.local()
    monkeypatch.setattr(datasets, "get_worker_info", lambda: workers.info)
    stream: Stream = connect(nslots=64)
    taken: list[list[int]] = [[], []]
    ends = threading.Event()

    def work(number: int) -> None:
        workers.info = SimpleNamespace(id=number, num_workers=2)
        items = items_of(stream, transform=first_of, max_rate_hz=50)
        for item in items:
            if ends.is_set():
                break
            taken[number].append(item)
        items.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    value = 0

    def both_have_some() -> bool:
        # At 100 Hz by the frames' own clock, which is what the limit counts by.
        nonlocal value
        value += 1
        stream.producer.offer(np.array([value]), timestamp_ns=value * 10_000_000)
        return min(map(len, taken)) >= 10

    try:
        wait_until(both_have_some, timeout=DEADLINE_S)
    finally:
        ends.set()
        while any(thread.is_alive() for thread in threads):
            both_have_some()
            threads[0].join(0.01)
    assert len({*taken[0], *taken[1]}) == len(taken[0]) + len(taken[1])


def test_an_overwritten_frame_is_skipped_whatever_became_of_it(
    items_of: Any, connect: Any, wait_until: Any
) -> None:
    stream: Stream = connect(nslots=2)
    seen: list[int] = []

    def transform(frame: tp.Frame) -> int:
        seen.append(frame.seq)
        if len(seen) <= 2:
            for value in (2.0, 3.0):
                stream.producer.offer(np.full(4, value))
        if len(seen) == 1:
            raise ValueError("nonsense was read")
        return frame.seq

    items = items_of(stream, transform=transform)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(next(items)))
    reader.start()

    def is_read() -> bool:
        if not seen:
            stream.producer.offer(np.full(4, 1.0))
        return bool(found)

    wait_until(is_read, timeout=DEADLINE_S)
    reader.join()
    assert found[0] not in seen[:2]
    items.close()


def test_the_error_of_a_transform_over_a_whole_frame_is_raised(
    items_of: Any, connect: Any, wait_until: Any
) -> None:
    stream: Stream = connect(nslots=64)

    def transform(frame: tp.Frame) -> int:
        raise ValueError(f"frame {frame.seq}")

    raised: list[BaseException] = []

    def read() -> None:
        try:
            next(items_of(stream, transform=transform))
        except ValueError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()

    def is_raised() -> bool:
        if not raised:
            stream.producer.offer(np.full(4, 1.0))
        return bool(raised)

    wait_until(is_raised, timeout=DEADLINE_S)
    reader.join()
