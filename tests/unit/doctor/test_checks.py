"""Every verdict of the doctor, from facts that are made up."""

from __future__ import annotations

import os
import resource
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tensorpool import _native
from tensorpool.clock import SYSTEM_CLOCK, ManualClock
from tensorpool.doctor import Check, Status, run_checks, worst
from tensorpool.doctor.drivers import MediaDriverFacts, check_media_driver, check_shm_driver
from tensorpool.doctor.host import (
    DirectoryFacts,
    check_base,
    check_clock,
    check_files,
    check_java,
    check_mappings,
    check_memlock,
    check_state,
    check_system,
)
from tensorpool.doctor.memory import (
    ONE_STREAM_BYTES,
    Leftover,
    Space,
    check_hugepages,
    check_leftovers,
    check_space,
    find_leftovers,
)
from tensorpool.driver import Holder
from tensorpool.shm.epoch_files import Mount, user_name
from tensorpool.transport.media_driver import MarkFile

GIB = 1 << 30
SHM = Path("/dev/shm")
TMPFS = Mount(SHM, "tmpfs", frozenset({"rw"}))
HUGE = Mount(Path("/dev/hugepages"), "hugetlbfs", frozenset({"rw"}))


def speaks(check: Check, status: Status, words: str = "") -> None:
    """What is not well says what it means and what to do."""
    assert check.status is status, check
    assert words in f"{check.found} {check.meaning} {check.remedy}", check
    assert bool(check.meaning) == bool(check.remedy) == (status is not Status.OK), check


@pytest.mark.parametrize(
    ("free", "mount", "status", "words"),
    [
        (4 * GIB, TMPFS, Status.OK, "4.0 GiB free"),
        (4 * GIB, None, Status.OK, ""),
        (64 << 20, TMPFS, Status.WARN, "Room for 1 streams"),
        (ONE_STREAM_BYTES - 1, TMPFS, Status.FAIL, "--shm-size"),
        (4 * GIB, Mount(SHM, "ext4", frozenset({"rw"})), Status.WARN, "disk"),
        (4 * GIB, Mount(SHM, "tmpfs", frozenset({"ro"})), Status.FAIL, "read-only"),
    ],
)
def test_shared_memory(free: int, mount: Mount | None, status: Status, words: str) -> None:
    speaks(check_space(SHM, Space(8 * GIB, free), mount), status, words)


@pytest.mark.parametrize(
    ("meminfo", "mount", "wanted", "status"),
    [
        ("HugePages_Total:  0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n", TMPFS, False, Status.OK),
        ("HugePages_Total:  0\nHugePages_Free: 0\n", HUGE, True, Status.FAIL),
        ("HugePages_Total:  8\nHugePages_Free: 8\n", TMPFS, True, Status.FAIL),
        ("HugePages_Total:  8\nHugePages_Free: 0\n", HUGE, True, Status.WARN),
        ("HugePages_Total:  8\nHugePages_Free: 8\n", HUGE, True, Status.OK),
        ("", None, False, Status.OK),
    ],
)
def test_huge_pages(meminfo: str, mount: Mount | None, wanted: bool, status: Status) -> None:
    speaks(check_hugepages(meminfo, [TMPFS, HUGE], mount, wanted=wanted), status)


def test_leftovers_are_regions_of_dead_and_silent_owners(shm_base: Path) -> None:
    def make(stream_id: int) -> Path:
        directory, _, _ = _native.create_epoch(
            base=shm_base, user=user_name(), namespace="default", stream_id=stream_id, epoch=1, nslots=2,
            pools=[(1, 64)],
        )  # fmt: skip
        return Path(directory)

    alive, dead = make(1), make(2)
    with (dead / "header.ring").open("r+b") as file:
        file.seek(40)
        file.write(struct.pack("<Q", 1 << 23))
    later = ManualClock(monotonic_ns=SYSTEM_CLOCK.monotonic_ns() + 4_000_000_000)
    try:
        assert find_leftovers(shm_base) == []
        found = find_leftovers(shm_base, clock=later)
        assert found == [Leftover(dead, 1 << 23, 64 + 2 * 256 + 64 + 2 * 64)]
    finally:
        _native.remove_epoch(alive)
        _native.remove_epoch(dead)
        for directory in (alive.parent, dead.parent, alive.parent.parent, alive.parent.parent.parent):
            directory.rmdir()
    speaks(check_leftovers([]), Status.OK)
    speaks(check_leftovers(found), Status.WARN, "1 epoch of dead processes")


@pytest.mark.parametrize(
    ("limit", "wanted", "status"),
    [
        (resource.RLIM_INFINITY, True, Status.OK),
        (8 << 20, False, Status.OK),
        (8 << 20, True, Status.FAIL),
        (GIB, True, Status.WARN),
    ],
)
def test_locked_memory(limit: int, wanted: bool, status: Status) -> None:
    speaks(check_memlock(limit, wanted=wanted), status)


@pytest.mark.parametrize(
    ("soft", "hard", "status", "words"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, Status.OK, ""),
        (1024, 4096, Status.OK, ""),
        (512, resource.RLIM_INFINITY, Status.WARN, "ulimit -n 4096"),
        (64, 1000, Status.FAIL, "ulimit -n 1000"),
    ],
)
def test_open_files(soft: int, hard: int, status: Status, words: str) -> None:
    speaks(check_files(soft, hard), status, words)


def test_mappings() -> None:
    speaks(check_mappings(None), Status.OK)
    speaks(check_mappings(65_530), Status.OK)
    speaks(check_mappings(1000), Status.WARN, "vm.max_map_count")


BASE = DirectoryFacts(SHM, SHM, uid=0, mode=0o1777, is_writable=True)
OWN = DirectoryFacts(SHM / "tensorpool-me", SHM / "tensorpool-me", uid=7, mode=0o700, is_writable=True)
MISSING = replace(OWN, there=SHM, uid=0, mode=0o1777)


@pytest.mark.parametrize(
    ("base", "own", "status", "words"),
    [
        (BASE, OWN, Status.OK, "0700"),
        (BASE, MISSING, Status.OK, "1777"),
        (BASE, replace(OWN, uid=8), Status.FAIL, "Another user"),
        (replace(BASE, is_writable=False), MISSING, Status.FAIL, "No region can be made"),
        (replace(BASE, mode=0o777), OWN, Status.WARN, "chmod +t"),
        (BASE, replace(OWN, mode=0o770), Status.WARN, "chmod go-w"),
    ],
)
def test_base_directory(base: DirectoryFacts, own: DirectoryFacts, status: Status, words: str) -> None:
    speaks(check_base(base, own, me=7), status, words)


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        (OWN, Status.OK, ""),
        (replace(OWN, is_writable=False), Status.FAIL, "XDG_STATE_HOME"),
        (replace(OWN, uid=8), Status.WARN, "another user"),
        (replace(OWN, mode=0o777), Status.WARN, "chmod go-w"),
    ],
)
def test_state_directory(state: DirectoryFacts, status: Status, words: str) -> None:
    speaks(check_state(state, me=7), status, words)


def test_a_place_that_is_missing_is_judged_by_what_is_above_it(tmp_path: Path) -> None:
    place = DirectoryFacts.of(tmp_path / "a" / "b")
    assert (place.exists, place.there, place.is_writable) == (False, tmp_path, True)
    assert "not there yet" in place.words()


@pytest.fixture
def mark(tmp_path: Path) -> MarkFile:
    path = tmp_path / "cnc.dat"
    path.touch(0o600)
    return MarkFile(
        path=path, pid=os.getpid(), started_ms=0, client_liveness_timeout_ns=1, owner_uid=os.getuid(),
        mode=0o700, heartbeat_ms=1,
    )  # fmt: skip


def test_media_driver_that_is_not_there_or_dead(mark: MarkFile) -> None:
    (none,) = check_media_driver(MediaDriverFacts("/a", None))
    speaks(none, Status.OK, "embeds one")
    (dead,) = check_media_driver(MediaDriverFacts("/a", mark))
    speaks(dead, Status.WARN, "no longer runs")
    (stopped,) = check_media_driver(MediaDriverFacts("/a", mark, is_stopped=True))
    speaks(stopped, Status.FAIL, f"kill -CONT {mark.pid}")
    (barred,) = check_media_driver(MediaDriverFacts("/a", None, trouble="/a/cnc.dat: Permission denied"))
    speaks(barred, Status.FAIL, "Permission denied")


@pytest.mark.parametrize(
    ("interval", "status", "words"),
    [
        (0.002, Status.OK, "2 ms"),
        (1.0, Status.WARN, "AERON_TIMER_INTERVAL=2ms"),
        (None, Status.WARN, "measured"),
    ],
)
def test_a_foreign_media_driver_with_a_slow_timer_is_warned_of(
    mark: MarkFile, interval: float | None, status: Status, words: str
) -> None:
    facts = MediaDriverFacts("/a", mark, is_alive=True, timer_interval_s=interval, version="1.54.0")
    running, timers = check_media_driver(facts)
    speaks(running, Status.OK, "Aeron 1.54.0, process")
    speaks(timers, status, words)


def test_a_media_driver_that_is_open_to_all_or_has_errors(mark: MarkFile) -> None:
    facts = MediaDriverFacts("/a", replace(mark, mode=0o777), is_alive=True, timer_interval_s=0.002, errors=3)
    running, _, errors = check_media_driver(facts)
    speaks(running, Status.WARN, "chmod o-w")
    speaks(errors, Status.WARN, "3 so far")


def test_shm_driver() -> None:
    holder = Holder(pid=5, user="u", host="h", namespace="default", aeron_dir="/a", control_stream_id=1000)
    speaks(check_shm_driver(None, place="default", aeron_dir="/a"), Status.OK, "'default'")
    speaks(check_shm_driver(holder, place="default", aeron_dir="/a"), Status.OK, "process 5")
    speaks(check_shm_driver(holder, place="default", aeron_dir="/b"), Status.WARN, "AERON_DIR=/a")


def test_machine() -> None:
    speaks(check_clock("tsc"), Status.OK)
    speaks(check_clock(None), Status.OK)
    speaks(check_clock("hpet"), Status.WARN, "clocksource=tsc")
    speaks(check_system("Linux 6.1", "little", 8), Status.OK)
    speaks(check_system("Linux 6.1", "little", 1), Status.WARN)
    speaks(check_system("Darwin 25", "little", 8), Status.FAIL)
    speaks(check_system("Linux 6.1", "big", 8), Status.FAIL)
    speaks(check_java(None), Status.OK, "only the interoperability tests")


def test_the_worst_one_decides() -> None:
    made = {status: Check("x", status, "") for status in Status}
    assert worst([]) is Status.OK
    assert worst([made[Status.OK], made[Status.WARN]]) is Status.WARN
    assert worst([made[Status.FAIL], made[Status.WARN], made[Status.OK]]) is Status.FAIL


def test_a_broken_configuration_is_a_finding_and_the_rest_is_looked_at(
    tmp_path: Path, aeron_dir: Path
) -> None:
    file = tmp_path / "tp.toml"
    file.write_text("[shm]\nname_space = 'x'\n")
    checks = {one.name: one for one in run_checks("1", config_file=file, aeron_dir=str(aeron_dir))}
    speaks(checks["configuration"], Status.FAIL, "namespace")
    assert checks["media driver"].found == f"none in {aeron_dir}; tensorpool.open() embeds one"


def test_a_look_starts_no_media_driver_and_makes_no_region_nor_state(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, user_state_dir: Path
) -> None:
    file = tmp_path / "tp.toml"
    file.write_text(f"[shm]\nbase_dir = '{shm_base}'\n")
    assert worst(run_checks("1", config_file=file, aeron_dir=str(aeron_dir))) is not Status.FAIL
    assert not aeron_dir.exists()
    assert list(shm_base.iterdir()) == []
    assert list(user_state_dir.iterdir()) == []
