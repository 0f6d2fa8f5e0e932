"""Trace ids from producer to consumer, and the links between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client import TraceIds
from tensorpool.clock import ManualClock
from tensorpool.sbe import decode
from tensorpool.sbe.trace import TraceLinkSet


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context


def test_trace_ids_are_unique_and_sort_by_time() -> None:
    clock = ManualClock()
    ids = TraceIds(5, clock=clock)
    minted = []
    for _ in range(3):
        minted += [ids.new_id() for _ in range(5000)]
        clock.advance(0.001)
    clock.step_wall(-10)
    minted += [ids.new_id() for _ in range(10)]
    assert minted == sorted(set(minted))
    assert all(0 < one < 2**64 for one in minted)
    other = TraceIds(6, clock=ManualClock())
    assert other.new_id() not in minted


@pytest.mark.requirement("wire-10.2.1-12")
def test_a_frame_tells_what_it_was_made_from(ctx: tp.Context, free_stream_ids: Callable[[], int]) -> None:
    stream_id = free_stream_ids()
    heard = ctx.connection.subscription(ctx.stream_ids.control, tethered=True)
    with (
        ctx.producer(stream_id, pools=[64], traces=True) as camera,
        ctx.consumer(stream_id, timeout=30) as frames,
    ):
        assert frames.wait_for_producer(30)
        _wait_until_heard(heard)
        array = np.zeros(4, "u1")

        def sent(**options: object) -> tp.Frame:
            assert camera.offer(array, **options)  # type: ignore[arg-type]
            return next(frames)

        first, second = sent(), sent()
        assert first.trace_id
        assert second.trace_id
        assert first.trace_id != second.trace_id
        carried = sent(parents=[first, first])
        assert carried.trace_id == first.trace_id
        joined = sent(parents=[first, second, first])
        assert joined.trace_id not in (None, first.trace_id, second.trace_id)
        assert sent(trace_id=77).trace_id == 77
        with camera.claim((4,), "u1", parents=[first.trace_id, joined]) as slot:
            seq = slot.seq
        claimed = next(frames)
        links = _collect(heard, 2)
    heard.close()
    assert [(link.stream_id, link.epoch, link.seq, link.trace_id) for link in links] == [
        (stream_id, joined.epoch, joined.seq, joined.trace_id),
        (stream_id, claimed.epoch, seq, claimed.trace_id),
    ]
    assert [p.trace_id for p in links[0].parents] == [first.trace_id, second.trace_id]
    assert [p.trace_id for p in links[1].parents] == [first.trace_id, joined.trace_id]


def test_without_the_switch_frames_carry_no_trace(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    with ctx.producer(stream_id, pools=[64]) as camera, ctx.consumer(stream_id, timeout=30) as frames:
        assert frames.wait_for_producer(30)
        assert camera.offer(np.zeros(4, "u1"))
        assert next(frames).trace_id is None
        with pytest.raises(TypeError, match="parents"):
            camera.offer(np.zeros(4, "u1"), parents=[])  # type: ignore[call-arg]


def _wait_until_heard(subscription: _native.Subscription) -> None:
    deadline = time.monotonic() + 30
    while not subscription.is_connected:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _collect(subscription: _native.Subscription, count: int) -> list[TraceLinkSet]:
    found: list[TraceLinkSet] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for message in map(decode, subscription.poll()):
            # Consumers say hello on the same stream.
            if isinstance(message, TraceLinkSet):
                found.append(message)
        time.sleep(0.002)
    return found
