"""Epoch marks, and removal of epochs of dead owners (wire §15.21a.7)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorpool.sbe import ShmRegionSuperblock
from tensorpool.shm import EpochMark, remove_leftovers

HOUR_NS = 3_600_000_000_000
OFFSETS = {field.python_name: field.offset for field in ShmRegionSuperblock.layout().encoded_fields}


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended and been reaped."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def make_leftover(make_epoch):
    """Creates an epoch with this owner and this activity timestamp."""

    def make(number: int, *, pid: int, activity_ns: int) -> Path:
        epoch = make_epoch(epoch=number)
        for path in epoch.files():
            with path.open("r+b") as file:
                for name, value in (("pid", pid), ("activity_timestamp_ns", activity_ns)):
                    file.seek(OFFSETS[name])
                    file.write(value.to_bytes(8, "little"))
        return epoch.directory

    return make


def test_new_epoch_is_the_time_and_larger_than_the_last(tmp_path) -> None:
    before = time.time_ns()
    mark = EpochMark(tmp_path / "mark")
    first, second = mark.next(), mark.next()
    assert before <= first < second
    assert EpochMark(tmp_path / "mark").last() == second


def test_epochs_grow_after_the_clock_was_set_back(tmp_path) -> None:
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 1_000).next() == 1_000
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 5).next() == 1_001
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 0).next() == 1_002
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 2_000).next() == 2_000


def test_unreadable_epoch_mark_does_not_stop_a_producer(tmp_path) -> None:
    (tmp_path / "mark").write_text("not a number")
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 9).next() == 9
    assert [path.name for path in tmp_path.glob("mark*")] == ["mark"]


@pytest.mark.requirement("wire-15.21a.7-1")
def test_leftovers_need_stale_activity_and_a_dead_owner(make_leftover, dead_pid) -> None:
    now = time.monotonic_ns()
    gone = make_leftover(1, pid=dead_pid, activity_ns=0)
    alive = make_leftover(2, pid=os.getpid(), activity_ns=0)
    active = make_leftover(3, pid=dead_pid, activity_ns=now)
    assert remove_leftovers(gone.parent, stale_after_ns=HOUR_NS if now > HOUR_NS else now // 2) == [1]
    assert (gone.exists(), alive.exists(), active.exists()) == (False, True, True)


@pytest.mark.requirement("wire-15.21a.7-1")
def test_activity_from_before_a_reboot_is_stale(make_leftover, dead_pid) -> None:
    # The monotonic clock restarts at every boot: a timestamp in the future is from another boot.
    gone = make_leftover(1, pid=dead_pid, activity_ns=time.monotonic_ns() + HOUR_NS)
    assert remove_leftovers(gone.parent, stale_after_ns=1) == [1]


def test_removal_leaves_other_files_and_directories(make_leftover, dead_pid) -> None:
    stream = make_leftover(1, pid=dead_pid, activity_ns=0).parent
    (stream / "notes").mkdir()
    (stream / "7").symlink_to(stream / "1")
    (stream / "2").mkdir()
    (stream / "2" / "mine.txt").touch()
    os.utime(stream / "2", (0, 0))
    assert remove_leftovers(stream, stale_after_ns=1) == [1]
    assert sorted(path.name for path in stream.iterdir()) == ["2", "7", "notes"]


def test_half_created_epoch_is_removed_once_it_is_old(make_epoch) -> None:
    epoch = make_epoch()
    epoch.header.unlink()
    stream = epoch.directory.parent
    assert remove_leftovers(stream, stale_after_ns=HOUR_NS) == []
    os.utime(epoch.directory, (0, 0))
    assert remove_leftovers(stream, stale_after_ns=HOUR_NS) == [77]


def test_missing_stream_directory_has_no_leftovers(tmp_path) -> None:
    assert remove_leftovers(tmp_path / "none", stale_after_ns=1) == []
