"""Ledgers of recordings balance after process deaths, on slow disks and on full disks."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool import recording

from .conftest import RecorderDeployment

LONG = os.environ.get("TENSORPOOL_TEST_LONG") == "1"


def test_recording_contains_every_offered_frame(deployment: RecorderDeployment) -> None:
    deployment.open()
    recorder = deployment.recorder()
    camera = deployment.camera()
    written = camera.call("offer", count=500, per_second=1000)
    last = deployment.wait_for_all(recorder, camera)
    recorder.call("mark", label="done")
    (closed,) = recorder.call("close")
    (ledger,) = deployment.check()
    assert (ledger.epoch, ledger.span) == (written["epoch"], 500)
    assert ledger.rows == closed["rows"] == last["rows"]
    assert closed["balanced"]
    with recording.open(deployment.root) as opened:
        assert opened.table("marks").column("label").to_pylist() == ["done"]
        assert opened.table("anchors").num_rows >= 1
        assert {*opened.table("announces").column("epoch").to_pylist()} >= {written["epoch"]}


def test_each_stream_has_its_own_ledger(deployment: RecorderDeployment, free_stream_ids) -> None:
    deployment.open()
    streams = [free_stream_ids() for _ in range(3)]
    recorder = deployment.recorder(*streams)
    cameras = [deployment.camera(stream, nbytes=1000 * n) for n, stream in enumerate(streams, 1)]
    for camera in cameras:
        camera.call("offer_always", per_second=200)
    deployment.wait_for_rows(recorder, 300)
    ends = [camera.call("stop") for camera in cameras]
    for camera in cameras:
        deployment.wait_for_all(recorder, camera)
    recorder.call("close")
    for stream, end in zip(streams, ends, strict=True):
        (ledger,) = deployment.check(stream)
        assert (ledger.epoch, ledger.last_seq) == (end["epoch"], end["next_seq"] - 1)


def test_slow_disk_drops_are_all_counted(deployment: RecorderDeployment) -> None:
    deployment.open()
    recorder = deployment.recorder(disk_bytes_per_s=1e6, buffer="2MiB")
    camera = deployment.camera(nbytes=40_000)
    camera.call("offer_always", per_second=1000)

    def is_behind() -> bool:
        return recorder.call("stats")["gaps"].get("recorder_backlog", 0) > 100

    deployment.until(is_behind)
    written = camera.call("stop")
    last = deployment.wait_for_all(recorder, camera)
    assert last["gaps"]["recorder_backlog"] > 100
    recorder.call("close")
    (ledger,) = deployment.check()
    assert ledger.last_seq == written["next_seq"] - 1
    assert ledger.rows + sum(ledger.gaps.values()) == written["next_seq"] - ledger.first_seq
    assert ledger.rows == last["rows"]
    assert recorder.call("ledger")[0]["gaps"] == ledger.gaps


@pytest.mark.leaves_files("recorder_fork_server are killed")
def test_killed_recorder_continues_where_it_ended(deployment: RecorderDeployment) -> None:
    deployment.open()
    camera = deployment.camera(nbytes=20_000)
    camera.call("offer_always", per_second=400)
    kept = 0
    for _ in range(10 if LONG else 3):
        recorder = deployment.recorder(rotate_time=0.3)
        deployment.wait_for_rows(recorder, random.randrange(1, 200))
        recorder.kill()
        with recording.open(deployment.root) as opened:
            rows = sum(ledger.rows for ledger in opened.ledger(deployment.stream_id))
        assert rows >= kept, "recorded rows stay readable"
        kept = rows
    recorder = deployment.recorder()
    deployment.wait_for_rows(recorder, 100)
    camera.call("stop")
    deployment.wait_for_all(recorder, camera)
    recorder.call("close")
    (ledger,) = deployment.check()
    assert ledger.rows >= kept + 100
    assert ledger.gaps.keys() <= {"not_recording", "late", "gap", "resync", "rested", "paused"}


@pytest.mark.leaves_files("recorder_fork_server are killed")
def test_late_joiner_is_not_charged_for_frames_from_before(deployment: RecorderDeployment) -> None:
    nslots, before = 64, 600
    deployment.open()
    dead = deployment.recorder()
    camera = deployment.camera(nslots=nslots)
    deployment.until(lambda: dead.call("is_mapped", stream_id=deployment.stream_id))
    camera.call("offer", count=10)
    deployment.until(lambda: dead.call("stats")["rows"] > 0)
    # Aeron keeps the position of the dead reader for a while, and lets the next one begin there.
    dead.kill()
    camera.call("offer", count=before - 10)
    deployment.root = deployment.root.with_name("second")
    recorder = deployment.recorder()
    deployment.until(lambda: recorder.call("is_mapped", stream_id=deployment.stream_id))
    camera.call("offer", count=5, per_second=100)
    deployment.wait_for_all(recorder, camera)
    consumer = recorder.call("consumer_ledger", stream_id=deployment.stream_id)
    recorder.call("close")
    (ledger,) = deployment.check()
    assert ledger.first_seq >= before - nslots
    assert ledger.span == before + 5 - ledger.first_seq
    assert consumer["span"] == ledger.span
    assert consumer["dropped"]["resync"] <= nslots


@pytest.mark.leaves_files("producers are killed")
def test_restarted_producers_get_an_epoch_each(deployment: RecorderDeployment) -> None:
    deployment.open()
    recorder = deployment.recorder()
    epochs, seen = [], 0
    for _ in range(3):
        camera = deployment.camera()
        epochs.append(camera.call("written")["epoch"])
        camera.call("offer_always", per_second=500)
        seen += 100
        deployment.wait_for_rows(recorder, seen)
        camera.kill()
        seen = recorder.call("stats")["rows"]
    last = deployment.camera()
    epochs.append(last.call("offer", count=100, per_second=1000)["epoch"])
    deployment.wait_for_all(recorder, last)
    recorder.call("close")
    ledgers = deployment.check()
    assert [ledger.epoch for ledger in ledgers] == epochs
    assert [ledger.first_seq for ledger in ledgers] == [0] * 4, "each epoch is recorded from its first frame"


@pytest.mark.leaves_files("the driver is killed")
def test_driver_restart_begins_a_new_epoch(deployment: RecorderDeployment) -> None:
    service = deployment.open()
    recorder = deployment.recorder()
    camera = deployment.camera()
    camera.call("offer_always", per_second=300)
    deployment.wait_for_rows(recorder, 100)
    before = camera.call("written")["epoch"]
    service.kill()
    deployment.service()
    deployment.until(lambda: camera.call("written")["epoch"] not in (None, before))
    rows = recorder.call("stats")["rows"]
    deployment.wait_for_rows(recorder, rows + 100)
    camera.call("stop")
    recorder.call("close")
    ledgers = deployment.check()
    assert len(ledgers) >= 2
    assert ledgers[0].epoch == before


def test_small_ring_never_yields_a_torn_frame(deployment: RecorderDeployment) -> None:
    """The producer overwrites slots while they are copied: such a frame is late and never recorded."""
    deployment.open()
    recorder = deployment.recorder(buffer="64MiB")
    camera = deployment.camera(nbytes=60_000, nslots=2)
    camera.call("offer_always", per_second=0)
    deployment.wait_for_rows(recorder, 2000)
    camera.call("stop")
    deployment.wait_for_all(recorder, camera)
    recorder.call("close")
    (ledger,) = deployment.check()
    assert ledger.balanced


def test_forked_child_is_refused_and_parent_continues(deployment: RecorderDeployment) -> None:
    deployment.open()
    recorder = deployment.recorder()
    camera = deployment.camera()
    camera.call("offer_always", per_second=300)
    deployment.wait_for_rows(recorder, 50)
    assert recorder.call("fork") == 0
    deployment.wait_for_rows(recorder, recorder.call("stats")["rows"] + 50)
    camera.call("stop")
    deployment.wait_for_all(recorder, camera)
    recorder.call("close")
    deployment.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 32 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", str(disk)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here (root is required): {result.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("keep_free", ["0", "2MiB"])
def test_full_disk_stops_writing_until_space_is_free(
    deployment: RecorderDeployment, small_disk: Path, keep_free: str
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(20 << 20))
    deployment.root = small_disk / "recording"
    deployment.open()
    recorder = deployment.recorder(buffer="2MiB", keep_free=keep_free)
    camera = deployment.camera(nbytes=40_000)
    camera.call("offer_always", per_second=500)
    deployment.until(lambda: recorder.call("stats")["state"] == "disk_full")
    full = recorder.call("stats")
    assert full["problem"]
    deployment.until(lambda: recorder.call("stats")["state"] == "disk_full")
    # 50 frames fill the buffer of 2 MiB.
    before = camera.call("written")["next_seq"]
    deployment.until(lambda: camera.call("written")["next_seq"] > before + 200)
    filler.unlink()
    deployment.until(lambda: recorder.call("stats")["gaps"].get("disk_full", 0) > 0)
    camera.call("stop")
    deployment.wait_for_all(recorder, camera)
    (closed,) = recorder.call("close")
    (ledger,) = deployment.check()
    assert ledger.gaps["disk_full"] > 0
    assert ledger.gaps == closed["gaps"]
    assert ledger.rows == closed["rows"] > full["rows"]
