"""A recorder that is steered: triggers, marks, rotation, start and stop, by program and by service."""

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


def film(camera: tp.Producer, count: int, nbytes: int = 1000) -> int:
    for _ in range(count):
        camera.offer(pattern(camera.next_seq, nbytes))
    return camera.next_seq


def take(ctx: tp.Context, root: Path, camera: tp.Producer, **options: Any) -> Any:
    usual = {"buffer": "4MiB", "keep_free": 0, "streams": [camera.stream_id]}
    recorder: Any = ctx.record(root, **{**usual, **options})
    # The first frame of a test is recorded: who asks for an account needs to know where it begins.
    consumer = recorder._agent._lanes._consumers[camera.stream_id]
    deadline = time.monotonic() + DEADLINE_S
    while not (consumer.is_connected and consumer.epoch):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return recorder


def taken(recorder: Any, camera: tp.Producer) -> int:
    """How many frames the native loop has accounted for, written or not."""
    counts = recorder._agent._native.stats()["streams"][camera.stream_id]
    return int(counts["rows"] + counts["lost"])


def seqs(root: Path, stream_id: int) -> list[int]:
    with recording.open(root) as found:
        for frame in found.frames(stream_id):
            assert np.array_equal(frame.payload, pattern(frame.seq, frame.nbytes))
        return [frame.seq for frame in found.frames(stream_id)]


def test_all_that_a_frame_is_comes_back(ctx: tp.Context, root: Path, free_stream_id: int, until) -> None:
    with ctx.producer(
        free_stream_id, pools=["64KiB"], nslots=64, traces=True, publish_timestamps=True, name="cam"
    ) as camera:
        with take(ctx, root, camera) as recorder:
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
                # One parent is told by the trace id itself.
                camera.offer(sent[0], parents=[viewer.receive(60), viewer.receive(60)])
                sent += [sent[0]] * 3
            until(lambda: recorder.stats().rows == len(sent))
            until(lambda: "TraceLinkSet" in recording.open(root).table("metadata").column("kind").to_pylist())
        with recording.open(root) as found:
            frames = list(found.frames(free_stream_id))
            assert len(frames) == len(sent)
            for frame, array in zip(frames, sent, strict=True):
                assert frame.array.dtype == array.dtype
                assert np.array_equal(frame.array, array)
                assert frame.trace_id
                assert frame.publish_timestamp_ns
                assert frame.meta_version == camera.meta_version
            kinds = found.table("metadata").column("kind").to_pylist()
            assert {"DataSourceAnnounce", "DataSourceMeta", "TraceLinkSet"} <= {*kinds}


def test_metadata_and_qos_are_beside_the_frames(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera) as recorder:
        film(camera, 10)
        camera.set_metadata({"serial": "B2"})
        film(camera, 10)

        def tables() -> bool:
            with recording.open(root) as found:
                said = b"".join(found.table("metadata").column("message").to_pylist())
                return b"B2" in said and found.table("qos").num_rows > 1

        until(lambda: recorder.stats().rows == 20)
        until(tables)


def test_so_many_frames_and_no_more(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera, frames=25) as recorder:
        film(camera, 60)
        until(lambda: recorder.is_finished)
    assert seqs(root, camera.stream_id) == [*range(25)]
    (ledger,) = recorder.ledger()
    assert (ledger.span, ledger.rows) == (25, 25)


def test_a_trigger_writes_the_past_too(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera, pre_trigger="60s") as recorder:
        film(camera, 50)
        until(lambda: recorder.stats().state == "armed")
        until(lambda: recorder.stats().backlog_bytes > 0)
        assert recorder.stats().rows == 0
        # Polled already, or still on its way: the trigger writes what the loop has.
        until(lambda: taken(recorder, camera) == 50)
        recorder.trigger()
        film(camera, 10)
        until(lambda: recorder.stats().rows == 60)
    assert seqs(root, camera.stream_id) == [*range(60)]


def test_between_two_triggers_is_a_gap_and_before_the_first_is_none(
    ctx: tp.Context, root: Path, camera, until
) -> None:
    with take(ctx, root, camera, pre_trigger="200ms") as recorder:
        film(camera, 20)
        until(lambda: taken(recorder, camera) == 20)
        until(lambda: recorder.stats().seconds > 2)
        recorder.trigger(0.5)
        film(camera, 20)
        until(lambda: recorder.stats().rows == 20)
        until(lambda: recorder.stats().state == "armed")
        film(camera, 20)
        until(lambda: taken(recorder, camera) == 60)
        begun = recorder.stats().seconds
        until(lambda: recorder.stats().seconds > begun + 1)
        recorder.trigger()
        film(camera, 5)
        until(lambda: recorder.stats().rows == 25)
    (ledger,) = recorder.ledger()
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (20, 25, {"not_triggered": 20})
    assert seqs(root, camera.stream_id) == [*range(20, 40), *range(60, 65)]
    with recording.open(root) as found:
        assert found.ledger(camera.stream_id) == [ledger]


def test_the_past_never_takes_all_memory(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera, pre_trigger="1h", buffer="2MiB") as recorder:
        for _ in range(100):
            end = film(camera, 10, nbytes=10_000)
            until(lambda end=end: taken(recorder, camera) == end)
        recorder.trigger()
        until(lambda: recorder.stats().backlog_bytes == 0)
    (ledger,) = recorder.ledger()
    assert ledger.balanced
    assert ledger.last_seq == 999
    assert 0 < ledger.rows <= 200, "10 MB were filmed, and 2 MiB are kept at most"
    assert len(seqs(root, camera.stream_id)) == ledger.rows


def test_it_is_stopped_and_started_and_the_account_goes_on(
    ctx: tp.Context, root: Path, camera, until
) -> None:
    with take(ctx, root, camera) as recorder:
        film(camera, 10)
        until(lambda: recorder.stats().rows == 10)
        recorder.stop()
        assert recorder.stats().state == "stopped"
        assert not list(root.glob("stream=*/epoch=*/*.partial"))
        film(camera, 7)
        recorder.start()
        consumer = recorder._agent._lanes._consumers[camera.stream_id]
        until(lambda: consumer.is_connected and consumer.epoch is not None)
        film(camera, 10)
        until(lambda: recorder.ledger()[0].last_seq == 26)
    (ledger,) = recorder.ledger()
    # A reader that comes back soon may find what was published meanwhile.
    assert 20 <= ledger.rows <= 27
    assert ledger.balanced
    assert ledger.gaps.keys() <= {"not_recording", "unmapped"}
    with recording.open(root) as found:
        assert found.ledger(camera.stream_id) == [ledger]


def test_segments_rotate_and_the_oldest_go(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera, rotate_bytes=100_000, retain_bytes=400_000) as recorder:
        for _ in range(10):
            end = film(camera, 100)
            until(lambda end=end: recorder.stats().rows == end)
            recorder.rotate()

        def is_small() -> bool:
            files = root.glob("stream=*/epoch=*/*.arrows")
            return sum(path.stat().st_size for path in files) <= 400_000

        until(is_small)
    found = seqs(root, camera.stream_id)
    assert found[-1] == 999
    assert found == [*range(found[0], 1000)]
    assert recorder.ledger()[0].rows == 1000


def test_one_recorder_a_stream(ctx: tp.Context, root: Path, camera) -> None:
    with take(ctx, root, camera):
        with pytest.raises(tp.LockHeld):
            ctx.record(root, streams=[camera.stream_id], buffer="1MiB")
        with ctx.record(root.with_name("another"), streams=[camera.stream_id], buffer="1MiB"):
            pass


def test_all_streams_are_found_as_they_are_announced(
    ctx: tp.Context, root: Path, free_stream_ids: Callable[[], int], until
) -> None:
    with ctx.record(root, buffer="4MiB", keep_free=0) as recorder:
        cameras = [ctx.producer(free_stream_ids(), pools=["64KiB"], nslots=64) for _ in range(2)]
        until(lambda: recorder.stats().streams == tuple(sorted(one.stream_id for one in cameras)))
        for one in cameras:
            assert one.wait_for_consumer(DEADLINE_S)
            film(one, 10)
        until(lambda: recorder.stats().rows == 20)
        for one in cameras:
            one.close()
    for one in cameras:
        assert seqs(root, one.stream_id) == [*range(10)]


def test_it_is_steered_as_a_service(ctx: tp.Context, root: Path, camera, until) -> None:
    with take(ctx, root, camera, instance="lab") as recorder, ctx.service("recorder", instance="lab") as lab:
        film(camera, 10)
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
        for wrong in ({"label": 5}, {"label": ""}, {"label": "x", "stream_id": "y"}):
            with pytest.raises(tp.CommandFailed):
                lab.call("mark", wrong)
        with pytest.raises(tp.CommandFailed):
            lab.call("trigger", {"seconds": -1})
        lab.call("trigger")
        assert recorder.stats().state == "recording"
    with recording.open(root) as found:
        assert found.table("marks").column("label").to_pylist() == ["half"]


def test_a_full_disk_is_told_to_whoever_listens(
    ctx: tp.Context, root: Path, camera, until, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    enough = threading.Event()

    def listen(lab: Any) -> None:
        for event in lab.watch("state", timeout=DEADLINE_S):
            told.append(event.value)
            if enough.is_set():
                return

    with ctx.service("recorder") as ear:
        thread = threading.Thread(target=listen, args=(ear,))
        with take(ctx, root, camera), ctx.service("recorder") as lab:
            thread.start()
            # What it answers to one is heard by all: by then it listens.
            until(lambda: lab.get("state") == "recording" and told)
            room = os.statvfs(root)
            with monkeypatch.context() as full:
                full.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=room.f_frsize))
                until(lambda: told[-1] == "disk_full")
                assert "left" in str(lab.get("problem"))
            until(lambda: told[-1] == "recording")
            assert lab.get("problem") == ""
            film(camera, 5)
            until(lambda: lab.get("rows") == 5)
            enough.set()
            # The last that it hears.
            lab.get("state")
            thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_context_that_is_closed_first_takes_nothing_away(
    aeron_dir: Path, shm_base: Path, root: Path, free_stream_id: int, until
) -> None:
    context = tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base)
    camera = context.producer(free_stream_id, pools=["64KiB"], nslots=256)
    recorder = take(context, root, camera)
    film(camera, 10)
    until(lambda: recorder.stats().rows == 10)
    context.close()
    recorder.close()
    assert seqs(root, free_stream_id) == [*range(10)]
    assert not list(root.glob("**/*.partial"))


def test_a_program_that_forgets_to_close_leaves_a_sealed_recording(
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
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=DEADLINE_S)
    assert done.returncode == 0
    assert not list(root.glob("**/*.partial"))
    with recording.open(root) as found:
        (ledger,) = found.ledger(free_stream_id)
    assert ledger.rows >= 5


def test_what_cannot_be_is_said_before_anything_begins(ctx: tp.Context, root: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"streams": []},
        {"streams": [1], "buffer": "many"},
        {"streams": [1], "pre_trigger": 0},
        {"streams": [1], "frames": 0},
        {"streams": [1], "aeron_dir": "x"},
    ]
    for one in wrong:
        with pytest.raises(tp.ConfigError):
            tp.record(root, context=ctx, **one)
    assert not root.exists()


def test_what_is_asked_while_it_ends_is_answered(ctx: tp.Context, root: Path, camera: tp.Producer) -> None:
    recorder = take(ctx, root, camera)
    agent, asked = recorder._agent, recorder._agent._asked
    end = threading.Thread(target=recorder.close)

    def put(question: Callable[[], None]) -> None:
        """The end comes right between the look at whether it has come and the question."""
        end.start()
        end.join(1.0)
        asked.put(question)

    agent._asked = SimpleNamespace(put=put, get_nowait=asked.get_nowait)
    assert agent.ask(agent.ledgers, timeout=DEADLINE_S) == agent.ledgers()
    end.join(DEADLINE_S)
    with pytest.raises(tp.ClosedError):
        agent.ask(agent.ledgers)
