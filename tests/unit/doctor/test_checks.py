"""The findings of the doctor on synthetic facts."""

from __future__ import annotations

import os
import resource
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tensorpool import _native
from tensorpool.clock import SYSTEM_CLOCK, ManualClock
from tensorpool.doctor import Check, CheckStatus, run_checks, worst
from tensorpool.doctor.drivers import (
    MediaDriverFacts,
    check_media_driver,
    check_network_drivers,
    check_shm_driver,
)
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
    DEFAULT_STREAM_BYTES,
    Leftover,
    Space,
    check_hugepages,
    check_leftovers,
    check_space,
    check_transparent_hugepages,
    find_leftovers,
    read_last_level_cache,
)
from tensorpool.driver import Holder
from tensorpool.shm import EpochSpec, PoolSpec, create_epoch
from tensorpool.shm.epoch_files import Mount
from tensorpool.transport.media_driver import MarkFile

GIB = 1 << 30
SHM = Path("/dev/shm")
TMPFS = Mount(SHM, "tmpfs", frozenset({"rw"}))
HUGE = Mount(Path("/dev/hugepages"), "hugetlbfs", frozenset({"rw"}))


def assert_finding(check: Check, status: CheckStatus, text: str = "") -> None:
    """The check has the status and the text; one that is not ok has a meaning and a remedy."""
    assert check.status is status, check
    assert text in f"{check.found} {check.meaning} {check.remedy}", check
    assert bool(check.meaning) == bool(check.remedy) == (status is not CheckStatus.OK), check


@pytest.mark.parametrize(
    ("free", "mount", "status", "text"),
    [
        (4 * GIB, TMPFS, CheckStatus.OK, "4 GiB free"),
        (4 * GIB, None, CheckStatus.OK, ""),
        (64 << 20, TMPFS, CheckStatus.WARN, "Room for 1 streams"),
        (DEFAULT_STREAM_BYTES - 1, TMPFS, CheckStatus.FAIL, "--shm-size"),
        (4 * GIB, Mount(SHM, "ext4", frozenset({"rw"})), CheckStatus.WARN, "disk"),
        (4 * GIB, Mount(SHM, "tmpfs", frozenset({"ro"})), CheckStatus.FAIL, "read-only"),
    ],
)
def test_shared_memory_finding(free: int, mount: Mount | None, status: CheckStatus, text: str) -> None:
    assert_finding(check_space(SHM, Space(8 * GIB, free), mount), status, text)


@pytest.mark.parametrize(
    ("meminfo", "mount", "wanted", "status"),
    [
        ("HugePages_Total:  0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n", TMPFS, False, CheckStatus.OK),
        ("HugePages_Total:  0\nHugePages_Free: 0\n", HUGE, True, CheckStatus.FAIL),
        ("HugePages_Total:  8\nHugePages_Free: 8\n", TMPFS, True, CheckStatus.FAIL),
        ("HugePages_Total:  8\nHugePages_Free: 0\n", HUGE, True, CheckStatus.WARN),
        ("HugePages_Total:  8\nHugePages_Free: 8\n", HUGE, True, CheckStatus.OK),
        ("", None, False, CheckStatus.OK),
    ],
)
def test_huge_pages_finding(meminfo: str, mount: Mount | None, wanted: bool, status: CheckStatus) -> None:
    assert_finding(check_hugepages(meminfo, [TMPFS, HUGE], mount, wanted=wanted), status)


@pytest.mark.parametrize(
    ("mount", "text"),
    [
        (TMPFS, "mount -o remount,huge=advise /dev/shm"),
        (Mount(SHM, "tmpfs", frozenset({"rw", "huge=advise"})), "has them (huge=advise)"),
        (HUGE, "not on tmpfs"),
        (None, "not on tmpfs"),
    ],
)
def test_transparent_huge_pages_finding(mount: Mount | None, text: str) -> None:
    assert_finding(check_transparent_hugepages(SHM, mount), CheckStatus.OK, text)


def test_last_level_cache_is_that_with_the_highest_level(tmp_path: Path) -> None:
    for name, level, size in (("index0", "1", "32K"), ("index2", "3", "96M"), ("index3", "2", "1024K")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "level").write_text(f"{level}\n")
        (tmp_path / name / "size").write_text(f"{size}\n")
    (tmp_path / "index9").mkdir()
    assert read_last_level_cache(tmp_path) == 96 << 20
    assert read_last_level_cache(tmp_path / "absent") is None


def test_leftovers_are_stale_regions_of_dead_owners(shm_base: Path) -> None:
    def create(stream_id: int) -> Path:
        return create_epoch(EpochSpec(shm_base, "default", stream_id, 1, 2, [PoolSpec(1, 64)])).directory

    alive, dead = create(1), create(2)
    with (dead / "header.ring").open("r+b") as file:
        file.seek(40)
        file.write(struct.pack("<Q", 1 << 23))
    later = ManualClock(monotonic_ns=SYSTEM_CLOCK.monotonic_ns() + 4_000_000_000)
    try:
        assert find_leftovers(shm_base) == []
        leftovers = find_leftovers(shm_base, clock=later)
        assert leftovers == [Leftover(dead, 1 << 23, 64 + 2 * 256 + 64 + 2 * 64)]
    finally:
        _native.remove_epoch(alive)
        _native.remove_epoch(dead)
        for directory in (alive.parent, dead.parent, alive.parent.parent, alive.parent.parent.parent):
            directory.rmdir()
    assert_finding(check_leftovers([]), CheckStatus.OK)
    assert_finding(check_leftovers(leftovers), CheckStatus.WARN, "1 epoch of dead processes")


@pytest.mark.parametrize(
    ("limit", "wanted", "status"),
    [
        (resource.RLIM_INFINITY, True, CheckStatus.OK),
        (8 << 20, False, CheckStatus.OK),
        (8 << 20, True, CheckStatus.FAIL),
        (GIB, True, CheckStatus.WARN),
    ],
)
def test_locked_memory_finding(limit: int, wanted: bool, status: CheckStatus) -> None:
    assert_finding(check_memlock(limit, wanted=wanted), status)


@pytest.mark.parametrize(
    ("soft", "hard", "status", "text"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, CheckStatus.OK, ""),
        (1024, 4096, CheckStatus.OK, ""),
        (512, resource.RLIM_INFINITY, CheckStatus.WARN, "ulimit -n 4096"),
        (64, 1000, CheckStatus.FAIL, "ulimit -n 1000"),
    ],
)
def test_open_files_finding(soft: int, hard: int, status: CheckStatus, text: str) -> None:
    assert_finding(check_files(soft, hard), status, text)


def test_mappings_finding() -> None:
    assert_finding(check_mappings(None), CheckStatus.OK)
    assert_finding(check_mappings(65_530), CheckStatus.OK)
    assert_finding(check_mappings(1000), CheckStatus.WARN, "vm.max_map_count")


BASE = DirectoryFacts(SHM, SHM, uid=0, mode=0o1777, is_writable=True)
OWN = DirectoryFacts(SHM / "tensorpool-me", SHM / "tensorpool-me", uid=7, mode=0o700, is_writable=True)
MISSING = replace(OWN, existing=SHM, uid=0, mode=0o1777)


@pytest.mark.parametrize(
    ("base", "own", "status", "text"),
    [
        (BASE, OWN, CheckStatus.OK, "0700"),
        (BASE, MISSING, CheckStatus.OK, "1777"),
        (BASE, replace(OWN, uid=8), CheckStatus.FAIL, "Another user"),
        (replace(BASE, is_writable=False), MISSING, CheckStatus.FAIL, "No region can be created"),
        (replace(BASE, mode=0o777), OWN, CheckStatus.WARN, "chmod +t"),
        (BASE, replace(OWN, mode=0o770), CheckStatus.WARN, "chmod go-w"),
    ],
)
def test_base_directory_finding(
    base: DirectoryFacts, own: DirectoryFacts, status: CheckStatus, text: str
) -> None:
    assert_finding(check_base(base, own, me=7), status, text)


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [
        (OWN, CheckStatus.OK, ""),
        (replace(OWN, is_writable=False), CheckStatus.FAIL, "XDG_STATE_HOME"),
        (replace(OWN, uid=8), CheckStatus.WARN, "another user"),
        (replace(OWN, mode=0o777), CheckStatus.WARN, "chmod go-w"),
    ],
)
def test_state_directory_finding(state: DirectoryFacts, status: CheckStatus, text: str) -> None:
    assert_finding(check_state(state, me=7), status, text)


def test_missing_directory_has_the_facts_of_its_nearest_parent(tmp_path: Path) -> None:
    directory = DirectoryFacts.from_path(tmp_path / "a" / "b")
    assert (directory.exists, directory.existing, directory.is_writable) == (False, tmp_path, True)
    assert "does not exist yet" in directory.describe()


@pytest.fixture
def mark(tmp_path: Path) -> MarkFile:
    path = tmp_path / "cnc.dat"
    path.touch(0o600)
    return MarkFile(
        path=path, pid=os.getpid(), started_ms=0, client_liveness_timeout_ns=1, owner_uid=os.getuid(),
        mode=0o700, heartbeat_ms=1,
    )  # fmt: skip


def test_media_driver_missing_dead_stopped_or_unreadable(mark: MarkFile) -> None:
    (none,) = check_media_driver(MediaDriverFacts("/a", None))
    assert_finding(none, CheckStatus.OK, "embeds one")
    (dead,) = check_media_driver(MediaDriverFacts("/a", mark))
    assert_finding(dead, CheckStatus.WARN, "no longer runs")
    (stopped,) = check_media_driver(MediaDriverFacts("/a", mark, is_stopped=True))
    assert_finding(stopped, CheckStatus.FAIL, f"kill -CONT {mark.pid}")
    (unreadable,) = check_media_driver(MediaDriverFacts("/a", None, error="/a/cnc.dat: Permission denied"))
    assert_finding(unreadable, CheckStatus.FAIL, "Permission denied")


def test_network_drivers_are_listed_with_their_leftovers(mark: MarkFile) -> None:
    assert check_network_drivers([MediaDriverFacts("/a-udp-0", None)]) == []
    alive, dead = check_network_drivers(
        [MediaDriverFacts("/a-udp-0", mark, is_alive=True), MediaDriverFacts("/a-udp-1", mark)]
    )
    assert_finding(alive, CheckStatus.OK, f"/a-udp-0: process {mark.pid}")
    assert_finding(dead, CheckStatus.WARN, "/a-udp-1")


@pytest.mark.parametrize(
    ("interval", "status", "text"),
    [
        (0.002, CheckStatus.OK, "2 ms"),
        (1.0, CheckStatus.WARN, "AERON_TIMER_INTERVAL=2ms"),
        (None, CheckStatus.WARN, "measured"),
    ],
)
def test_media_driver_with_a_slow_timer_is_a_warning(
    mark: MarkFile, interval: float | None, status: CheckStatus, text: str
) -> None:
    facts = MediaDriverFacts("/a", mark, is_alive=True, timer_interval_s=interval, version="1.54.0")
    running, timers, *_ = check_media_driver(facts)
    assert_finding(running, CheckStatus.OK, "Aeron 1.54.0, process")
    assert_finding(timers, status, text)


def test_media_driver_open_to_all_or_with_errors_is_a_warning(mark: MarkFile) -> None:
    facts = MediaDriverFacts("/a", replace(mark, mode=0o777), is_alive=True, timer_interval_s=0.002, errors=3)
    running, *_, errors = check_media_driver(facts)
    assert_finding(running, CheckStatus.WARN, "chmod o-w")
    assert_finding(errors, CheckStatus.WARN, "3 so far")


def test_shm_driver_finding() -> None:
    holder = Holder(pid=5, user="u", host="h", namespace="default", aeron_dir="/a", control_stream_id=1000)
    assert_finding(check_shm_driver(None, namespace="default", aeron_dir="/a"), CheckStatus.OK, "'default'")
    assert_finding(check_shm_driver(holder, namespace="default", aeron_dir="/a"), CheckStatus.OK, "process 5")
    assert_finding(
        check_shm_driver(holder, namespace="default", aeron_dir="/b"), CheckStatus.WARN, "AERON_DIR=/a"
    )


def test_machine_finding() -> None:
    assert_finding(check_clock("tsc"), CheckStatus.OK)
    assert_finding(check_clock(None), CheckStatus.OK)
    assert_finding(check_clock("hpet"), CheckStatus.WARN, "clocksource=tsc")
    assert_finding(check_system("Linux 6.1", "little", 8), CheckStatus.OK)
    assert_finding(check_system("Linux 6.1", "little", 1), CheckStatus.WARN)
    assert_finding(check_system("Darwin 25", "little", 8), CheckStatus.FAIL)
    assert_finding(check_system("Linux 6.1", "big", 8), CheckStatus.FAIL)
    assert_finding(check_java(None), CheckStatus.OK, "only the interoperability tests")


def test_worst_status_decides() -> None:
    by_status = {status: Check("x", status, "") for status in CheckStatus}
    assert worst([]) is CheckStatus.OK
    assert worst([by_status[CheckStatus.OK], by_status[CheckStatus.WARN]]) is CheckStatus.WARN
    assert (
        worst([by_status[CheckStatus.FAIL], by_status[CheckStatus.WARN], by_status[CheckStatus.OK]])
        is CheckStatus.FAIL
    )


def test_invalid_configuration_is_a_finding_and_other_checks_run(tmp_path: Path, aeron_dir: Path) -> None:
    file = tmp_path / "tp.toml"
    file.write_text("[shm]\nname_space = 'x'\n")
    checks = {check.name: check for check in run_checks("1", config_file=file, aeron_dir=str(aeron_dir))}
    assert_finding(checks["configuration"], CheckStatus.FAIL, "namespace")
    assert checks["media driver"].found == f"none in {aeron_dir}; tensorpool.open() embeds one"


def test_checks_start_no_media_driver_and_create_no_files(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, user_state_dir: Path
) -> None:
    file = tmp_path / "tp.toml"
    file.write_text(f"[shm]\nbase_dir = '{shm_base}'\n")
    assert worst(run_checks("1", config_file=file, aeron_dir=str(aeron_dir))) is not CheckStatus.FAIL
    assert not aeron_dir.exists()
    assert list(shm_base.iterdir()) == []
    assert list(user_state_dir.iterdir()) == []
