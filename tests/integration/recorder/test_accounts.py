"""Every sequence is a row or in a gap, whoever dies and however slow the disk is."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool import recording

from .conftest import Studio

LONG = os.environ.get("TENSORPOOL_TEST_LONG") == "1"


def test_what_is_filmed_is_what_is_recorded(studio: Studio) -> None:
    studio.open()
    taper = studio.taper()
    camera = studio.camera()
    written = camera.call("offer", count=500, per_second=1000)
    account = studio.has_all(taper, camera)
    taper.call("mark", label="done")
    (closed,) = taper.call("close")
    (ledger,) = studio.check()
    assert (ledger.epoch, ledger.span) == (written["epoch"], 500)
    assert ledger.rows == closed["rows"] == account["rows"]
    assert closed["balanced"]
    with recording.open(studio.root) as found:
        assert found.table("marks").column("label").to_pylist() == ["done"]
        assert found.table("anchors").num_rows >= 1
        assert {*found.table("announces").column("epoch").to_pylist()} >= {written["epoch"]}


def test_several_streams_have_an_account_each(studio: Studio, free_stream_ids) -> None:
    studio.open()
    streams = [free_stream_ids() for _ in range(3)]
    taper = studio.taper(*streams)
    cameras = [studio.camera(stream, nbytes=1000 * n) for n, stream in enumerate(streams, 1)]
    for camera in cameras:
        camera.call("offer_always", per_second=200)
    studio.has_rows(taper, 300)
    ends = [camera.call("stop") for camera in cameras]
    for camera in cameras:
        studio.has_all(taper, camera)
    taper.call("close")
    for stream, end in zip(streams, ends, strict=True):
        (ledger,) = studio.check(stream)
        assert (ledger.epoch, ledger.last_seq) == (end["epoch"], end["next_seq"] - 1)


def test_a_disk_that_is_too_slow_loses_frames_and_counts_every_one(studio: Studio) -> None:
    studio.open()
    taper = studio.taper(slow=4e6, buffer="2MiB")
    camera = studio.camera(nbytes=40_000)
    camera.call("offer_always", per_second=1000)

    def is_behind() -> bool:
        return taper.call("stats")["gaps"].get("recorder_backlog", 0) > 100

    studio.until(is_behind)
    written = camera.call("stop")
    account = studio.has_all(taper, camera)
    assert account["gaps"]["recorder_backlog"] > 100
    taper.call("close")
    (ledger,) = studio.check()
    assert ledger.last_seq == written["next_seq"] - 1
    assert ledger.rows + sum(ledger.gaps.values()) == written["next_seq"] - ledger.first_seq
    assert ledger.rows == account["rows"]
    seen = taper.call("ledger")[0]
    assert seen["gaps"] == ledger.gaps


@pytest.mark.leaves_files("recorders are killed")
def test_a_recorder_that_is_killed_goes_on_where_it_was(studio: Studio) -> None:
    studio.open()
    camera = studio.camera(nbytes=20_000)
    camera.call("offer_always", per_second=400)
    kept = 0
    for _ in range(10 if LONG else 3):
        taper = studio.taper(rotate_time=0.3)
        studio.has_rows(taper, random.randrange(1, 200))
        taper.kill()
        with recording.open(studio.root) as found:
            rows = sum(one.rows for one in found.ledger(studio.stream_id))
        assert rows >= kept, "what was there stays there"
        kept = rows
    taper = studio.taper()
    studio.has_rows(taper, 100)
    camera.call("stop")
    studio.has_all(taper, camera)
    taper.call("close")
    (ledger,) = studio.check()
    assert ledger.rows >= kept + 100
    assert ledger.gaps.keys() <= {"not_recording", "late", "gap", "resync", "rested", "paused"}


@pytest.mark.leaves_files("producers are killed")
def test_producers_that_die_and_come_back_begin_an_epoch_each(studio: Studio) -> None:
    studio.open()
    taper = studio.taper()
    epochs, seen = [], 0
    for _ in range(3):
        camera = studio.camera()
        epochs.append(camera.call("written")["epoch"])
        camera.call("offer_always", per_second=500)
        seen += 100
        studio.has_rows(taper, seen)
        camera.kill()
        seen = taper.call("stats")["rows"]
    last = studio.camera()
    epochs.append(last.call("offer", count=100, per_second=1000)["epoch"])
    studio.has_all(taper, last)
    taper.call("close")
    ledgers = studio.check()
    assert [one.epoch for one in ledgers] == epochs
    assert [one.first_seq for one in ledgers] == [0] * 4, "each from its first frame on"


@pytest.mark.leaves_files("the driver is killed")
def test_a_driver_that_is_killed_and_started_again_costs_an_epoch(studio: Studio) -> None:
    service = studio.open()
    taper = studio.taper()
    camera = studio.camera()
    camera.call("offer_always", per_second=300)
    studio.has_rows(taper, 100)
    before = camera.call("written")["epoch"]
    service.kill()
    studio.service()
    studio.until(lambda: camera.call("written")["epoch"] not in (None, before))
    rows = taper.call("stats")["rows"]
    studio.has_rows(taper, rows + 100)
    camera.call("stop")
    taper.call("close")
    ledgers = studio.check()
    assert len(ledgers) >= 2
    assert ledgers[0].epoch == before


def test_a_ring_that_is_too_small_gives_no_torn_frame(studio: Studio) -> None:
    """The writer comes round all the time: what was copied meanwhile is late, and never recorded."""
    studio.open()
    taper = studio.taper(buffer="64MiB")
    camera = studio.camera(nbytes=60_000, nslots=2)
    camera.call("offer_always", per_second=0)
    studio.has_rows(taper, 2000)
    camera.call("stop")
    studio.has_all(taper, camera)
    taper.call("close")
    (ledger,) = studio.check()
    print(ledger)


def test_a_forked_child_is_told_so_and_the_parent_records_on(studio: Studio) -> None:
    studio.open()
    taper = studio.taper()
    camera = studio.camera()
    camera.call("offer_always", per_second=300)
    studio.has_rows(taper, 50)
    assert taper.call("fork") == 0
    studio.has_rows(taper, taper.call("stats")["rows"] + 50)
    camera.call("stop")
    studio.has_all(taper, camera)
    taper.call("close")
    studio.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 32 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here (it takes root): {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("keep_free", ["0", "2MiB"])
def test_a_full_disk_stops_the_recording_until_there_is_room(
    studio: Studio, small_disk: Path, keep_free: str
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(20 << 20))
    studio.root = small_disk / "recording"
    studio.open()
    taper = studio.taper(buffer="2MiB", keep_free=keep_free)
    camera = studio.camera(nbytes=40_000)
    camera.call("offer_always", per_second=500)
    studio.until(lambda: taper.call("stats")["state"] == "disk_full")
    full = taper.call("stats")
    assert full["problem"]
    studio.until(lambda: taper.call("stats")["state"] == "disk_full")
    # Long enough for the buffer of 2 MiB to be full as well, after 50 frames and what was in it.
    before = camera.call("written")["next_seq"]
    studio.until(lambda: camera.call("written")["next_seq"] > before + 200)
    filler.unlink()
    studio.until(lambda: taper.call("stats")["gaps"].get("disk_full", 0) > 0)
    camera.call("stop")
    studio.has_all(taper, camera)
    (closed,) = taper.call("close")
    (ledger,) = studio.check()
    assert ledger.gaps["disk_full"] > 0
    assert ledger.gaps == closed["gaps"]
    assert ledger.rows == closed["rows"] > full["rows"]
