"""The driver's files on a real filesystem (driver §3, §9, §14; decisions 15, 16, 19, 26, 45)."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver.actions import (
    AssignFiles,
    FilesFailed,
    FilesRemoved,
    MakeFiles,
    RemoveFiles,
)
from tensorpool.driver.lock import driver_state
from tensorpool.driver.plan import StreamPlan
from tensorpool.driver.storage import MAX_STORAGE_THREADS, BaseDirs, Storage
from tensorpool.errors import RegionCreateError, StreamBusy
from tensorpool.sbe import ResponseCode
from tensorpool.shm import EpochSpec
from tensorpool.shm.epoch_files import user_name
from tensorpool.shm.ownership import epoch_mark, lock_stream, stream_state
from tests.unit.driver.conftest import StorageHarness
from tests.unit.driver.state_harness import layout


def open_regions(files: Any, plan: StreamPlan, base: Path) -> _native.Superblock:
    """Opens every region as a consumer does. Returns the header ring's superblock."""
    options: dict[str, Any] = {
        "base_dirs": [base],
        "epoch": files.epoch,
        "stream_id": plan.stream_id,
        "nslots": files.nslots,
    }
    for pool_id, stride, uri in files.pools:
        _native.open_region(uri, pool_id=pool_id, stride_bytes=stride, **options)
    return _native.open_region(files.header_uri, **options)


# --- creation, assignment, removal


@pytest.mark.requirement("driver-3-3", "driver-9-1", "driver-14-1")
def test_regions_have_the_specified_paths_and_bytes(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    files = storage_harness.make(plan)
    root = storage_harness.base / f"tensorpool-{user_name()}" / "default"
    assert files.directory == root / str(plan.stream_id) / str(files.epoch)
    assert sorted(path.name for path in files.directory.iterdir()) == ["1.pool", "2.pool", "header.ring"]
    superblock = open_regions(files, plan, storage_harness.base)
    assert superblock.pid == os.getpid()
    for path in files.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_blocks * 512 >= path.stat().st_size
    for directory in (files.directory, *list(files.directory.parents)[:3]):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.requirement("driver-14-2")
def test_instance_id_is_part_of_the_path(
    make_storage_harness: Callable[..., StorageHarness], plan: StreamPlan
) -> None:
    first = make_storage_harness(namespace="default.a").make(plan)
    second = make_storage_harness(namespace="default.b").make(plan)
    assert first.directory.parts[-3] == "default.a"
    assert second.directory.parts[-3] == "default.b"


@pytest.mark.requirement("driver-6-1")
def test_assigned_files_get_a_new_epoch_and_keep_their_inodes(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    files = storage_harness.make(plan)
    inodes = {path.name: path.stat().st_ino for path in files.directory.iterdir()}
    assigned = storage_harness.assign(plan, files)
    assert assigned.epoch > files.epoch
    assert not files.directory.exists()
    assert {path.name: path.stat().st_ino for path in assigned.directory.iterdir()} == inodes
    assert open_regions(assigned, plan, storage_harness.base).epoch == assigned.epoch


@pytest.mark.requirement("driver-10-2", "driver-13-1")
def test_epochs_grow_over_restarts_and_wiped_directories(
    make_storage_harness: Callable[..., StorageHarness], plan: StreamPlan
) -> None:
    epochs = []
    for _ in range(3):
        storage_harness = make_storage_harness()
        files = storage_harness.make(plan)
        epochs += [files.epoch, storage_harness.assign(plan, files).epoch]
        storage_harness.storage.close()
        assert storage_harness.files() == []
    assert epochs == sorted(set(epochs))
    # Epochs also grow after the clock was set back.
    state = stream_state(storage_harness.base, "default")
    (state / f"{plan.stream_id}.epoch").write_text(str(1 << 62))
    assert make_storage_harness().make(plan).epoch == (1 << 62) + 1


def test_epoch_mark_is_shared_with_standalone_producers(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    files = storage_harness.make(plan)
    mark = epoch_mark(stream_state(storage_harness.base, "default"), plan.stream_id)
    assert mark.last() == files.epoch


def test_stream_is_released_with_its_last_directory(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    state = stream_state(storage_harness.base, "default")
    first, second = storage_harness.make(plan), storage_harness.make(plan)
    storage_harness.remove(plan, first)
    with pytest.raises(StreamBusy, match="the driver, process"):
        lock_stream(state, "default", plan.stream_id)
    storage_harness.remove(plan, second)
    assert storage_harness.files() == []
    lock_stream(state, "default", plan.stream_id).release()


def test_stream_is_released_after_an_assignment(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    assigned = storage_harness.assign(plan, storage_harness.make(plan))
    storage_harness.remove(plan, assigned)
    assert storage_harness.files() == []
    lock_stream(stream_state(storage_harness.base, "default"), "default", plan.stream_id).release()


def test_stream_of_a_standalone_producer_is_refused(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    state = stream_state(storage_harness.base, "default")
    lock = lock_stream(state, "default", plan.stream_id)
    try:
        result = storage_harness.perform(MakeFiles(plan))
    finally:
        lock.release()
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.REJECTED
    assert f"process {os.getpid()}" in result.refusal.reason
    assert storage_harness.files() == []
    assert storage_harness.make(plan).epoch > 0


def test_second_removal_does_nothing(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    files = storage_harness.make(plan)
    for _ in range(2):
        result = storage_harness.perform(RemoveFiles(plan.stream_id, files.directory))
        assert result == FilesRemoved(plan.stream_id, files.directory)


def test_foreign_file_keeps_only_its_directory(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    files = storage_harness.make(plan)
    foreign = files.directory / "notes.txt"
    foreign.write_text("not a region")
    storage_harness.remove(plan, files)
    assert [path for path in storage_harness.files() if path.is_file()] == [foreign]
    shutil.rmtree(files.directory.parents[2])


def test_files_with_a_locked_ring_are_not_assigned(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    files = storage_harness.make(plan)
    with (files.directory / "header.ring").open("r+b") as file:
        take_region_lock(file.fileno())
        result = storage_harness.perform(AssignFiles(plan, files))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.REJECTED
    assert storage_harness.files() == []


def take_region_lock(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def test_any_number_of_producer_restarts_leaves_one_directory(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    small = replace(plan, layout=layout(1, 64))
    live = storage_harness.assign(small, storage_harness.make(small))
    for _ in range(1000 if os.environ.get("TENSORPOOL_TEST_LONG") == "1" else 250):
        fresh = storage_harness.make(small)
        storage_harness.remove(small, live)
        live = storage_harness.assign(small, fresh)
    assert list(live.directory.parent.iterdir()) == [live.directory]
    assert len(list(stream_state(storage_harness.base, "default").iterdir())) == 2
    assert len(os.listdir("/proc/self/fd")) < 200


def test_jobs_run_in_parallel_and_in_order_per_stream(
    storage_harness: StorageHarness,
    plan: StreamPlan,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
) -> None:
    plans = [replace(plan, stream_id=free_stream_ids(), layout=layout(1, 64)) for _ in range(20)]
    for stream_plan in plans:
        for _ in range(3):
            storage_harness.storage.submit(MakeFiles(stream_plan))
    results: list = []

    def all_done() -> bool:
        results.extend(storage_harness.storage.poll())
        return len(results) == 60

    wait_until(all_done)
    for stream_plan in plans:
        epochs = [result.files.epoch for result in results if result.stream_id == stream_plan.stream_id]
        assert len(epochs) == 3
        assert epochs == sorted(epochs)


# --- failures


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"hugepages": True}, ResponseCode.REJECTED, "is not on hugetlbfs"),
        ({"layout": layout(3, 4096)}, ResponseCode.INVALID_PARAMS, "must be a power of two"),
        ({"layout": layout(4, 100)}, ResponseCode.INVALID_PARAMS, "must be a power of two"),
    ],
)
def test_failed_creation_is_reported_and_leaves_no_files(
    storage_harness: StorageHarness, plan: StreamPlan, change: dict, code: ResponseCode, part: str
) -> None:
    result = storage_harness.perform(MakeFiles(replace(plan, **change)))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is code
    assert part in result.refusal.reason
    assert storage_harness.files() == []
    # The next attempt succeeds.
    assert storage_harness.make(plan).epoch > 0


def test_full_filesystem_is_an_error_at_creation(
    make_storage_harness: Callable[..., StorageHarness], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    storage_harness = make_storage_harness(base=mounted("tmpfs", "size=256k"))
    result = storage_harness.perform(MakeFiles(replace(plan, layout=layout(4, 4096, 1 << 20))))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert "no room for" in result.refusal.reason
    assert storage_harness.files() == []
    # Smaller files still fit.
    files = storage_harness.make(plan)
    storage_harness.remove(plan, files)
    storage_harness.storage.close()


def test_read_only_base_is_an_error(
    make_storage_harness: Callable[..., StorageHarness], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    base = mounted("tmpfs", "size=64k")
    subprocess.run(["mount", "-o", "remount,ro", str(base)], check=True)
    storage_harness = make_storage_harness(base=base)
    result = storage_harness.perform(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert "Read-only file system" in result.refusal.reason
    storage_harness.storage.close()


def test_missing_base_is_an_error(
    make_storage_harness: Callable[..., StorageHarness], tmp_path: Path, plan: StreamPlan
) -> None:
    base = tmp_path / "gone"
    storage_harness = make_storage_harness(base=base)
    result = storage_harness.perform(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert f"there is no base directory {base}" in result.refusal.reason
    base.mkdir()
    assert storage_harness.make(plan).epoch > 0


@pytest.mark.requirement("driver-9-1")
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a directory away")
def test_directory_created_by_another_user_is_refused(
    storage_harness: StorageHarness, plan: StreamPlan
) -> None:
    trap = storage_harness.base / f"tensorpool-{user_name()}"
    trap.mkdir()
    os.chown(trap, 12345, -1)
    result = storage_harness.perform(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert "belongs to user id 12345" in result.refusal.reason
    assert list(trap.iterdir()) == []
    trap.rmdir()
    trap.symlink_to("/tmp")
    result = storage_harness.perform(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    trap.unlink()


def test_hugepages_present_are_used(
    make_storage_harness: Callable[..., StorageHarness], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    pages = Path("/proc/sys/vm/nr_hugepages")
    before = pages.read_text()
    try:
        pages.write_text("16")
        if int(pages.read_text()) < 8:
            pytest.skip("the kernel has no huge pages to give")
        base = mounted("hugetlbfs")
        storage_harness = make_storage_harness(base=base)
        files = storage_harness.make(replace(plan, hugepages=True))
        assert "require_hugepages=true" in files.header_uri
        assert open_regions(files, plan, base).nslots == 4
        assigned = storage_harness.assign(replace(plan, hugepages=True), files)
        assert open_regions(assigned, plan, base).epoch == assigned.epoch
        storage_harness.storage.close()
    except PermissionError:
        pytest.skip("huge pages cannot be set here")
    finally:
        if os.access(pages, os.W_OK):
            pages.write_text(before)


@pytest.mark.requirement("driver-4.3-5")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("no_hugepages", ResponseCode.REJECTED),
        ("not_hugepages", ResponseCode.REJECTED),
        ("invalid", ResponseCode.INVALID_PARAMS),
        ("io", ResponseCode.INTERNAL_ERROR),
    ],
)
def test_attach_is_refused_by_why_the_regions_cannot_be_created(
    make_storage_harness: Callable[..., StorageHarness],
    plan: StreamPlan,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    code: ResponseCode,
) -> None:
    def create(_: EpochSpec) -> Any:
        raise RegionCreateError("no pages left; raise nr_hugepages", reason=reason)

    monkeypatch.setattr(_native, "create_epoch", create)
    failed = make_storage_harness().perform(MakeFiles(plan))
    assert isinstance(failed, FilesFailed)
    assert (failed.refusal.code, failed.refusal.reason) == (code, "no pages left; raise nr_hugepages")


def test_prefault_touches_all_pages_of_new_regions(
    make_storage_harness: Callable[..., StorageHarness], plan: StreamPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefaults = []
    real = _native.create_epoch

    def create(spec: EpochSpec) -> _native.EpochRegions:
        prefaults.append(spec.prefault)
        return real(spec)

    monkeypatch.setattr(_native, "create_epoch", create)
    make_storage_harness(namespace="lazy").make(plan)
    make_storage_harness(namespace="eager", prefault=True).make(plan)
    assert prefaults == [False, True]


def test_close_drops_regions_that_a_flood_has_queued(
    storage_harness: StorageHarness,
    plan: StreamPlan,
    wait_until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, started, release = storage_harness.storage, [], threading.Event()

    def make_slowly(job: MakeFiles) -> None:
        started.append(job.plan.stream_id)
        release.wait(60)

    monkeypatch.setattr(storage, "_make", make_slowly)
    first = plan.stream_id
    for stream_id in range(first, first + 5_000):
        storage.submit(MakeFiles(replace(plan, stream_id=stream_id)))
    # A second job of a stream whose first job runs.
    storage.submit(MakeFiles(plan))
    storage.save_provisions({"version": 1, "streams": []})
    wait_until(lambda: len(started) == MAX_STORAGE_THREADS, timeout=60)
    closing = threading.Thread(target=storage.close)
    closing.start()
    wait_until(lambda: len(storage._ready) <= 1, timeout=60)
    release.set()
    closing.join(60)
    assert not closing.is_alive()
    assert started == [*range(first, first + MAX_STORAGE_THREADS)]
    assert storage.is_idle
    assert storage.load_provisions() == {"version": 1, "streams": []}


def test_stream_is_locked_in_every_base_directory(
    shm_base: Path, plan: StreamPlan, wait_until: Callable[..., Any]
) -> None:
    first, second = shm_base / "first", shm_base / "second"
    first.mkdir()
    second.mkdir()
    bases = BaseDirs(first, others=(second,))
    storage = Storage(bases, "default", driver_state(first, "default"), stale_after_ns=3_000_000_000)
    harness = StorageHarness(storage, second, wait_until)
    states = [stream_state(base, "default") for base in (first, second)]
    epoch_mark(states[1], plan.stream_id).record(1 << 62)
    elsewhere = replace(plan, base_dir=second)
    try:
        lock = lock_stream(states[1], "default", plan.stream_id)
        assert isinstance(harness.perform(MakeFiles(elsewhere)), FilesFailed)
        lock.release()
        files = harness.make(elsewhere)
        assert files.directory.is_relative_to(second)
        assert files.epoch == (1 << 62) + 1
        assert [epoch_mark(state, plan.stream_id).last() for state in states] == [files.epoch] * 2
        for state in states:
            with pytest.raises(StreamBusy):
                lock_stream(state, "default", plan.stream_id)
        harness.remove(elsewhere, files)
        for state in states:
            lock_stream(state, "default", plan.stream_id).release()
    finally:
        storage.close()
        first.rmdir()
        shutil.rmtree(second)
