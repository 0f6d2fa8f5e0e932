"""Control of a recorder by program and by service: trigger, mark, rotate, start, stop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording

from .roles import pattern

DEADLINE_S = 60.0


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2) as context:
        yield context


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def until(wait_until: Callable[..., Any]) -> Callable[[Callable[[], Any]], Any]:
    return lambda predicate: wait_until(predicate, timeout=DEADLINE_S)


@pytest.fixture
def camera(ctx: tp.Context, free_stream_id: int) -> tp.Producer:
    return ctx.producer(free_stream_id, pools=["64KiB"], nslots=256, metadata={"serial": "A1"})


def offer_patterns(camera: tp.Producer, count: int, nbytes: int = 1000) -> int:
    for _ in range(count):
        camera.offer(pattern(camera.next_seq, nbytes))
    return camera.next_seq


def start_recorder(ctx: tp.Context, root: Path, camera: tp.Producer, **options: Any) -> Any:
    defaults = {"buffer": "4MiB", "keep_free": 0, "streams": [camera.stream_id]}
    recorder: Any = ctx.record(root, **{**defaults, **options})
    # Wait for the mapping, so that the first frame of the test is recorded.
    consumer = recorder._agent._streams._consumers[camera.stream_id]
    deadline = time.monotonic() + DEADLINE_S
    while not (consumer.is_connected and consumer.epoch):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return recorder


def accounted(recorder: Any, camera: tp.Producer) -> int:
    """Frames that the native loop has accounted for, written or not."""
    counts = recorder._agent._native.buffer().streams[camera.stream_id]
    return int(counts.rows + counts.lost)


def seqs(root: Path, stream_id: int) -> list[int]:
    with recording.open(root) as opened:
        for frame in opened.frames(stream_id):
            assert np.array_equal(frame.payload, pattern(frame.seq, frame.nbytes))
        return [frame.seq for frame in opened.frames(stream_id)]


def test_recorded_frames_equal_the_offered_frames(
    ctx: tp.Context, root: Path, free_stream_id: int, until
) -> None:
    with ctx.producer(
        free_stream_id, pools=["64KiB"], nslots=64, traces=True, publish_timestamps=True, name="cam"
    ) as camera:
        with start_recorder(ctx, root, camera) as recorder:
            camera.set_metadata({"gain": 3})
            sent: list[Any] = [
                np.arange(12, dtype=np.uint16).reshape(3, 4),
                np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
                np.zeros((2, 0), np.float32),
                np.array([True, False]),
                np.arange(48, dtype=np.int8).reshape(1, 2, 3, 1, 2, 2, 1, 2),
            ]
            for array in sent:
                camera.offer(array)
            with ctx.consumer(free_stream_id) as viewer:
                viewer.wait_for_producer()
                camera.offer(sent[0])
                camera.offer(sent[0])
                # A single parent needs no TraceLinkSet: the trace id names it.
                camera.offer(sent[0], parents=[viewer.receive(60), viewer.receive(60)])
                sent += [sent[0]] * 3
            until(lambda: recorder.stats().rows == len(sent))
            until(lambda: "TraceLinkSet" in recording.open(root).table("metadata").column("kind").to_pylist())
        with recording.open(root) as opened:
            frames = list(opened.frames(free_stream_id))
            assert len(frames) == len(sent)
            for frame, array in zip(frames, sent, strict=True):
                assert frame.array.dtype == array.dtype
                assert np.array_equal(frame.array, array)
                assert frame.trace_id
                assert frame.publish_timestamp_ns
                assert frame.meta_version == camera.meta_version
            kinds = opened.table("metadata").column("kind").to_pylist()
            assert {"DataSourceAnnounce", "DataSourceMeta", "TraceLinkSet"} <= {*kinds}


def test_recording_contains_metadata_and_qos(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera) as recorder:
        offer_patterns(camera, 10)
        camera.set_metadata({"serial": "B2"})
        offer_patterns(camera, 10)

        def tables() -> bool:
            with recording.open(root) as opened:
                messages = b"".join(opened.table("metadata").column("message").to_pylist())
                return b"B2" in messages and opened.table("qos").num_rows > 1

        until(lambda: recorder.stats().rows == 20)
        until(tables)


def test_frames_limit_ends_the_recording_exactly(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera, frames=25) as recorder:
        offer_patterns(camera, 60)
        until(lambda: recorder.is_finished)
    assert seqs(root, camera.stream_id) == [*range(25)]
    (ledger,) = recorder.ledger()
    assert (ledger.span, ledger.rows) == (25, 25)


def test_trigger_writes_the_pre_trigger_buffer(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera, pre_trigger="60s") as recorder:
        offer_patterns(camera, 50)
        until(lambda: recorder.stats().state == "armed")
        until(lambda: recorder.stats().backlog_bytes > 0)
        assert recorder.stats().rows == 0
        # The trigger writes the frames that the native loop has accounted for.
        until(lambda: accounted(recorder, camera) == 50)
        recorder.trigger()
        offer_patterns(camera, 10)
        until(lambda: recorder.stats().rows == 60)
    assert seqs(root, camera.stream_id) == [*range(60)]


def test_frames_between_two_triggers_are_a_gap(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera, pre_trigger="200ms") as recorder:
        offer_patterns(camera, 20)
        until(lambda: accounted(recorder, camera) == 20)
        until(lambda: recorder.stats().seconds > 2)
        recorder.trigger(0.5)
        offer_patterns(camera, 20)
        until(lambda: recorder.stats().rows == 20)
        until(lambda: recorder.stats().state == "armed")
        offer_patterns(camera, 20)
        until(lambda: accounted(recorder, camera) == 60)
        start_s = recorder.stats().seconds
        until(lambda: recorder.stats().seconds > start_s + 1)
        recorder.trigger()
        offer_patterns(camera, 5)
        until(lambda: recorder.stats().rows == 25)
    (ledger,) = recorder.ledger()
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (20, 25, {"not_triggered": 20})
    assert seqs(root, camera.stream_id) == [*range(20, 40), *range(60, 65)]
    with recording.open(root) as opened:
        assert opened.ledger(camera.stream_id) == [ledger]


def test_pre_trigger_buffer_leaves_memory_free(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera, pre_trigger="1h", buffer="2MiB") as recorder:
        for _ in range(100):
            end = offer_patterns(camera, 10, nbytes=10_000)
            until(lambda end=end: accounted(recorder, camera) == end)
        recorder.trigger()
        until(lambda: recorder.stats().backlog_bytes == 0)
    (ledger,) = recorder.ledger()
    assert ledger.balanced
    assert ledger.last_seq == 999
    assert 0 < ledger.rows <= 200, "10 MB were offered, and the buffer holds 2 MiB"
    assert len(seqs(root, camera.stream_id)) == ledger.rows


def test_ledger_continues_after_stop_and_start(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera) as recorder:
        offer_patterns(camera, 10)
        until(lambda: recorder.stats().rows == 10)
        recorder.stop()
        assert recorder.stats().state == "stopped"
        assert not list(root.glob("stream=*/epoch=*/*.partial"))
        offer_patterns(camera, 7)
        recorder.start()
        consumer = recorder._agent._streams._consumers[camera.stream_id]
        until(lambda: consumer.is_connected and consumer.epoch is not None)
        offer_patterns(camera, 10)
        until(lambda: recorder.ledger()[0].last_seq == 26)
    (ledger,) = recorder.ledger()
    # A consumer that returns early may still find frames published in between.
    assert 20 <= ledger.rows <= 27
    assert ledger.balanced
    assert ledger.gaps.keys() <= {"not_recording", "unmapped"}
    with recording.open(root) as opened:
        assert opened.ledger(camera.stream_id) == [ledger]


def test_segments_rotate_and_retention_removes_the_oldest(ctx: tp.Context, root: Path, camera, until) -> None:
    with start_recorder(ctx, root, camera, rotate_bytes=100_000, retain_bytes=400_000) as recorder:
        for _ in range(10):
            end = offer_patterns(camera, 100)
            until(lambda end=end: recorder.stats().rows == end)
            recorder.rotate()

        def is_small() -> bool:
            files = root.glob("stream=*/epoch=*/*.arrows")
            return sum(path.stat().st_size for path in files) <= 400_000

        until(is_small)
    kept = seqs(root, camera.stream_id)
    assert kept[-1] == 999
    assert kept == [*range(kept[0], 1000)]
    assert recorder.ledger()[0].rows == 1000


def test_second_recorder_of_a_stream_is_refused(ctx: tp.Context, root: Path, camera) -> None:
    with start_recorder(ctx, root, camera):
        with pytest.raises(tp.LockHeld):
            ctx.record(root, streams=[camera.stream_id], buffer="1MiB")
        with ctx.record(root.with_name("another"), streams=[camera.stream_id], buffer="1MiB"):
            pass


def test_record_all_opens_streams_as_they_are_announced(
    ctx: tp.Context, root: Path, free_stream_ids: Callable[[], int], until
) -> None:
    with ctx.record(root, buffer="4MiB", keep_free=0) as recorder:
        cameras = [ctx.producer(free_stream_ids(), pools=["64KiB"], nslots=64) for _ in range(2)]
        until(lambda: recorder.stats().streams == tuple(sorted(camera.stream_id for camera in cameras)))
        for camera in cameras:
            assert camera.wait_for_consumer(DEADLINE_S)
            offer_patterns(camera, 10)
        until(lambda: recorder.stats().rows == 20)
        for camera in cameras:
            camera.close()
    for camera in cameras:
        assert seqs(root, camera.stream_id) == [*range(10)]


def test_service_controls_the_recorder(ctx: tp.Context, root: Path, camera, until) -> None:
    with (
        start_recorder(ctx, root, camera, instance="lab") as recorder,
        ctx.service("recorder", instance="lab") as lab,
    ):
        offer_patterns(camera, 10)
        until(lambda: lab.get("rows") == 10)
        assert lab.get("state") == "recording"
        assert lab.get("root") == str(root)
        lab.call("mark", {"label": "half"})
        lab.call("rotate")
        assert lab.call("stop") == {"state": "stopped"}
        assert lab.call("start") == {"state": "recording"}
        (ledger,) = lab.call("ledger")
        assert ledger["balanced"]
        assert ledger["rows"] == 10
        assert lab.call("status")["rows"] == 10
        for invalid in ({"label": 5}, {"label": ""}, {"label": "x", "stream_id": "y"}):
            with pytest.raises(tp.CommandFailed):
                lab.call("mark", invalid)
        with pytest.raises(tp.CommandFailed):
            lab.call("trigger", {"seconds": -1})
        lab.call("trigger")
        assert recorder.stats().state == "recording"
    with recording.open(root) as opened:
        assert opened.table("marks").column("label").to_pylist() == ["half"]


def test_service_publishes_a_full_disk(
    ctx: tp.Context, root: Path, camera, until, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    enough = threading.Event()

    def watch(lab: Any) -> None:
        for event in lab.watch("state", timeout=DEADLINE_S):
            states.append(event.value)
            if enough.is_set():
                return

    with ctx.service("recorder") as watched:
        thread = threading.Thread(target=watch, args=(watched,))
        with start_recorder(ctx, root, camera), ctx.service("recorder") as lab:
            thread.start()
            # Replies are published to all clients: a first state means that the thread is watching.
            until(lambda: lab.get("state") == "recording" and states)
            space = os.statvfs(root)
            with monkeypatch.context() as full:
                full.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=space.f_frsize))
                until(lambda: states[-1] == "disk_full")
                assert "left" in str(lab.get("problem"))
            until(lambda: states[-1] == "recording")
            assert lab.get("problem") == ""
            offer_patterns(camera, 5)
            until(lambda: lab.get("rows") == 5)
            enough.set()
            # Publishes one more state, which ends the thread.
            lab.get("state")
            thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_recorder_survives_a_context_closed_before_it(
    aeron_dir: Path, shm_base: Path, root: Path, free_stream_id: int, until
) -> None:
    context = tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base)
    camera = context.producer(free_stream_id, pools=["64KiB"], nslots=256)
    recorder = start_recorder(context, root, camera)
    offer_patterns(camera, 10)
    until(lambda: recorder.stats().rows == 10)
    context.close()
    recorder.close()
    assert seqs(root, free_stream_id) == [*range(10)]
    assert not list(root.glob("**/*.partial"))


def test_recorder_is_sealed_at_exit_without_close(
    aeron_dir: Path, shm_base: Path, root: Path, free_stream_id: int
) -> None:
    program = f"""
import time
import numpy as np
import tensorpool as tp
context = tp.open(mode="embedded", aeron_dir={str(aeron_dir)!r}, shm_base_dir={str(shm_base)!r})
camera = context.producer({free_stream_id}, pools=["64KiB"], nslots=256)
recorder = context.record({str(root)!r}, streams=[{free_stream_id}], buffer="1MiB", keep_free=0)
while not recorder.mapped()[{free_stream_id}]:
    time.sleep(0.01)
while recorder.stats().rows < 5:
    camera.offer(np.zeros(10, np.uint8))
    time.sleep(0.01)
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=DEADLINE_S)
    assert result.returncode == 0
    assert not list(root.glob("**/*.partial"))
    with recording.open(root) as opened:
        (ledger,) = opened.ledger(free_stream_id)
    assert ledger.rows >= 5


def test_invalid_arguments_are_refused_before_recording(ctx: tp.Context, root: Path) -> None:
    invalid: list[dict[str, Any]] = [
        {"streams": []},
        {"streams": [1], "buffer": "many"},
        {"streams": [1], "pre_trigger": 0},
        {"streams": [1], "frames": 0},
        {"streams": [1], "aeron_dir": "x"},
    ]
    for arguments in invalid:
        with pytest.raises(tp.ConfigError):
            tp.record(root, context=ctx, **arguments)
    assert not root.exists()


def test_call_during_close_gets_its_result(ctx: tp.Context, root: Path, camera: tp.Producer) -> None:
    recorder = start_recorder(ctx, root, camera)
    agent, calls = recorder._agent, recorder._agent._calls
    closer = threading.Thread(target=recorder.close)

    def put(function: Callable[[], None]) -> None:
        """Starts to close between the check for a closed recorder and the call."""
        closer.start()
        closer.join(1.0)
        calls.put(function)

    agent._calls = SimpleNamespace(put=put, get_nowait=calls.get_nowait)
    assert agent.call(agent.ledgers, timeout=DEADLINE_S) == agent.ledgers()
    closer.join(DEADLINE_S)
    with pytest.raises(tp.ClosedError):
        agent.call(agent.ledgers)
