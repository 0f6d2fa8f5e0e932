"""A recording played into a consumer: the same bytes, in the same order, with all that was said of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tests.unit.recording.conftest import frames as batch
from tests.unit.recording.conftest import payload

from .conftest import MS, START_NS, Listen, picture, record, until

# So long that nothing is overwritten before it is looked at.
LONG_RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def test_bytes_times_and_traces_are_those_of_the_recording(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    listener = listen(free_stream_id)
    with ctx.replay(root, speed="max", **LONG_RING) as replay:
        got = listener.until(40)
        assert replay.wait(60)
        stats = replay.stats()
    recorded = list(recording.open(root).frames(free_stream_id))
    assert [frame.crc32c for frame in got] == [frame.crc32c for frame in recorded]
    for frame, was in zip(got, recorded, strict=True):
        assert np.array_equal(frame.array, picture(free_stream_id, was.seq))
        assert (frame.timestamp_ns, frame.trace_id) == (was.timestamp_ns, was.trace_id)
    # Sequences count anew, in an epoch of the driver's own.
    assert [frame.seq for frame in got] == list(range(got[0].seq, got[0].seq + 40))
    assert {frame.epoch for frame in got}.isdisjoint({5})
    assert (stats.state, stats.frames, stats.passes) == ("ended", 40, 1)
    (stream,) = stats.streams
    assert stream.outcomes == {"published": 40}
    assert stream.last == recorded[-1].cursor


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_kind_of_tensor_comes_as_it_was(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int, order: Any
) -> None:
    arrays = [
        np.asarray(np.random.default_rng(1).integers(0, 2, shape).astype(dtype), order=order)
        for dtype in ("uint8", "int8", "uint16", "int32", "uint64", "float32", "float64", "bool")
        for shape in [(1,), (3, 4), (2, 1, 5), (1, 2, 3, 4, 1, 1, 1, 2), (0, 3), (1,)]
    ]
    with recording.RecordingWriter(root, background=False) as writer:
        for seq, array in enumerate(arrays):
            writer.append(array, stream_id=free_stream_id, epoch=1, seq=seq)
    listener = listen(free_stream_id)
    with ctx.replay(root, speed="max", **LONG_RING):
        got = listener.until(len(arrays))
    for frame, array in zip(got, arrays, strict=True):
        assert (frame.array.dtype, frame.array.shape) == (array.dtype, array.shape)
        assert np.array_equal(frame.array, array)
        if array.size > 1:
            assert frame.array.flags.f_contiguous == array.flags.f_contiguous


def test_rows_with_padding_between_them_keep_it(ctx: tp.Context, root: Path, listen: Listen) -> None:
    made = batch(0, count=2, nbytes=64)
    dims, strides = made.dims.copy(), made.strides.copy()
    # Four rows of ten bytes, sixteen apart; and one whose rows lie across each other, which no reader takes.
    dims[0, :2], strides[0, :2] = (4, 10), (16, 1)
    dims[1, :2], strides[1, :2] = (4, 10), (1, 4)
    changes: dict[str, Any] = {"dims": dims, "strides": strides, "ndims": np.full(2, 2, np.uint8)}
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(batch(0, count=2, nbytes=64, **changes))
    listener = listen(made.stream_id)
    with ctx.replay(root, speed="max", **LONG_RING) as replay:
        (frame,) = listener.until(1)
        assert replay.wait(60)
        stats = replay.stats()
    expected = np.ndarray((4, 10), np.uint8, payload(0, 64).tobytes(), strides=(16, 1))
    assert np.array_equal(frame.array, expected)
    assert (stats.frames, stats.unfit) == (1, 1)


def test_two_streams_go_out_in_the_order_of_the_recording_under_other_ids(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_ids: Callable[[], int]
) -> None:
    first, second, played = (free_stream_ids() for _ in range(3))
    record(root, first, second, frames=60)
    listeners = [listen(played), listen(second)]
    with ctx.replay(root, speed=10, mapping={first: played}, **LONG_RING) as replay:
        one, other = (listener.until(60) for listener in listeners)
        assert replay.wait(60)
        stats = replay.stats()
    assert [(stream.recorded, stream.stream_id) for stream in stats.streams] == [
        (first, played), (second, second)
    ]  # fmt: skip
    assert all(np.array_equal(frame.array, picture(first, seq)) for seq, frame in enumerate(one))
    assert all(np.array_equal(frame.array, picture(second, seq)) for seq, frame in enumerate(other))
    # The streams took turns, and take turns again.
    published = [frame.publish_timestamp_ns for pair in zip(one, other, strict=True) for frame in pair]
    assert published == sorted(published)
    # None is early; how late a frame is says more of the machine than of the replay.
    for number, at_ns in enumerate(published):
        due_ns = (number // 2 * MS + number % 2 * MS // 4) // 10
        assert at_ns - published[0] >= due_ns - stats.late_max_s * 1e9 - 1000


def test_only_what_was_asked_for_is_played(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, segment_bytes=4096)
    listener = listen(first)
    chosen: dict[str, Any] = {"start": START_NS + 10 * MS, "end": START_NS + 20 * MS, "seq": (12, None)}
    with ctx.replay(root, streams=[first], speed="max", **chosen, **LONG_RING) as replay:
        assert replay.wait(60)
        got = listener.until(9)
        assert replay.stats().frames == 9
    assert [frame.trace_id for frame in got] == [first * 1_000 + seq + 1 for seq in range(12, 21)]
    with pytest.raises(tp.errors.FrameNotRecorded, match="no frame"):
        ctx.replay(root, streams=[first], start=START_NS + 10**12)
    with pytest.raises(tp.errors.FrameNotRecorded, match="recorded streams"):
        ctx.replay(root, streams=[free_stream_ids()])


def test_gaps_are_passed_over_with_their_time_and_counted(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in (0, 1, 5, 6, 9):
            writer.append(
                picture(free_stream_id, seq), stream_id=free_stream_id, epoch=1, seq=seq,
                receive_time_ns=START_NS + seq * 10 * MS,
            )  # fmt: skip
    listener = listen(free_stream_id)
    with ctx.replay(root, **LONG_RING) as replay:
        got = listener.until(5)
        assert replay.wait(60)
        stats = replay.stats()
    assert (stats.gaps, stats.missing) == (2, 5)
    assert [frame.seq - got[0].seq for frame in got] == [0, 1, 2, 3, 4]
    # Between the second and the third frame there is the time of the three that are missing.
    assert got[2].publish_timestamp_ns - got[1].publish_timestamp_ns >= 40 * MS - stats.late_max_s * 1e9


def test_two_replays_at_full_speed_give_the_same_recording(
    ctx: tp.Context, root: Path, tmp_path: Path, listen: Listen, free_stream_ids: Callable[[], int]
) -> None:
    streams = [free_stream_ids(), free_stream_ids()]
    record(root, *streams, frames=100)
    made = []
    for name in ("once", "again"):
        with recording.RecordingWriter(tmp_path / name, background=False) as writer:
            for stream in streams:
                listener = listen(stream)
                with ctx.replay(root, streams=[stream], speed="max", **LONG_RING):
                    for frame in listener.until(100):
                        writer.append(
                            frame.array, stream_id=stream, epoch=frame.epoch, seq=frame.seq,
                            timestamp_ns=frame.timestamp_ns, trace_id=frame.trace_id,
                        )  # fmt: skip
                listener.consumer.close()
        copy = recording.open(tmp_path / name)
        made.append([
            (frame.stream_id, frame.timestamp_ns, frame.trace_id, frame.crc32c, frame.payload.tobytes())
            for stream in streams for frame in copy.frames(stream)
        ])  # fmt: skip
    assert made[0] == made[1]
    original = recording.open(root)
    assert [row[4] for row in made[0]] == [
        frame.payload.tobytes() for stream in streams for frame in original.frames(stream)
    ]


def test_without_anybody_to_hear_it_a_replay_ends_all_the_same(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    with ctx.replay(root, speed="max") as replay:
        states = [stats.state for stats in replay]
        assert states[-1] == "ended"
        assert sum(replay.stats().streams[0].outcomes.values()) == 40
    assert replay.stats().state == "closed"
    with pytest.raises(tp.ClosedError):
        replay.pause()


def test_a_replay_with_a_connection_of_its_own(
    root: Path, free_stream_id: int, aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERON_DIR", str(aeron_dir))
    monkeypatch.setenv("TENSORPOOL_SHM__BASE_DIR", str(shm_base))
    record(root, free_stream_id, frames=3)
    before = threading.active_count()
    with tp.replay(root, speed="max") as replay:
        assert replay.wait(60)
        assert replay.stats().frames == 3
    until(lambda: threading.active_count() == before)


def test_a_stream_that_has_a_producer_is_not_played_over(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    with ctx.producer(free_stream_id), pytest.raises(tp.AttachError):
        ctx.replay(root)
    assert not list((root / "_leases").iterdir()), "what came to nothing claims nothing"


def test_a_frame_larger_than_the_pools_makes_the_stream_begin_anew(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    with recording.RecordingWriter(
        root, background=False, limits=recording.WriterLimits(batch_rows=5, segment_bytes=1)
    ) as writer:
        for seq in range(10):
            size = 50_000 if seq == 9 else 100
            array = np.full(size, seq, np.uint8)
            writer.append(array, stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=seq)
    listener = listen(free_stream_id)
    with ctx.replay(root, paused=True, **LONG_RING) as replay:
        for _ in range(9):
            until(replay.step)
        assert [frame.array[0] for frame in listener.until(9)] == list(range(9))
        until(replay.step)
        stats = replay.stats()
    assert (stats.frames, stats.streams[0].reopened) == (10, 1)
    assert sum(stats.streams[0].outcomes.values()) == 10


def damage(root: Path, stream_id: int, seq: int) -> None:
    ref = recording.open(root).frame(stream_id, seq).ref
    content = bytearray(ref.path.read_bytes())
    content[ref.offset] ^= 1
    ref.path.write_bytes(content)


def test_damage_ends_a_replay_after_all_that_comes_before_it(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    damage(root, free_stream_id, 17)
    listener = listen(free_stream_id)
    with ctx.replay(root, speed=1000, **LONG_RING) as replay:
        assert len(listener.until(17)) == 17
        with pytest.raises(tp.errors.CorruptRecording, match="frame 17"):
            replay.wait(60)
        assert replay.stats().state == "failed"
    assert listener.poll() == 17


def test_damage_is_left_out_and_counted_if_that_was_asked_for(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    for seq in (0, 17, 18, 39):
        damage(root, free_stream_id, seq)
    listener = listen(free_stream_id)
    with ctx.replay(root, speed="max", check=True, skip_damage=True, **LONG_RING) as replay:
        got = listener.until(36)
        assert replay.wait(60)
        assert replay.stats().damaged == 4
    assert [frame.timestamp_ns for frame in got] == [
        1_000 + 10 * seq for seq in range(40) if seq not in (0, 17, 18, 39)
    ]


def test_retention_leaves_what_is_yet_to_be_played(ctx: tp.Context, root: Path, free_stream_id: int) -> None:
    record(root, free_stream_id, segment_bytes=1)
    with ctx.replay(root, paused=True):
        kept = recording.retain(root, max_bytes=1)
        assert not kept.removed
    assert recording.retain(root, max_bytes=1).removed
