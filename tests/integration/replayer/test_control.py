"""Control of a replay: pause, resume, step, seek, loop, rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import recording

from .conftest import MS, START_NS, FrameCollector, OpenCollector, record, until

RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def seqs(collector: FrameCollector) -> list[int]:
    """Recorded sequences of the received frames, by their timestamps."""
    collector.poll()
    return [(frame.timestamp_ns - 1_000) // 10 for frame in collector.frames]


def test_each_step_publishes_one_frame_in_order(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, frames=5)
    collectors = {stream: open_collector(stream) for stream in (first, second)}
    with ctx.replay(root, paused=True, **RING) as replay:
        until(lambda: replay.stats().state == "paused")
        assert repr(replay) == f"<Replay {replay.root} paused frames={replay.stats().frames}>"
        steps: list[tuple[int, int]] = []
        while len(steps) < 10:
            frame = replay.step()
            if frame is not None:
                steps.append((frame.stream_id, frame.seq))
                collectors[frame.stream_id].until(frame.seq + 1)
        assert steps == [(stream, seq) for seq in range(5) for stream in (first, second)]
        assert replay.step() is None
        assert replay.stats().state == "ended"


def test_pause_publishes_no_frame(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    # Eight seconds: even a busy machine pauses the replay before its end.
    record(root, free_stream_id, frames=400, every_ns=20 * MS)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, **{**RING, "nslots": 512}) as replay:
        collector.until(20)
        replay.pause()
        paused_at = replay.stats().frames
        assert 20 <= paused_at < 400
        collector.until(paused_at)
        time.sleep(0.1)
        assert collector.poll() == replay.stats().frames == paused_at
        replay.resume()
        replay.set_speed("max")
        assert replay.wait(60)
        collector.until(400)
    assert seqs(collector) == list(range(400))


@pytest.mark.parametrize("is_paused", [True, False])
def test_seek_to_a_sequence_and_to_a_time(
    ctx: tp.Context,
    root: Path,
    open_collector: OpenCollector,
    free_stream_ids: Callable[[], int],
    is_paused: bool,
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, segment_bytes=4096)
    collectors = open_collector(first), open_collector(second)
    with ctx.replay(root, speed=1000, paused=is_paused, **RING) as replay:
        if not is_paused:
            for collector in collectors:
                collector.until(40)
            assert replay.wait(60)
        counts = [len(seqs(collector)) for collector in collectors]
        replay.seek(seq=30, stream_id=first)
        replay.resume()
        for collector, count in zip(collectors, counts, strict=True):
            collector.until(count + 10)
        until(lambda: replay.stats().state == "ended")
        time_of_frame = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=(START_NS + 35 * MS) // 1000
        )
        replay.seek(time_of_frame)
        for collector, count in zip(collectors, counts, strict=True):
            collector.until(count + 15)
        until(lambda: replay.stats().state == "ended")
        with pytest.raises(tp.errors.FrameNotRecorded, match="no frame 99"):
            replay.seek(seq=99, stream_id=first)
        with pytest.raises(tp.ConfigError, match="several streams"):
            replay.seek(seq=1)
        with pytest.raises(tp.ConfigError, match="a time or"):
            replay.seek()
    for collector, count in zip(collectors, counts, strict=True):
        traces = [frame.trace_id for frame in collector.frames][count:]
        assert traces == [
            collector.consumer.stream_id * 1_000 + seq + 1 for seq in (*range(30, 40), *range(35, 40))
        ]


def test_seek_back_shifts_timestamps_forward(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    record(root, free_stream_id, frames=10)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, speed="max", **RING) as replay:
        collector.until(10)
        until(lambda: replay.stats().state == "ended")
        replay.seek(seq=0)
        received = collector.until(20)
        shift = replay.stats().streams[0].timestamp_shift_ns
    stamps = [frame.timestamp_ns for frame in received]
    assert stamps[:10] == [1_000 + 10 * seq for seq in range(10)]
    assert stamps[10:] == [stamp + shift for stamp in stamps[:10]]
    assert stamps == sorted(set(stamps)), "timestamps only grow"


def test_loop_repeats_until_closed(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    # The ring holds more than a second, so that a busy machine does not lose frames.
    record(root, first, second, frames=30, every_ns=5 * MS)
    collector, _ = open_collector(first), open_collector(second)
    with ctx.replay(root, loop=True, **RING) as replay:
        received = collector.until(100)
        stats = replay.stats()
    assert stats.passes >= 4
    assert stats.state == "playing"
    traces = [frame.trace_id for frame in received]
    assert traces[:90] == [first * 1_000 + seq + 1 for _ in range(3) for seq in range(30)]
    assert all(a < b for a, b in pairwise(frame.timestamp_ns for frame in received))
    # The interval between two passes is the average interval between two frames.
    assert (
        received[30].publish_timestamp_ns - received[0].publish_timestamp_ns
        >= 145 * MS - stats.late_max_s * 1e9
    )


def test_fixed_rate_and_max_pause_shorten_a_replay(ctx: tp.Context, root: Path, free_stream_id: int) -> None:
    # A recording of two hours.
    with recording.RecordingWriter(root, background=False) as writer:
        for seq, hour in enumerate((0, 0, 1, 2)):
            time_ns = START_NS + hour * 3_600 * 10**9 + seq
            writer.append([seq], stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=time_ns)
    for options in ({"max_pause": 0.01}, {"rate_hz": 1000.0}):
        with ctx.replay(root, linger=0, **options) as replay:
            assert replay.wait(60)
            assert replay.stats().frames == 4
    with ctx.replay(root, linger=0) as replay:
        assert not replay.wait(0.3)
        assert replay.stats().left_s == pytest.approx(7200, rel=0.01)


def test_time_base_uses_the_producers_timestamps(ctx: tp.Context, root: Path, free_stream_id: int) -> None:
    # Received in one burst, produced one after the other.
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in range(5):
            writer.append(
                [seq], stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=START_NS,
                timestamp_ns=7_000_000_000 + seq * 20 * MS, publish_timestamp_ns=50 + seq * 40 * MS,
            )  # fmt: skip
    for time_base, min_s in (("source", 0.08), ("publish", 0.16)):
        with ctx.replay(root, time_base=time_base, linger=0) as replay:
            start = time.monotonic()
            assert replay.wait(60)
            # The first frame may be published before the clock is read.
            assert time.monotonic() - start >= min_s / 2
            assert replay.stats().frames == 5
