"""The driver's files on a real filesystem (driver §3, §9, §14; decisions 15, 16, 19, 26, 45)."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import subprocess
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
from tensorpool.driver.plan import StreamPlan
from tensorpool.errors import StreamBusy
from tensorpool.sbe import ResponseCode
from tensorpool.shm.epoch_files import user_name
from tensorpool.shm.ownership import epoch_mark, lock_stream, stream_state
from tests.unit.driver.conftest import Shelf
from tests.unit.driver.world import layout


def judged(files: Any, plan: StreamPlan, base: Path) -> dict[str, int]:
    """Every region judged as a consumer would; the header ring's superblock."""
    words: dict[str, Any] = {
        "base_dirs": [base],
        "epoch": files.epoch,
        "stream_id": plan.stream_id,
        "nslots": files.nslots,
    }
    for pool_id, stride, uri in files.pools:
        _native.open_region(uri, pool_id=pool_id, stride_bytes=stride, **words)
    return _native.open_region(files.header_uri, **words)


# --- making, assigning, removing


@pytest.mark.requirement("driver-3-3", "driver-9-1", "driver-14-1")
def test_regions_are_where_and_what_the_wire_document_says(shelf: Shelf, plan: StreamPlan) -> None:
    files = shelf.make(plan)
    root = shelf.base / f"tensorpool-{user_name()}" / "default"
    assert files.directory == root / str(plan.stream_id) / str(files.epoch)
    assert sorted(path.name for path in files.directory.iterdir()) == ["1.pool", "2.pool", "header.ring"]
    superblock = judged(files, plan, shelf.base)
    assert superblock["pid"] == os.getpid()
    for path in files.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_blocks * 512 >= path.stat().st_size
    for directory in (files.directory, *list(files.directory.parents)[:3]):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.requirement("driver-14-2")
def test_an_instance_id_is_part_of_the_path(make_shelf: Callable[..., Shelf], plan: StreamPlan) -> None:
    first = make_shelf(place="default.a").make(plan)
    second = make_shelf(place="default.b").make(plan)
    assert first.directory.parts[-3] == "default.a"
    assert second.directory.parts[-3] == "default.b"


@pytest.mark.requirement("driver-6-1")
def test_clean_files_get_a_further_epoch_and_stay_the_same_memory(shelf: Shelf, plan: StreamPlan) -> None:
    made = shelf.make(plan)
    inodes = {path.name: path.stat().st_ino for path in made.directory.iterdir()}
    assigned = shelf.assign(plan, made)
    assert assigned.epoch > made.epoch
    assert not made.directory.exists()
    assert {path.name: path.stat().st_ino for path in assigned.directory.iterdir()} == inodes
    assert judged(assigned, plan, shelf.base)["epoch"] == assigned.epoch


@pytest.mark.requirement("driver-10-2", "driver-13-1")
def test_epochs_grow_over_restarts_and_wiped_directories(
    make_shelf: Callable[..., Shelf], plan: StreamPlan
) -> None:
    epochs = []
    for _ in range(3):
        shelf = make_shelf()
        files = shelf.make(plan)
        epochs += [files.epoch, shelf.assign(plan, files).epoch]
        shelf.storage.close()
        assert shelf.files() == []
    assert epochs == sorted(set(epochs))
    # And over a clock that was set back.
    state = stream_state(shelf.base, "default")
    (state / f"{plan.stream_id}.epoch").write_text(str(1 << 62))
    assert make_shelf().make(plan).epoch == (1 << 62) + 1


def test_the_mark_is_the_one_that_stand_alone_producers_use(shelf: Shelf, plan: StreamPlan) -> None:
    files = shelf.make(plan)
    mark = epoch_mark(stream_state(shelf.base, "default"), plan.stream_id)
    assert mark.last() == files.epoch


def test_the_last_directory_gone_the_stream_is_free_again(shelf: Shelf, plan: StreamPlan) -> None:
    state = stream_state(shelf.base, "default")
    first, second = shelf.make(plan), shelf.make(plan)
    shelf.remove(plan, first)
    with pytest.raises(StreamBusy, match="the driver, process"):
        lock_stream(state, "default", plan.stream_id)
    shelf.remove(plan, second)
    assert shelf.files() == []
    lock_stream(state, "default", plan.stream_id).release()


def test_a_stream_whose_files_had_two_names_is_free_again_too(shelf: Shelf, plan: StreamPlan) -> None:
    assigned = shelf.assign(plan, shelf.make(plan))
    shelf.remove(plan, assigned)
    assert shelf.files() == []
    lock_stream(stream_state(shelf.base, "default"), "default", plan.stream_id).release()


def test_a_stream_of_a_stand_alone_producer_is_refused(shelf: Shelf, plan: StreamPlan) -> None:
    state = stream_state(shelf.base, "default")
    lock = lock_stream(state, "default", plan.stream_id)
    try:
        result = shelf.do(MakeFiles(plan))
    finally:
        lock.release()
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.REJECTED
    assert f"process {os.getpid()}" in result.refusal.reason
    assert shelf.files() == []
    assert shelf.make(plan).epoch > 0


def test_removing_twice_is_no_harm(shelf: Shelf, plan: StreamPlan) -> None:
    files = shelf.make(plan)
    for _ in range(2):
        result = shelf.do(RemoveFiles(plan.stream_id, files.directory))
        assert result == FilesRemoved(plan.stream_id, files.directory)


def test_a_strangers_file_keeps_the_directory_and_nothing_else(shelf: Shelf, plan: StreamPlan) -> None:
    files = shelf.make(plan)
    stranger = files.directory / "notes.txt"
    stranger.write_text("not a region")
    shelf.remove(plan, files)
    assert [path for path in shelf.files() if path.is_file()] == [stranger]
    shutil.rmtree(files.directory.parents[2])


def test_files_that_somebody_writes_to_are_not_given_to_another(shelf: Shelf, plan: StreamPlan) -> None:
    made = shelf.make(plan)
    with (made.directory / "header.ring").open("r+b") as file:
        take_region_lock(file.fileno())
        result = shelf.do(AssignFiles(plan, made))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.REJECTED
    assert shelf.files() == []


def take_region_lock(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def test_any_number_of_producer_restarts_leaves_one_directory(shelf: Shelf, plan: StreamPlan) -> None:
    small = replace(plan, layout=layout(1, 64))
    live = shelf.assign(small, shelf.make(small))
    for _ in range(1000 if os.environ.get("TENSORPOOL_TEST_LONG") == "1" else 250):
        fresh = shelf.make(small)
        shelf.remove(small, live)
        live = shelf.assign(small, fresh)
    assert list(live.directory.parent.iterdir()) == [live.directory]
    assert len(list(stream_state(shelf.base, "default").iterdir())) == 2
    assert len(os.listdir("/proc/self/fd")) < 200


def test_work_for_many_streams_goes_side_by_side_and_each_in_order(
    shelf: Shelf, plan: StreamPlan, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    plans = [replace(plan, stream_id=free_stream_ids(), layout=layout(1, 64)) for _ in range(20)]
    for one in plans:
        for _ in range(3):
            shelf.storage.submit(MakeFiles(one))
    results: list = []

    def all_done() -> bool:
        results.extend(shelf.storage.poll())
        return len(results) == 60

    wait_until(all_done)
    for one in plans:
        epochs = [result.files.epoch for result in results if result.stream_id == one.stream_id]
        assert len(epochs) == 3
        assert epochs == sorted(epochs)


# --- what goes wrong


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"hugepages": True}, ResponseCode.REJECTED, "is not on hugetlbfs"),
        ({"layout": layout(3, 4096)}, ResponseCode.INVALID_PARAMS, "must be a power of two"),
        ({"layout": layout(4, 100)}, ResponseCode.INVALID_PARAMS, "must be a power of two"),
    ],
)
def test_what_cannot_be_made_is_answered_and_leaves_nothing(
    shelf: Shelf, plan: StreamPlan, change: dict, code: ResponseCode, part: str
) -> None:
    result = shelf.do(MakeFiles(replace(plan, **change)))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is code
    assert part in result.refusal.reason
    assert shelf.files() == []
    # Nothing stands in the way of the next try.
    assert shelf.make(plan).epoch > 0


def test_a_full_filesystem_is_an_error_now_and_not_a_signal_later(
    make_shelf: Callable[..., Shelf], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    shelf = make_shelf(base=mounted("tmpfs", "size=256k"))
    result = shelf.do(MakeFiles(replace(plan, layout=layout(4, 4096, 1 << 20))))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert "no room for" in result.refusal.reason
    assert shelf.files() == []
    # What fits, fits.
    files = shelf.make(plan)
    shelf.remove(plan, files)
    shelf.storage.close()


def test_a_base_that_may_not_be_written_is_an_error(
    make_shelf: Callable[..., Shelf], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    base = mounted("tmpfs", "size=64k")
    subprocess.run(["mount", "-o", "remount,ro", str(base)], check=True)
    shelf = make_shelf(base=base)
    result = shelf.do(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert "Read-only file system" in result.refusal.reason
    shelf.storage.close()


def test_a_base_that_is_missing_is_an_error(
    make_shelf: Callable[..., Shelf], tmp_path: Path, plan: StreamPlan
) -> None:
    base = tmp_path / "gone"
    shelf = make_shelf(base=base)
    result = shelf.do(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    assert f"there is no base directory {base}" in result.refusal.reason
    base.mkdir()
    assert shelf.make(plan).epoch > 0


@pytest.mark.requirement("driver-9-1")
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a directory away")
def test_a_directory_that_somebody_else_made_first_is_a_trap(shelf: Shelf, plan: StreamPlan) -> None:
    trap = shelf.base / f"tensorpool-{user_name()}"
    trap.mkdir()
    os.chown(trap, 12345, -1)
    result = shelf.do(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert "belongs to user id 12345" in result.refusal.reason
    assert list(trap.iterdir()) == []
    trap.rmdir()
    trap.symlink_to("/tmp")
    result = shelf.do(MakeFiles(plan))
    assert isinstance(result, FilesFailed)
    assert result.refusal.code is ResponseCode.INTERNAL_ERROR
    trap.unlink()


def test_hugepages_present_are_used(
    make_shelf: Callable[..., Shelf], mounted: Callable[..., Path], plan: StreamPlan
) -> None:
    pages = Path("/proc/sys/vm/nr_hugepages")
    before = pages.read_text()
    try:
        pages.write_text("16")
        if int(pages.read_text()) < 8:
            pytest.skip("the kernel has no huge pages to give")
        base = mounted("hugetlbfs")
        shelf = make_shelf(base=base)
        files = shelf.make(replace(plan, hugepages=True))
        assert "require_hugepages=true" in files.header_uri
        assert judged(files, plan, base)["nslots"] == 4
        assigned = shelf.assign(replace(plan, hugepages=True), files)
        assert judged(assigned, plan, base)["epoch"] == assigned.epoch
        shelf.storage.close()
    except PermissionError:
        pytest.skip("huge pages cannot be set here")
    finally:
        if os.access(pages, os.W_OK):
            pages.write_text(before)


def test_memory_is_touched_when_it_is_made_where_that_is_wanted(
    make_shelf: Callable[..., Shelf], plan: StreamPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = _native.create_epoch

    def create(**words: Any) -> Any:
        asked.append(words["prefault"])
        return real(**words)

    monkeypatch.setattr(_native, "create_epoch", create)
    make_shelf(place="lazy").make(plan)
    make_shelf(place="eager", prefault=True).make(plan)
    assert asked == [False, True]
