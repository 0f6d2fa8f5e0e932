"""Trace ids of frames, and the TraceLinkSets that name their parents."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client.tracing import TraceIds
from tensorpool.sbe import decode
from tensorpool.sbe.trace import TraceLinkSet


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context


def test_traced_producers_of_two_threads_share_one_trace_node(
    ctx: tp.Context, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[TraceIds] = []
    both_create = threading.Barrier(2)

    def create() -> TraceIds:
        created.append(TraceIds())
        # Passes at once if two threads are here. A thread that is alone continues after a while.
        with suppress(threading.BrokenBarrierError):
            both_create.wait(0.3)
        return created[-1]

    monkeypatch.setattr("tensorpool.context.endpoints.TraceIds", create)
    with ThreadPoolExecutor() as threads:
        opened = [threads.submit(ctx.producer, free_stream_ids(), pools=[64], traces=True) for _ in range(2)]
        producers = [future.result() for future in opened]
    for producer in producers:
        producer.close()
    for trace_ids in created[1:]:
        trace_ids.close()
    assert len(created) == 1


def test_producer_without_a_trace_node_is_closed(
    ctx: tp.Context, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_id = free_stream_ids()

    def fail() -> TraceIds:
        raise OSError("no trace node is free")

    with monkeypatch.context() as patch:
        patch.setattr("tensorpool.context.endpoints.TraceIds", fail)
        with pytest.raises(OSError, match="no trace node is free") as caught:
            ctx.producer(stream_id, pools=[64], traces=True)
    # A stream has one producer at a time, also while the error keeps the first one alive.
    assert caught.tb is not None
    with ctx.producer(stream_id, pools=[64], traces=True) as producer:
        assert producer.offer(np.zeros(4, "u1")).seq == 0


@pytest.mark.requirement("wire-10.2.1-12")
def test_frame_with_several_parents_publishes_a_link_set(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    control = ctx.connection.subscription(ctx.stream_ids.control, tethered=True)
    with (
        ctx.producer(stream_id, pools=[64], traces=True) as producer,
        ctx.consumer(stream_id, timeout=30) as consumer,
    ):
        assert consumer.wait_for_producer(30)
        _wait_connected(control)
        array = np.zeros(4, "u1")

        def send(**options: Any) -> tp.Frame:
            assert producer.offer(array, **options)
            return next(consumer)

        first, second = send(), send()
        assert first.trace_id
        assert second.trace_id
        assert first.trace_id != second.trace_id
        carried = send(parents=[first, first])
        assert carried.trace_id == first.trace_id
        joined = send(parents=[first, second, first])
        assert joined.trace_id not in (None, first.trace_id, second.trace_id)
        assert send(trace_id=77).trace_id == 77
        with producer.claim((4,), "u1", parents=[first.trace_id, joined]) as slot:
            seq = slot.seq
        claimed = next(consumer)
        links = _collect(control, 2)
    control.close()
    assert [(link.stream_id, link.epoch, link.seq, link.trace_id) for link in links] == [
        (stream_id, joined.epoch, joined.seq, joined.trace_id),
        (stream_id, claimed.epoch, seq, claimed.trace_id),
    ]
    assert [p.trace_id for p in links[0].parents] == [first.trace_id, second.trace_id]
    assert [p.trace_id for p in links[1].parents] == [first.trace_id, joined.trace_id]


@pytest.mark.requirement("wire-10.2.1-12")
def test_frame_with_its_own_trace_id_still_names_its_parents(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    control = ctx.connection.subscription(ctx.stream_ids.control, tethered=True)
    array = np.zeros(4, "u1")
    with (
        ctx.producer(stream_id, pools=[64], nslots=512, traces=True) as producer,
        ctx.consumer(stream_id, timeout=30) as consumer,
    ):
        assert consumer.wait_for_producer(30)
        _wait_for_links(producer, control)
        first = producer.next_seq
        producer.offer(array, trace_id=77, parents=[5])
        producer.offer(array, trace_id=78, parents=[5, 6, 5, 78])
        # It continues the trace of its only parent: there is nothing to name.
        producer.offer(array, trace_id=5, parents=[5])
        producer.offer(array, trace_id=79, parents=[])
        producer.offer_many(np.zeros((2, 4), "u1"), trace_id=80, parents=[5, 6])
        with producer.claim((4,), "u1", trace_id=81, parents=[7]):
            pass
        links = _collect(control, 5)
        received: list[int | None] = []
        while len(received) < 7:
            frame = next(consumer)
            received += [frame.trace_id] if frame.seq >= first else []
    control.close()
    assert received == [77, 78, 5, 79, 80, 80, 81]
    assert [(link.seq - first, link.trace_id, [p.trace_id for p in link.parents]) for link in links] == [
        (0, 77, [5]), (1, 78, [5, 6]), (4, 80, [5, 6]), (5, 80, [5, 6]), (6, 81, [7]),
    ]  # fmt: skip


def test_producer_without_traces_publishes_no_trace_ids(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    with ctx.producer(stream_id, pools=[64]) as producer, ctx.consumer(stream_id, timeout=30) as consumer:
        assert consumer.wait_for_producer(30)
        assert producer.offer(np.zeros(4, "u1"))
        assert next(consumer).trace_id is None
        for name_parents in (
            lambda: producer.offer(np.zeros(4, "u1"), parents=[]),
            lambda: producer.claim((4,), "u1", parents=[7]),
        ):
            with pytest.raises(ValueError, match=rf"use ctx\.producer\({stream_id}, traces=True\)"):
                name_parents()
        assert producer.next_seq == 1


def test_abandoned_claim_publishes_no_links(ctx: tp.Context, free_stream_ids: Callable[[], int]) -> None:
    stream_id = free_stream_ids()
    control = ctx.connection.subscription(ctx.stream_ids.control, tethered=True)
    with ctx.producer(stream_id, pools=[64], traces=True) as producer:
        _wait_connected(control)
        committed: set[int] = set()
        links: list[TraceLinkSet] = []
        deadline = time.monotonic() + 60
        # Links are sent best effort: the first ones may come before the publication is connected.
        while not links and time.monotonic() < deadline:
            producer.claim((4,), "u1", parents=[1, 2]).abandon()
            with producer.claim((4,), "u1", parents=[3, 4]) as slot:
                committed.add(slot.seq)
            messages = map(decode, control.poll(256))
            links += [message for message in messages if isinstance(message, TraceLinkSet)]
    control.close()
    assert links
    assert {link.seq for link in links} <= committed
    assert {tuple(parent.trace_id for parent in link.parents) for link in links} == {(3, 4)}


def _wait_connected(subscription: _native.Subscription) -> None:
    deadline = time.monotonic() + 30
    while not subscription.is_connected:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _wait_for_links(producer: tp.Producer, control: _native.Subscription) -> None:
    """Links are sent best effort: the first ones may come before the publication is connected."""
    deadline = time.monotonic() + 30
    last_seq, seen_seq = -1, -2
    while seen_seq != last_seq:
        assert time.monotonic() < deadline
        last_seq = producer.next_seq
        producer.offer(np.zeros(4, "u1"), parents=[1, 2])
        wait_s = time.monotonic() + 0.1
        while seen_seq != last_seq and time.monotonic() < wait_s:
            links = [message for message in map(decode, control.poll()) if isinstance(message, TraceLinkSet)]
            seen_seq = links[-1].seq if links else seen_seq
            time.sleep(0.002)


def _collect(subscription: _native.Subscription, count: int) -> list[TraceLinkSet]:
    links: list[TraceLinkSet] = []
    deadline = time.monotonic() + 30
    while len(links) < count and time.monotonic() < deadline:
        for message in map(decode, subscription.poll()):
            # The same stream carries ConsumerHello.
            if isinstance(message, TraceLinkSet):
                links.append(message)
        time.sleep(0.002)
    return links
