"""Pause, go on, step, jump, begin again."""

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

from .conftest import MS, START_NS, Listen, Listener, record, until

RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def seqs(listener: Listener) -> list[int]:
    """Sequences of the recording, by the timestamps they had."""
    listener.poll()
    return [(frame.timestamp_ns - 1_000) // 10 for frame in listener.frames]


def test_steps_give_one_frame_each_in_the_order_of_the_recording(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, frames=5)
    listeners = {stream: listen(stream) for stream in (first, second)}
    with ctx.replay(root, paused=True, **RING) as replay:
        until(lambda: replay.stats().state == "paused")
        steps: list[tuple[int, int]] = []
        while len(steps) < 10:
            frame = replay.step()
            if frame is not None:
                steps.append((frame.stream_id, frame.seq))
                listeners[frame.stream_id].until(frame.seq + 1)
        assert steps == [(stream, seq) for seq in range(5) for stream in (first, second)]
        assert replay.step() is None
        assert replay.stats().state == "ended"


def test_no_frame_goes_out_while_it_is_paused(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    # Eight seconds: a busy machine pauses it long before its end.
    record(root, free_stream_id, frames=400, every_ns=20 * MS)
    listener = listen(free_stream_id)
    with ctx.replay(root, **{**RING, "nslots": 512}) as replay:
        listener.until(20)
        replay.pause()
        paused_at = replay.stats().frames
        assert 20 <= paused_at < 400
        listener.until(paused_at)
        time.sleep(0.1)
        assert listener.poll() == replay.stats().frames == paused_at
        replay.resume()
        replay.set_speed("max")
        assert replay.wait(60)
        listener.until(400)
    assert seqs(listener) == list(range(400))


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_jump_to_a_sequence_and_to_a_time(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_ids: Callable[[], int], is_paused: bool
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    record(root, first, second, segment_bytes=4096)
    ears = listen(first), listen(second)
    with ctx.replay(root, speed=1000, paused=is_paused, **RING) as replay:
        if not is_paused:
            for ear in ears:
                ear.until(40)
            assert replay.wait(60)
        before = [len(seqs(ear)) for ear in ears]
        replay.seek(seq=30, stream_id=first)
        replay.resume()
        for ear, count in zip(ears, before, strict=True):
            ear.until(count + 10)
        until(lambda: replay.stats().state == "ended")
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(START_NS + 35 * MS) // 1000)
        replay.seek(when)
        for ear, count in zip(ears, before, strict=True):
            ear.until(count + 15)
        until(lambda: replay.stats().state == "ended")
        with pytest.raises(tp.errors.FrameNotRecorded, match="no frame 99"):
            replay.seek(seq=99, stream_id=first)
        with pytest.raises(tp.ConfigError, match="of which stream"):
            replay.seek(seq=1)
        with pytest.raises(tp.ConfigError, match="a time or"):
            replay.seek()
    for ear, count in zip(ears, before, strict=True):
        shown = [frame.trace_id for frame in ear.frames][count:]
        assert shown == [ear.consumer.stream_id * 1_000 + seq + 1 for seq in (*range(30, 40), *range(35, 40))]


def test_after_a_jump_back_timestamps_go_on_with_the_same_spacing(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    record(root, free_stream_id, frames=10)
    listener = listen(free_stream_id)
    with ctx.replay(root, speed="max", **RING) as replay:
        listener.until(10)
        until(lambda: replay.stats().state == "ended")
        replay.seek(seq=0)
        got = listener.until(20)
        shift = replay.stats().streams[0].timestamp_shift_ns
    stamps = [frame.timestamp_ns for frame in got]
    assert stamps[:10] == [1_000 + 10 * seq for seq in range(10)]
    assert stamps[10:] == [stamp + shift for stamp in stamps[:10]]
    assert stamps == sorted(set(stamps)), "no time runs backwards"


def test_a_loop_begins_again_until_it_is_closed(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_ids: Callable[[], int]
) -> None:
    first, second = free_stream_ids(), free_stream_ids()
    # So slow that the ring is a second deep: a busy machine holds the listener up for a while.
    record(root, first, second, frames=30, every_ns=5 * MS)
    listener, _ = listen(first), listen(second)
    with ctx.replay(root, loop=True, **RING) as replay:
        got = listener.until(100)
        stats = replay.stats()
    assert stats.passes >= 4
    assert stats.state == "playing"
    traces = [frame.trace_id for frame in got]
    assert traces[:90] == [first * 1_000 + seq + 1 for _ in range(3) for seq in range(30)]
    assert all(a < b for a, b in pairwise(frame.timestamp_ns for frame in got))
    # From the last frame to the first of the next pass it is about as long as between two others.
    assert got[30].publish_timestamp_ns - got[0].publish_timestamp_ns >= 145 * MS - stats.late_max_s * 1e9


def test_a_rate_and_a_shortest_silence_stand_in_for_the_recorded_times(
    ctx: tp.Context, root: Path, free_stream_id: int
) -> None:
    # Two hours, of which nobody wants to wait a minute.
    with recording.RecordingWriter(root, background=False) as writer:
        for seq, hour in enumerate((0, 0, 1, 2)):
            at_ns = START_NS + hour * 3_600 * 10**9 + seq
            writer.append([seq], stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=at_ns)
    for options in ({"max_pause": 0.01}, {"rate_hz": 1000.0}):
        with ctx.replay(root, linger=0, **options) as replay:
            assert replay.wait(60)
            assert replay.stats().frames == 4
    with ctx.replay(root, linger=0) as replay:
        assert not replay.wait(0.3)
        assert replay.stats().left_s == pytest.approx(7200, rel=0.01)


def test_other_clocks_than_the_recorders(ctx: tp.Context, root: Path, free_stream_id: int) -> None:
    # Received in one burst, made one after the other.
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in range(5):
            writer.append(
                [seq], stream_id=free_stream_id, epoch=1, seq=seq, receive_time_ns=START_NS,
                timestamp_ns=7_000_000_000 + seq * 20 * MS, publish_timestamp_ns=50 + seq * 40 * MS,
            )  # fmt: skip
    for clock, at_least in (("source", 0.08), ("publish", 0.16)):
        with ctx.replay(root, time_base=clock, linger=0) as replay:
            began = time.monotonic()
            assert replay.wait(60)
            # The first frame may have gone out before the clock was looked at.
            assert time.monotonic() - began >= at_least / 2
            assert replay.stats().frames == 5
