"""Iterations that skip overwritten frames: `whole()` with copies, `map()` without."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

import tensorpool as tp
from tests.integration.dataplane.conftest import Stream

DEADLINE_S = 60.0


@pytest.fixture
def ring_of_two(connect) -> Stream:
    """A stream whose frames are overwritten by the second frame after them."""
    stream: Stream = connect(nslots=2)
    stream.consumer.timeout = DEADLINE_S
    return stream


def overwrite_all(stream: Stream) -> None:
    """Overwrites every frame of the ring."""
    for value in (98.0, 99.0):
        stream.producer.offer(np.full(4, value))


def test_whole_frames_keep_their_values_and_facts(ring_of_two: Stream) -> None:
    frames = iter(ring_of_two.consumer.whole())
    ring_of_two.producer.offer(np.full(4, 1.0), timestamp_ns=7)
    first = next(frames)
    overwrite_all(ring_of_two)
    assert (first.seq, first.timestamp_ns, first.shape, first.nbytes) == (0, 7, (4,), 32)
    assert (first.array == 1.0).all()
    first.array += 1
    assert repr(first).startswith(
        f"<WholeFrame stream={first.stream_id} epoch={first.epoch} seq=0 shape=(4,)"
    )


def test_map_skips_a_frame_that_is_overwritten_during_the_work(ring_of_two: Stream) -> None:
    """A plain loop with `with frame:` raises here."""

    def work(frame: tp.Frame) -> float:
        if frame.seq == 0:
            overwrite_all(ring_of_two)
        return float(frame.array[0])

    ring_of_two.producer.offer(np.full(4, 1.0))
    frame, value = next(ring_of_two.consumer.map(work))
    assert (frame.seq, value) in ((1, 98.0), (2, 99.0))
    ledger = ring_of_two.consumer.ledger()
    assert ledger.dropped["late"] + ledger.dropped["resync"] == frame.seq
    assert ledger.balanced


def test_map_forgives_an_error_of_overwritten_data_only(ring_of_two: Stream) -> None:
    def work(frame: tp.Frame) -> float:
        if frame.seq == 0:
            overwrite_all(ring_of_two)
        raise ValueError(f"bad value in frame {frame.seq}")

    ring_of_two.producer.offer(np.full(4, 1.0))
    with pytest.raises(ValueError, match=r"in frame [12]"):
        next(ring_of_two.consumer.map(work))


def test_whole_frames_skip_overwritten_frames_under_a_fast_producer(ring_of_two: Stream) -> None:
    """Each copy is of one frame, although the producer laps the reader all the time."""
    ring_of_two.producer.offer(np.zeros(4))
    for frame in itertools.islice(ring_of_two.consumer.whole(), 200):
        assert (frame.array == frame.array[0]).all()
        for value in range(5):
            ring_of_two.producer.offer(np.full(4, float(value)))
    assert ring_of_two.consumer.ledger().balanced


def test_whole_frames_with_asyncio(ring_of_two: Stream) -> None:
    async def first() -> float:
        async for frame in ring_of_two.consumer.whole():
            return float(frame.array[0])
        raise AssertionError("closed")

    ring_of_two.producer.offer(np.full(4, 3.0))
    assert asyncio.run(first()) == 3.0


def test_handles_print_what_they_are(ring_of_two: Stream, shm_base) -> None:
    producer, consumer = ring_of_two.producer, ring_of_two.consumer
    ring_of_two.send(np.zeros(4))
    assert repr(producer) == (
        f"<Producer stream={producer.stream_id} epoch={producer.epoch} committed 1 = published 1>"
    )
    assert repr(consumer) == (
        f"<Consumer stream={consumer.stream_id} epoch={producer.epoch} span 1 = received 1>"
    )
    assert repr(producer.owner).startswith("<Context mode=standalone namespace=")
    producer.close()
    consumer.close()
    assert repr(producer) == f"<Producer stream={producer.stream_id} closed>"
    assert repr(consumer) == f"<Consumer stream={consumer.stream_id} closed>"
