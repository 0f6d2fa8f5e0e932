"""Frames with padding between their rows, as frame grabbers write them by DMA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording

DEADLINE_S = 60.0


@pytest.fixture
def pair(
    aeron_dir: Path, shm_base: Path, free_stream_id: int
) -> Iterator[tuple[tp.Context, tp.Producer, tp.Consumer]]:
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as context:
        producer = context.producer(free_stream_id, nslots=8, pools=["64KiB"])
        consumer = context.consumer(free_stream_id, timeout=DEADLINE_S)
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        yield context, producer, consumer


Pair = tuple[tp.Context, tp.Producer, tp.Consumer]


def test_claim_with_padded_rows_is_written_in_place(pair: Pair) -> None:
    _, producer, consumer = pair
    image = np.arange(12, dtype="u2").reshape(3, 4)
    with producer.claim((3, 4), "u2", strides=(64, 2)) as slot:
        assert (slot.array.shape, slot.array.strides) == ((3, 4), (64, 2))
        # What a DMA engine does: whole lines, their padding included, the last one's too.
        lines = np.lib.stride_tricks.as_strided(slot.array, (3, 32), (64, 2))
        lines[:] = 0xAAAA
        slot.array[:] = image
    frame = consumer.receive(DEADLINE_S)
    assert (frame.array.strides, frame.array.tolist()) == ((64, 2), image.tolist())
    assert not frame.array.flags.owndata
    copied = frame.copy()
    assert copied.tolist() == image.tolist()


def test_claim_with_padded_columns_is_written_in_place(pair: Pair) -> None:
    _, producer, consumer = pair
    image = np.arange(12, dtype="f8").reshape(3, 4)
    with producer.claim((3, 4), "f8", order="F", strides=(8, 64)) as slot:
        slot.array[:] = image
    frame = consumer.receive(DEADLINE_S)
    assert (frame.array.strides, frame.array.tolist()) == ((8, 64), image.tolist())


def test_offer_keeps_the_strides_of_an_array(pair: Pair) -> None:
    _, producer, consumer = pair
    lines = np.arange(64, dtype="u2").reshape(4, 16)
    window = lines[:3, :10]
    for keep, strides in ((True, (32, 2)), (False, (20, 2))):
        assert producer.offer(window, keep_strides=keep)
        frame = consumer.receive(DEADLINE_S)
        assert (frame.array.strides, frame.array.tolist()) == (strides, window.tolist())
    # Contiguous arrays stay as they are.
    assert producer.offer(lines, keep_strides=True)
    assert consumer.receive(DEADLINE_S).array.strides == (32, 2)
    # The other order, without the last columns.
    assert producer.offer(lines.T[:9], keep_strides=True)
    assert consumer.receive(DEADLINE_S).array.tolist() == lines.T[:9].tolist()


@pytest.mark.parametrize(
    "strides", [(6, 2), (64,), (64, 2, 2), (-64, 2), (64, 0), (63, 2), (2, 64), (1 << 40, 2)]
)
def test_strides_that_consumers_refuse_are_refused_at_once(pair: Pair, strides: tuple[int, ...]) -> None:
    _, producer, _ = pair
    with pytest.raises(ValueError, match="strides"):
        producer.claim((3, 4), "u2", strides=strides)
    assert producer.ledger().committed == 0


def test_strides_that_readers_refuse_are_not_kept(pair: Pair) -> None:
    _, producer, _ = pair
    lines = np.arange(64, dtype="u2").reshape(4, 16)
    for array in (lines[::-1], np.broadcast_to(lines[0], (4, 16)), lines[:, ::-1]):
        with pytest.raises(ValueError, match="strides"):
            producer.offer(array, keep_strides=True)
        assert producer.offer(array)


def test_progress_counts_padded_rows(pair: Pair) -> None:
    context, producer, _ = pair
    consumer = context.consumer(producer.stream_id, progress=True, timeout=DEADLINE_S)
    assert consumer.wait_for_producer(DEADLINE_S)
    with producer.claim((4, 8), "u1", strides=(64, 1), progress="rows") as slot:
        for row in range(4):
            slot.array[row] = row
            slot.advance()
        assert slot.filled == 4
    frame = consumer.receive(DEADLINE_S)
    assert frame.array.tolist() == [[row] * 8 for row in range(4)]


def test_padded_frames_are_recorded_and_read_back(
    pair: Pair, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    context, producer, _ = pair
    images = [np.full((3, 4), n, "u2") for n in range(5)]
    root = tmp_path / "run"
    with tp.record(root, streams=[producer.stream_id], context=context, frames=5) as recorder:
        wait_until(lambda: recorder.mapped().get(producer.stream_id) is not None, timeout=DEADLINE_S)
        for image in images:
            with producer.claim((3, 4), "u2", strides=(64, 2)) as slot:
                slot.array[:] = image
        wait_until(lambda: recorder.is_finished, timeout=DEADLINE_S)
    with recording.open(root) as recorded:
        read = [frame.array.tolist() for frame in recorded.frames(producer.stream_id)]
    assert read == [image.tolist() for image in images]
