"""Frames in parts: what a consumer sees of a frame that another process is still writing (wire §10.2.2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .conftest import EAGER, Studio
from .roles import Reader

Parts = Callable[..., list[tp.Progress]]


def rises(numbers: Iterable[int | None]) -> bool:
    """Every step may be told, and some are not: whoever has no time to say it says more the next time."""
    steps = [number for number in numbers if number is not None]
    return all(before < after for before, after in itertools.pairwise(steps))


@pytest.mark.requirement("wire-10.2.2-1", "wire-10.2.2-2", "wire-10.2.2-7", "wire-8.2-6", "wire-8.2-13")
def test_rows_are_there_before_the_frame_is(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    consumer = context.consumer(studio.stream_id, timeout=60, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    # Past the end of the ring, so that the slot is that of an older frame.
    for _ in range(9):
        camera.call("offer")
    seq = camera.call("claim", shape=[6, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=4, shift=10)
    parts = parts_of(consumer, lambda part: part.rows == 4)
    assert (parts[0].state, parts[0].rows, parts[0].array.shape) == ("started", 0, (0, 5))
    assert {part.state for part in parts[1:]} == {"progress"}
    assert rises(part.rows for part in parts)
    last = parts[-1]
    assert (last.stream_id, last.epoch, last.seq) == (studio.stream_id, consumer.epoch, seq)
    assert (last.bytes_filled, last.nbytes, last.shape) == (40, 60, (6, 5))
    with last:
        np.testing.assert_array_equal(last.array, np.repeat(np.arange(10, 14), 5).reshape(4, 5))
        assert (last.element_type, last.array.dtype.name) == ("uint16", "uint16")
        assert (last.array.flags.writeable, last.columns) == (False, None)
    # All rows told, and still no frame: that is the descriptor's to say.
    camera.call("fill", seq=seq, first=4, last=6, shift=10)
    parts_of(consumer, lambda part: part.rows == 6)
    assert seq not in [frame.seq for frame in consumer.poll()]
    assert camera.call("commit", seq=seq) == "published"
    done = parts_of(consumer, lambda part: part.state == "complete")[-1]
    assert (done.seq, done.rows, done.bytes_filled) == (seq, 6, 60)
    frame = next(consumer)
    assert frame.seq == seq
    np.testing.assert_array_equal(frame.array, done.array)
    assert last.valid()


def test_columns_and_bytes_are_told_too(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    seq = camera.call("claim", shape=[3, 4], progress="columns", order="F")
    camera.call("fill_columns", seq=seq, first=0, last=2)
    part = parts_of(consumer, lambda part: part.columns == 2)[-1]
    np.testing.assert_array_equal(part.array, [[0, 1]] * 3)
    assert part.rows is None
    camera.call("commit", seq=seq)
    seq = camera.call("claim", shape=[4, 8], dtype="uint8", progress="bytes")
    camera.call("fill_bytes", seq=seq, total=19)
    part = parts_of(consumer, lambda part: part.seq == seq and part.bytes_filled == 19)[-1]
    assert (part.rows, part.array.tolist()) == (2, [[7] * 8] * 2)


def test_several_frames_fill_at_once(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    one, two = (camera.call("claim", shape=[4, 5], progress="rows") for _ in range(2))
    camera.call("fill", seq=two, first=0, last=3, shift=20)
    camera.call("fill", seq=one, first=0, last=2)
    parts = parts_of(consumer, lambda part: part.seq == two and part.rows == 3)
    camera.call("commit", seq=two)
    camera.call("fill", seq=one, first=2, last=4)
    parts += parts_of(consumer, lambda part: part.seq == one and part.rows == 4)
    camera.call("commit", seq=one)
    parts += parts_of(consumer, lambda part: part.seq == one and part.state == "complete")
    rows = {seq: [part.rows for part in parts if part.seq == seq] for seq in (one, two)}
    assert rows[one][0] == rows[two][0] == 0
    assert rows[one][-2:] == [4, 4], "all rows, and then complete"
    assert rows[two][-2:] == [3, 4], "complete without the last row being told of"
    assert rises(rows[one][:-1])
    assert rises(rows[two])
    assert consumer.counters()["progress"]["news"] == len(parts)


def test_a_frame_that_was_told_of_and_given_up_is_never_another(
    studio: Studio, context: tp.Context, parts_of: Parts
) -> None:
    camera = studio.camera()
    unheard = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("abandon", seq=unheard)
    consumer = context.consumer(studio.stream_id, **EAGER)
    studio.listens(camera, consumer)
    told = camera.call("claim", shape=[4, 5], progress="rows")
    assert told == unheard, "nobody knew of it"
    camera.call("fill", seq=told, first=0, last=3)
    part = parts_of(consumer, lambda part: part.rows == 3)[-1]
    camera.call("abandon", seq=told)
    again = camera.call("claim", shape=[2, 5], progress="rows")
    assert again == told + 1
    camera.call("commit", seq=again)
    assert part.valid()
    assert part.array[:, 0].tolist() == [0, 1, 2]
    assert parts_of(consumer, lambda part: part.state == "complete")[-1].seq == again
    assert consumer.receive(60).seq == again
    assert camera.call("counters")["holes"] == 1


def test_a_part_that_was_overwritten_says_so(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera(nslots=2)
    studio.listens(camera, consumer)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=3)
    part = parts_of(consumer, lambda part: part.rows == 3)[-1]
    camera.call("commit", seq=seq)
    camera.call("offer")
    assert part.valid()
    camera.call("offer")
    assert not part.valid()
    with pytest.raises(tp.FrameOverwritten, match=f"frame {seq} "), part:
        pass
    late = consumer.poll_progress()
    assert late == []
    assert consumer.counters()["progress"]["late"] == 1


def test_without_a_listener_nothing_is_told(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    indifferent = context.consumer(studio.stream_id)
    camera = studio.camera()
    studio.wait_until(lambda: indifferent.epoch is not None)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=2)
    counters = camera.call("counters")
    assert (camera.call("has_listeners"), counters["progress_sent"], counters["progress_lost"]) == (
        False,
        0,
        0,
    )
    with pytest.raises(ValueError, match="progress=True"):
        indifferent.poll_progress()
    # Who comes in the middle of a frame hears of what there is.
    late = context.consumer(studio.stream_id, **EAGER)
    studio.listens(camera, late)
    camera.call("fill", seq=seq, first=2, last=3)
    first = parts_of(late, lambda part: part.rows == 3)[0]
    assert first.state in ("started", "progress")
    late.close()
    studio.wait_until(lambda: not camera.call("has_listeners"))


def test_the_smallest_wish_decides_for_all(studio: Studio, context: tp.Context, parts_of: Parts) -> None:
    patient = context.consumer(studio.stream_id, progress=True, progress_interval_us=1 << 31)
    camera = studio.camera(nslots=16)
    studio.listens(camera, patient)

    def film(consumer: tp.Consumer) -> list[str]:
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        frame = consumer.receive(60)
        assert frame.seq == seq
        return [part.state for part in consumer.poll_progress()]

    assert film(patient) == ["started", "complete"]
    eager = context.consumer(studio.stream_id, **EAGER)
    studio.listens(camera, eager)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=4)
    rows = [part.rows for part in parts_of(patient, lambda part: part.seq == seq and part.rows == 4)]
    assert len(rows) > 2
    assert rises(rows)


def test_the_latest_is_told_though_the_camera_has_stopped(
    studio: Studio, context: tp.Context, parts_of: Parts
) -> None:
    """The rows come faster than they may be told of, and then no more."""
    consumer = context.consumer(studio.stream_id, **{**EAGER, "progress_interval_us": 100_000})
    camera = studio.camera()
    studio.listens(camera, consumer)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=seq, first=0, last=3)
    part = parts_of(consumer, lambda part: part.rows == 3)[-1]
    assert part.array[:, 0].tolist() == [0, 1, 2]


@pytest.mark.leaves_files("it is killed")
def test_a_dead_listener_is_forgotten(studio: Studio) -> None:
    camera = studio.camera()
    with RemoteProcess(Reader, studio.options, studio.stream_id, EAGER) as reader:
        studio.wait_until(lambda: reader.call("standing")["progress_on_own"])
        studio.wait_until(lambda: camera.call("has_listeners"))
        reader.kill()
    studio.wait_until(lambda: not camera.call("has_listeners"))
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    before = camera.call("counters")["progress_sent"]
    camera.call("fill", seq=seq, first=0, last=4)
    assert camera.call("counters")["progress_sent"] == before


def test_who_does_not_listen_holds_nobody_up_and_may_come_back(
    studio: Studio, context: tp.Context, parts_of: Parts
) -> None:
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    outcomes = camera.call("fill_until_lost")
    assert set(outcomes) == {"published"}

    def heard() -> bool:
        consumer.poll()
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        return any(part.seq == seq for part in consumer.poll_progress(10_000))

    studio.wait_until(heard)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"progress": "diagonals"}, "rows"),
        ({"progress": "columns"}, 'order "F"'),
        ({"progress": "rows", "order": "F"}, 'order "C"'),
    ],
)
def test_progress_that_no_prefix_could_show_is_refused(
    context: tp.Context, free_stream_id: int, wish: dict[str, Any], words: str
) -> None:
    with context.producer(free_stream_id, pools=["4KiB"]) as producer:
        with pytest.raises(ValueError, match=words):
            producer.claim((4, 5), "u1", **wish)
        assert producer.next_seq == 0


def test_a_meter_only_goes_forwards_and_not_beyond_the_end(context: tp.Context, free_stream_id: int) -> None:
    with context.producer(free_stream_id, pools=["4KiB"]) as producer:
        with producer.claim((4, 5), "u1", progress="rows") as slot:
            slot.advance(3)
            for wrong in (2, 5):
                with pytest.raises(ValueError, match="rows"):
                    slot.advance_to(wrong)
            assert slot.filled == 3
            slot.advance_to(4)
        with pytest.raises(tp.ClosedError):
            slot.advance()
        with producer.claim((4, 5), "u1") as plain:
            assert plain.filled is None
            with pytest.raises(ValueError, match="progress="):
                plain.advance()


@pytest.mark.parametrize(
    "wish",
    [
        {"progress_rows": 3},
        {"progress": True, "progress_bytes": -1},
        {"progress": True, "progress_rows": 1 << 32},
    ],
)
def test_wishes_that_make_no_sense_are_refused(
    context: tp.Context, free_stream_id: int, wish: dict[str, Any]
) -> None:
    with pytest.raises(tp.ConfigError, match="progress_"):
        context.consumer(free_stream_id, **wish)
