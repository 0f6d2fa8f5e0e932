"""Epochs only grow, and what dead owners left is removed (wire §15.21a.7)."""

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
    """The number of a process that has ended and been waited for."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def leave(make_epoch):
    """Makes an epoch as an owner with this pid and this last activity would have left it."""

    def leave(epoch: int, *, pid: int, activity_ns: int) -> Path:
        made = make_epoch(epoch=epoch)
        for path in made.files():
            with path.open("r+b") as file:
                for name, value in (("pid", pid), ("activity_timestamp_ns", activity_ns)):
                    file.seek(OFFSETS[name])
                    file.write(value.to_bytes(8, "little"))
        return made.directory

    return leave


def test_a_new_epoch_is_the_time_of_day_and_larger_than_the_last(tmp_path) -> None:
    before = time.time_ns()
    mark = EpochMark(tmp_path / "mark")
    first, second = mark.next(), mark.next()
    assert before <= first < second
    assert EpochMark(tmp_path / "mark").last() == second


def test_epochs_grow_though_the_clock_was_set_back(tmp_path) -> None:
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 1_000).next() == 1_000
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 5).next() == 1_001
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 0).next() == 1_002
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 2_000).next() == 2_000


def test_an_unreadable_mark_does_not_stop_a_producer(tmp_path) -> None:
    (tmp_path / "mark").write_text("not a number")
    assert EpochMark(tmp_path / "mark", wall_clock_ns=lambda: 9).next() == 9
    assert [path.name for path in tmp_path.glob("mark*")] == ["mark"]


@pytest.mark.requirement("wire-15.21a.7-1")
def test_only_what_is_silent_and_dead_is_removed(leave, dead_pid) -> None:
    now = time.monotonic_ns()
    gone = leave(1, pid=dead_pid, activity_ns=0)
    alive = leave(2, pid=os.getpid(), activity_ns=0)
    active = leave(3, pid=dead_pid, activity_ns=now)
    assert remove_leftovers(gone.parent, stale_after_ns=HOUR_NS if now > HOUR_NS else now // 2) == [1]
    assert (gone.exists(), alive.exists(), active.exists()) == (False, True, True)


@pytest.mark.requirement("wire-15.21a.7-1")
def test_activity_from_before_a_reboot_counts_as_silence(leave, dead_pid) -> None:
    # The monotonic clock starts again at every boot: a time from the future is from another one.
    gone = leave(1, pid=dead_pid, activity_ns=time.monotonic_ns() + HOUR_NS)
    assert remove_leftovers(gone.parent, stale_after_ns=1) == [1]


def test_what_does_not_look_like_an_epoch_is_never_touched(leave, dead_pid) -> None:
    stream = leave(1, pid=dead_pid, activity_ns=0).parent
    (stream / "notes").mkdir()
    (stream / "7").symlink_to(stream / "1")
    (stream / "2").mkdir()
    (stream / "2" / "mine.txt").touch()
    os.utime(stream / "2", (0, 0))
    assert remove_leftovers(stream, stale_after_ns=1) == [1]
    assert sorted(path.name for path in stream.iterdir()) == ["2", "7", "notes"]


def test_an_epoch_cut_off_in_the_making_is_removed_once_it_is_old(make_epoch) -> None:
    made = make_epoch()
    made.header.unlink()
    stream = made.directory.parent
    assert remove_leftovers(stream, stale_after_ns=HOUR_NS) == []
    os.utime(made.directory, (0, 0))
    assert remove_leftovers(stream, stale_after_ns=HOUR_NS) == [77]


def test_a_stream_that_never_was_has_no_leftovers(tmp_path) -> None:
    assert remove_leftovers(tmp_path / "none", stale_after_ns=1) == []
