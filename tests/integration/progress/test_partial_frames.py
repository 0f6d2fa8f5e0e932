"""Partial frames: what a consumer reads of a frame that is still being written (wire §10.2.2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .conftest import EVERY_STEP, ProgressHarness
from .roles import ReaderProcess

CollectParts = Callable[..., list[tp.Progress]]


def increases(numbers: Iterable[int | None]) -> bool:
    """Whether the numbers increase. A producer may combine several steps in one message."""
    steps = [number for number in numbers if number is not None]
    return all(before < after for before, after in itertools.pairwise(steps))


@pytest.mark.requirement("wire-10.2.2-1", "wire-10.2.2-2", "wire-10.2.2-7", "wire-8.2-6", "wire-8.2-13")
def test_rows_are_readable_before_the_frame_is_committed(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id, timeout=60, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    # More frames than slots: the claimed slot belonged to an older frame.
    for _ in range(9):
        camera.call("offer")
    seq = camera.call("claim", shape=[6, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=4, shift=10)
    parts = collect_parts(consumer, lambda part: part.rows == 4)
    assert (parts[0].state, parts[0].rows, parts[0].array.shape) == ("started", 0, (0, 5))
    assert {part.state for part in parts[1:]} == {"progress"}
    assert increases(part.rows for part in parts)
    last = parts[-1]
    assert (last.stream_id, last.epoch, last.seq) == (harness.stream_id, consumer.epoch, seq)
    assert (last.bytes_filled, last.nbytes, last.shape) == (40, 60, (6, 5))
    with last:
        np.testing.assert_array_equal(last.array, np.repeat(np.arange(10, 14), 5).reshape(4, 5))
        assert (last.element_type, last.array.dtype.name) == ("uint16", "uint16")
        assert (last.array.flags.writeable, last.columns) == (False, None)
    # Progress of all rows is not a frame yet: only a descriptor is.
    camera.call("fill", seq=seq, first=4, last=6, shift=10)
    collect_parts(consumer, lambda part: part.rows == 6)
    assert seq not in [frame.seq for frame in consumer.poll()]
    assert camera.call("commit", seq=seq) == "published"
    done = collect_parts(consumer, lambda part: part.state == "complete")[-1]
    assert (done.seq, done.rows, done.bytes_filled) == (seq, 6, 60)
    frame = next(consumer)
    assert frame.seq == seq
    np.testing.assert_array_equal(frame.array, done.array)
    assert last.valid()


def test_columns_and_bytes_have_progress_too(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    seq = camera.call("claim", shape=[3, 4], progress="columns", order="F")
    camera.call("fill_columns", seq=seq, first=0, last=2)
    part = collect_parts(consumer, lambda part: part.columns == 2)[-1]
    np.testing.assert_array_equal(part.array, [[0, 1]] * 3)
    assert part.rows is None
    camera.call("commit", seq=seq)
    seq = camera.call("claim", shape=[4, 8], dtype="uint8", progress="bytes")
    camera.call("fill_bytes", seq=seq, total=19)
    part = collect_parts(consumer, lambda part: part.seq == seq and part.bytes_filled == 19)[-1]
    assert (part.rows, part.array.tolist()) == (2, [[7] * 8] * 2)


def test_several_frames_have_progress_at_once(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    first, second = (camera.call("claim", shape=[4, 5], progress="rows") for _ in range(2))
    camera.call("fill", seq=second, first=0, last=3, shift=20)
    camera.call("fill", seq=first, first=0, last=2)
    parts = collect_parts(consumer, lambda part: part.seq == second and part.rows == 3)
    camera.call("commit", seq=second)
    camera.call("fill", seq=first, first=2, last=4)
    parts += collect_parts(consumer, lambda part: part.seq == first and part.rows == 4)
    camera.call("commit", seq=first)
    parts += collect_parts(consumer, lambda part: part.seq == first and part.state == "complete")
    rows = {seq: [part.rows for part in parts if part.seq == seq] for seq in (first, second)}
    assert rows[first][0] == rows[second][0] == 0
    assert rows[first][-2:] == [4, 4], "all rows, and then complete"
    assert rows[second][-2:] == [3, 4], "complete without progress of the last row"
    assert increases(rows[first][:-1])
    assert increases(rows[second])
    assert consumer.counters().progress_accepted == len(parts)


def test_abandoned_frame_with_progress_uses_up_its_sequence(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    camera = harness.camera()
    unannounced = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("abandon", seq=unannounced)
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    harness.wait_granted(camera, consumer)
    announced = camera.call("claim", shape=[4, 5], progress="rows")
    assert announced == unannounced, "no consumer knew of it"
    camera.call("fill", seq=announced, first=0, last=3)
    part = collect_parts(consumer, lambda part: part.rows == 3)[-1]
    camera.call("abandon", seq=announced)
    next_seq = camera.call("claim", shape=[2, 5], progress="rows")
    assert next_seq == announced + 1
    camera.call("commit", seq=next_seq)
    assert part.valid()
    assert part.array[:, 0].tolist() == [0, 1, 2]
    assert collect_parts(consumer, lambda part: part.state == "complete")[-1].seq == next_seq
    assert consumer.receive(60).seq == next_seq
    assert camera.call("counters")["holes"] == 1


def test_overwritten_partial_frame_is_invalid(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera(nslots=2)
    harness.wait_granted(camera, consumer)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=3)
    part = collect_parts(consumer, lambda part: part.rows == 3)[-1]
    camera.call("commit", seq=seq)
    camera.call("offer")
    assert part.valid()
    camera.call("offer")
    assert not part.valid()
    with pytest.raises(tp.FrameOverwritten, match=f"frame {seq} "), part:
        pass
    late = consumer.poll_progress()
    assert late == []
    assert consumer.counters().progress_late == 1


def test_no_progress_is_published_without_a_request(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id)
    camera = harness.camera()
    harness.wait_until(lambda: consumer.epoch is not None)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=2)
    counters = camera.call("counters")
    assert (camera.call("has_progress_consumers"), counters["progress_sent"], counters["progress_lost"]) == (
        False,
        0,
        0,
    )
    with pytest.raises(ValueError, match="progress=True"):
        consumer.poll_progress()
    # A consumer that subscribes in the middle of a frame receives the rows so far.
    late = context.consumer(harness.stream_id, **EVERY_STEP)
    harness.wait_granted(camera, late)
    camera.call("fill", seq=seq, first=2, last=3)
    first = collect_parts(late, lambda part: part.rows == 3)[0]
    assert first.state in ("started", "progress")
    late.close()
    harness.wait_until(lambda: not camera.call("has_progress_consumers"))


def test_smallest_requested_interval_applies_to_all_consumers(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    slow = context.consumer(harness.stream_id, progress=True, progress_interval_us=1 << 31)
    camera = harness.camera(nslots=16)
    harness.wait_granted(camera, slow)

    def send_frame(consumer: tp.Consumer) -> list[str]:
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        frame = consumer.receive(60)
        assert frame.seq == seq
        return [part.state for part in consumer.poll_progress()]

    assert send_frame(slow) == ["started", "complete"]
    fast = context.consumer(harness.stream_id, **EVERY_STEP)
    harness.wait_granted(camera, fast)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=4)
    rows = [part.rows for part in collect_parts(slow, lambda part: part.seq == seq and part.rows == 4)]
    assert len(rows) > 2
    assert increases(rows)


def test_last_rows_are_published_after_the_producer_pauses(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    """Rows are written faster than the interval of progress messages, and then no more."""
    consumer = context.consumer(harness.stream_id, **{**EVERY_STEP, "progress_interval_us": 100_000})
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=3)
    part = collect_parts(consumer, lambda part: part.rows == 3)[-1]
    assert part.array[:, 0].tolist() == [0, 1, 2]


@pytest.mark.leaves_files("it is killed")
def test_killed_consumer_ends_its_progress_request(harness: ProgressHarness) -> None:
    camera = harness.camera()
    with RemoteProcess(ReaderProcess, harness.options, harness.stream_id, EVERY_STEP) as reader:
        harness.wait_until(lambda: reader.call("state")["progress_on_per_consumer"])
        harness.wait_until(lambda: camera.call("has_progress_consumers"))
        reader.kill()
    harness.wait_until(lambda: not camera.call("has_progress_consumers"))
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    before = camera.call("counters")["progress_sent"]
    camera.call("fill", seq=seq, first=0, last=4)
    assert camera.call("counters")["progress_sent"] == before


def test_consumer_that_does_not_poll_holds_no_producer_back(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts
) -> None:
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    outcomes = camera.call("fill_until_lost")
    assert set(outcomes) == {"published"}

    def has_progress() -> bool:
        consumer.poll()
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        return any(part.seq == seq for part in consumer.poll_progress(10_000))

    harness.wait_until(has_progress)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"progress": "diagonals"}, "rows"),
        ({"progress": "columns"}, 'order "F"'),
        ({"progress": "rows", "order": "F"}, 'order "C"'),
    ],
)
def test_progress_unit_that_contradicts_the_layout_is_refused(
    context: tp.Context, free_stream_id: int, keywords: dict[str, Any], message: str
) -> None:
    with context.producer(free_stream_id, pools=["4KiB"]) as producer:
        with pytest.raises(ValueError, match=message):
            producer.claim((4, 5), "u1", **keywords)
        assert producer.next_seq == 0


def test_progress_only_increases_up_to_the_end(context: tp.Context, free_stream_id: int) -> None:
    with context.producer(free_stream_id, pools=["4KiB"]) as producer:
        with producer.claim((4, 5), "u1", progress="rows") as slot:
            slot.advance(3)
            for total in (2, 5):
                with pytest.raises(ValueError, match="rows"):
                    slot.advance_to(total)
            assert slot.filled == 3
            slot.advance_to(4)
        with pytest.raises(tp.ClosedError):
            slot.advance()
        with producer.claim((4, 5), "u1") as plain:
            assert plain.filled is None
            with pytest.raises(ValueError, match="progress="):
                plain.advance()


@pytest.mark.parametrize(
    "keywords",
    [
        {"progress_rows": 3},
        {"progress": True, "progress_bytes": -1},
        {"progress": True, "progress_rows": 1 << 32},
    ],
)
def test_invalid_progress_request_is_refused(
    context: tp.Context, free_stream_id: int, keywords: dict[str, Any]
) -> None:
    with pytest.raises(tp.ConfigError, match="progress_"):
        context.consumer(free_stream_id, **keywords)
