"""Trace ids of consumer, and the TraceLinkSets that name their parents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import decode
from tensorpool.sbe.trace import TraceLinkSet


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context


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
        producer.claim((4,), "u1", parents=[1, 2]).abandon()
        slot = producer.claim((4,), "u1", parents=[3, 4])
        assert not [message for message in map(decode, control.poll()) if isinstance(message, TraceLinkSet)]
        seq = slot.seq
        slot.commit()
        links = _collect(control, 1)
    control.close()
    assert [(link.seq, [parent.trace_id for parent in link.parents]) for link in links] == [(seq, [3, 4])]


def _wait_connected(subscription: _native.Subscription) -> None:
    deadline = time.monotonic() + 30
    while not subscription.is_connected:
        assert time.monotonic() < deadline
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
