"""Replays into a consumer: bytes, order, times and traces equal the recorded ones."""

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

from .conftest import MS, START_NS, OpenCollector, image, record, until

# So many slots that no frame is overwritten before it is read.
LONG_RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def test_frames_equal_the_recorded_frames(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, speed="max", **LONG_RING) as replay:
        received = collector.until(40)
        assert replay.wait(60)
        stats = replay.stats()
    recorded = list(recording.open(root).frames(free_stream_id))
    assert [frame.crc32c for frame in received] == [frame.crc32c for frame in recorded]
    for frame, original in zip(received, recorded, strict=True):
        assert np.array_equal(frame.array, image(free_stream_id, original.seq))
        assert (frame.timestamp_ns, frame.trace_id) == (original.timestamp_ns, original.trace_id)
    # Sequences start at zero, in a new epoch.
    assert [frame.seq for frame in received] == list(range(received[0].seq, received[0].seq + 40))
    assert {frame.epoch for frame in received}.isdisjoint({5})
    assert (stats.state, stats.frames, stats.passes) == ("ended", 40, 1)
    (stream,) = stats.streams
    assert stream.outcomes == {"published": 40}
    assert stream.last == recorded[-1].cursor


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_dtype_shape_and_order_is_kept(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int, order: Any
) -> None:
    arrays = [
        np.asarray(np.random.default_rng(1).integers(0, 2, shape).astype(dtype), order=order)
        for dtype in ("uint8", "int8", "uint16", "int32", "uint64", "float32", "float64", "bool")
        for shape in [(1,), (3, 4), (2, 1, 5), (1, 2, 3, 4, 1, 1, 1, 2), (0, 3), (1,)]
    ]
    with recording.RecordingWriter(root, background=False) as writer:
        for seq, array in enumerate(arrays):
            writer.append(array, stream_id=free_stream_id, epoch=1, seq=seq)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, speed="max", **LONG_RING):
        received = collector.until(len(arrays))
    for frame, array in zip(received, arrays, strict=True):
        assert (frame.array.dtype, frame.array.shape) == (array.dtype, array.shape)
        assert np.array_equal(frame.array, array)
        if array.size > 1:
            assert frame.array.flags.f_contiguous == array.flags.f_contiguous


def test_padded_rows_keep_their_strides(ctx: tp.Context, root: Path, open_collector: OpenCollector) -> None:
    template = batch(0, count=2, nbytes=64)
    dims, strides = template.dims.copy(), template.strides.copy()
    # Four rows of ten bytes, sixteen apart; and a tensor with overlapping rows, which is invalid.
    dims[0, :2], strides[0, :2] = (4, 10), (16, 1)
    dims[1, :2], strides[1, :2] = (4, 10), (1, 4)
    changes: dict[str, Any] = {"dims": dims, "strides": strides, "ndims": np.full(2, 2, np.uint8)}
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(batch(0, count=2, nbytes=64, **changes))
    collector = open_collector(template.stream_id)
    with ctx.replay(root, speed="max", **LONG_RING) as replay:
        (frame,) = collector.until(1)
        assert replay.wait(60)
        stats = replay.stats()
    expected = np.ndarray((4, 10), np.uint8, payload(0, 64).tobytes(), strides=(16, 1))
    assert np.array_equal(frame.array, expected)
    assert (stats.frames, stats.unfit) == (1, 1)


def test_two_streams_keep_their_order_under_other_ids(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_ids: Callable[[], int]
) -> None:
    first, second, target = (free_stream_ids() for _ in range(3))
    record(root, first, second, frames=60)
    collectors = [open_collector(target), open_collector(second)]
    with ctx.replay(root, speed=10, mapping={first: target}, **LONG_RING) as replay:
        first_frames, second_frames = (collector.until(60) for collector in collectors)
        assert replay.wait(60)
        stats = replay.stats()
    assert [(stream.recorded, stream.stream_id) for stream in stats.streams] == [
        (first, target), (second, second)
    ]  # fmt: skip
    assert all(np.array_equal(frame.array, image(first, seq)) for seq, frame in enumerate(first_frames))
    assert all(np.array_equal(frame.array, image(second, seq)) for seq, frame in enumerate(second_frames))
    # The streams alternate as recorded.
    published = [
        frame.publish_timestamp_ns for pair in zip(first_frames, second_frames, strict=True) for frame in pair
    ]
    assert published == sorted(published)
    # No frame is early; delays depend on the machine.
    for number, time_ns in enumerate(published):
        due_ns = (number // 2 * MS + number % 2 * MS // 4) // 10
        assert time_ns - published[0] >= due_ns - stats.late_max_s * 1e9 - 1000


def test_only_selected_frames_are_published(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, segment_bytes=4096)
    collector = open_collector(first)
    chosen: dict[str, Any] = {"start": START_NS + 10 * MS, "end": START_NS + 20 * MS, "seq": (12, None)}
    with ctx.replay(root, streams=[first], speed="max", **chosen, **LONG_RING) as replay:
        assert replay.wait(60)
        received = collector.until(9)
        assert replay.stats().frames == 9
    assert [frame.trace_id for frame in received] == [first * 1_000 + seq + 1 for seq in range(12, 21)]
    with pytest.raises(tp.errors.FrameNotRecorded, match="no frame"):
        ctx.replay(root, streams=[first], start=START_NS + 10**12)
    with pytest.raises(tp.errors.FrameNotRecorded, match="recorded streams"):
        ctx.replay(root, streams=[free_stream_ids()])


def test_gaps_keep_their_time_and_are_counted(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in (0, 1, 5, 6, 9):
            writer.append(
                image(free_stream_id, seq), stream_id=free_stream_id, epoch=1, seq=seq,
                receive_time_ns=START_NS + seq * 10 * MS,
            )  # fmt: skip
    collector = open_collector(free_stream_id)
    with ctx.replay(root, **LONG_RING) as replay:
        received = collector.until(5)
        assert replay.wait(60)
        stats = replay.stats()
    assert (stats.gaps, stats.missing) == (2, 5)
    assert [frame.seq - received[0].seq for frame in received] == [0, 1, 2, 3, 4]
    # The time of the three missing frames passes between the second and the third frame.
    assert (
        received[2].publish_timestamp_ns - received[1].publish_timestamp_ns
        >= 40 * MS - stats.late_max_s * 1e9
    )


def test_two_replays_at_full_speed_are_identical(
    ctx: tp.Context,
    root: Path,
    tmp_path: Path,
    open_collector: OpenCollector,
    free_stream_ids: Callable[[], int],
) -> None:
    streams = [free_stream_ids(), free_stream_ids()]
    record(root, *streams, frames=100)
    copies = []
    for name in ("once", "again"):
        with recording.RecordingWriter(tmp_path / name, background=False) as writer:
            for stream in streams:
                collector = open_collector(stream)
                with ctx.replay(root, streams=[stream], speed="max", **LONG_RING):
                    for frame in collector.until(100):
                        writer.append(
                            frame.array, stream_id=stream, epoch=frame.epoch, seq=frame.seq,
                            timestamp_ns=frame.timestamp_ns, trace_id=frame.trace_id,
                        )  # fmt: skip
                collector.consumer.close()
        copy = recording.open(tmp_path / name)
        copies.append([
            (frame.stream_id, frame.timestamp_ns, frame.trace_id, frame.crc32c, frame.payload.tobytes())
            for stream in streams for frame in copy.frames(stream)
        ])  # fmt: skip
    assert copies[0] == copies[1]
    original = recording.open(root)
    assert [row[4] for row in copies[0]] == [
        frame.payload.tobytes() for stream in streams for frame in original.frames(stream)
    ]


def test_replay_without_consumers_ends(ctx: tp.Context, root: Path, free_stream_id: int) -> None:
    record(root, free_stream_id)
    with ctx.replay(root, speed="max") as replay:
        states = [stats.state for stats in replay]
        assert states[-1] == "ended"
        assert sum(replay.stats().streams[0].outcomes.values()) == 40
    assert replay.stats().state == "closed"
    with pytest.raises(tp.ClosedError):
        replay.pause()


def test_elapsed_time_contains_the_waits_between_frames(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    record(root, free_stream_id, every_ns=25 * MS)
    with ctx.replay(root, linger=0.0) as replay:
        assert replay.wait(60)
        stats = replay.stats()
    assert stats.elapsed_s >= 0.95 * 39 * 0.025


def test_replay_opens_and_closes_its_own_context(
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


def test_replay_into_a_stream_with_a_producer_is_refused(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    with ctx.producer(free_stream_id), pytest.raises(tp.AttachError):
        ctx.replay(root)
    assert not list((root / "_leases").iterdir()), "a failed replay leaves no lease"


def test_frame_larger_than_the_pools_reopens_the_stream(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    with recording.RecordingWriter(
        root, background=False, limits=recording.WriterLimits(batch_rows=5, segment_bytes=1)
    ) as writer:
        for seq in range(10):
            size = 50_000 if seq == 9 else 100
            array = np.full(size, seq, np.uint8)
            writer.append(array, stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=seq)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, paused=True, **LONG_RING) as replay:
        for _ in range(9):
            until(replay.step)
        assert [frame.array[0] for frame in collector.until(9)] == list(range(9))
        until(replay.step)
        stats = replay.stats()
    assert (stats.frames, stats.streams[0].reopened) == (10, 1)
    assert sum(stats.streams[0].outcomes.values()) == 10


def damage(root: Path, stream_id: int, seq: int) -> None:
    ref = recording.open(root).frame(stream_id, seq).ref
    content = bytearray(Path(ref.path).read_bytes())
    content[ref.offset] ^= 1
    Path(ref.path).write_bytes(content)


def test_damage_ends_the_replay_after_the_frames_before_it(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    damage(root, free_stream_id, 17)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, speed=1000, **LONG_RING) as replay:
        assert len(collector.until(17)) == 17
        with pytest.raises(tp.errors.CorruptRecording, match="frame 17"):
            replay.wait(60)
        assert replay.stats().state == "failed"
    assert collector.poll() == 17


def test_skip_damage_skips_and_counts_damaged_frames(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    record(root, free_stream_id)
    for seq in (0, 17, 18, 39):
        damage(root, free_stream_id, seq)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, speed="max", check=True, skip_damage=True, **LONG_RING) as replay:
        received = collector.until(36)
        assert replay.wait(60)
        assert replay.stats().damaged == 4
    assert [frame.timestamp_ns for frame in received] == [
        1_000 + 10 * seq for seq in range(40) if seq not in (0, 17, 18, 39)
    ]


def test_retention_keeps_segments_of_a_running_replay(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    record(root, free_stream_id, segment_bytes=1)
    with ctx.replay(root, paused=True):
        assert not recording.apply_retention(root, max_bytes=1).removed
    assert recording.apply_retention(root, max_bytes=1).removed
