"""Leftovers of dead drivers, saved provisions, and the end of a program (decisions 19 and 26)."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorpool.driver.actions import (
    FilesReady,
    MakeFiles,
    RemoveFiles,
)
from tensorpool.driver.lock import driver_state
from tensorpool.driver.plan import StreamPlan
from tensorpool.driver.storage import BaseDirs, Storage
from tensorpool.sbe import ShmRegionSuperblock
from tensorpool.shm import EpochSpec, PoolSpec, create_epoch
from tensorpool.shm.epoch_files import user_name
from tensorpool.shm.ownership import lock_stream, stream_state
from tests.remote_process import RemoteProcess
from tests.unit.driver.conftest import StorageHarness
from tests.unit.driver.state_harness import layout

OFFSETS = {field.python_name: field.offset for field in ShmRegionSuperblock.layout().encoded_fields}


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended and been reaped."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def make_leftover(shm_base: Path) -> Iterator[Callable[..., Path]]:
    """Creates an epoch with this owner and this activity timestamp."""

    def make_leftover(plan: StreamPlan, *, pid: int, activity_ns: int, namespace: str = "default") -> Path:
        pools = [PoolSpec(1, 4096)]
        files = create_epoch(EpochSpec(shm_base, namespace, plan.stream_id, secrets.randbits(40), 4, pools))
        directory = files.directory
        for path in directory.iterdir():
            with path.open("r+b") as file:
                for name, value in (("pid", pid), ("activity_timestamp_ns", activity_ns)):
                    file.seek(OFFSETS[name])
                    file.write(value.to_bytes(8, "little"))
        return Path(directory)

    yield make_leftover
    shutil.rmtree(shm_base)
    shm_base.mkdir()


def test_files_of_a_dead_driver_are_swept_once_stale(
    storage_harness: StorageHarness, plan: StreamPlan, make_leftover: Callable[..., Path], dead_pid: int
) -> None:
    stale = make_leftover(plan, pid=dead_pid, activity_ns=0)
    fresh = make_leftover(plan, pid=dead_pid, activity_ns=time.monotonic_ns() + 3_600_000_000_000)
    alive = make_leftover(plan, pid=os.getpid(), activity_ns=0)
    recent = make_leftover(plan, pid=dead_pid, activity_ns=time.monotonic_ns())
    elsewhere = make_leftover(plan, pid=dead_pid, activity_ns=0, namespace="other")
    storage_harness.storage.sweep()
    storage_harness.idle()
    assert not stale.exists()
    # A timestamp in the future is from another boot.
    assert not fresh.exists()
    assert alive.exists()
    assert recent.exists()
    assert elsewhere.exists()


@pytest.mark.requirement("driver-13-1")
def test_recreate_at_start_sweeps_fresh_files(
    storage_harness: StorageHarness, plan: StreamPlan, make_leftover: Callable[..., Path], dead_pid: int
) -> None:
    recent = make_leftover(plan, pid=dead_pid, activity_ns=time.monotonic_ns())
    alive = make_leftover(plan, pid=os.getpid(), activity_ns=time.monotonic_ns())
    storage_harness.storage.sweep(at_once=True)
    storage_harness.idle()
    assert not recent.exists()
    assert alive.exists()


def test_only_the_canonical_layout_is_swept(
    storage_harness: StorageHarness, make_leftover: Callable[..., Path], plan: StreamPlan
) -> None:
    root = storage_harness.base / f"tensorpool-{user_name()}" / "default"
    others = [root / "notes" / "1", root / "-5" / "1", root / "7" / "data"]
    for directory in others:
        directory.mkdir(parents=True)
        (directory / "header.ring").write_bytes(b"")
        os.utime(directory, (0, 0))
    storage_harness.storage.sweep(at_once=True)
    storage_harness.idle()
    assert all(directory.exists() for directory in others)


def test_stream_with_another_owner_is_not_swept(
    storage_harness: StorageHarness, make_leftover: Callable[..., Path], plan: StreamPlan, dead_pid: int
) -> None:
    stale = make_leftover(plan, pid=dead_pid, activity_ns=0)
    lock = lock_stream(stream_state(storage_harness.base, "default"), "default", plan.stream_id)
    try:
        storage_harness.storage.sweep()
        storage_harness.idle()
        assert stale.exists()
    finally:
        lock.release()
    # The next owner removes the leftovers.
    storage_harness.make(plan)
    assert not stale.exists()


# --- provisions


def test_provisions_are_saved_and_loaded(
    storage_harness: StorageHarness, make_storage_harness: Callable[..., StorageHarness]
) -> None:
    assert storage_harness.storage.load_provisions() is None
    for n in range(10):
        storage_harness.storage.save_provisions({"version": n, "streams": []})
    storage_harness.storage.close()
    assert make_storage_harness().storage.load_provisions() == {"version": 9, "streams": []}
    state = driver_state(storage_harness.base, "default")
    assert [path.name for path in state.iterdir()] == ["provisions.json"]


def test_unreadable_provisions_are_ignored(storage_harness: StorageHarness) -> None:
    path = driver_state(storage_harness.base, "default") / "provisions.json"
    for text in ("{", "", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert storage_harness.storage.load_provisions() is None
    path.write_text(json.dumps({"version": 1}))
    assert storage_harness.storage.load_provisions() == {"version": 1}


def test_failed_save_of_provisions_is_only_logged(
    storage_harness: StorageHarness, caplog: pytest.LogCaptureFixture
) -> None:
    state = driver_state(storage_harness.base, "default")
    (state / "provisions.json").mkdir()
    storage_harness.storage.save_provisions({"version": 1, "streams": []})
    storage_harness.idle()
    assert "could not be saved for the next start" in caplog.text
    assert [path.name for path in state.iterdir()] == ["provisions.json"]


# --- the end of a program


class Forgetful:
    """Has files, and submits its last job while the interpreter shuts down."""

    def __init__(self, base: str, stream_id: int) -> None:
        self._storage = Storage(
            BaseDirs(Path(base)), "default", driver_state(Path(base), "default"), stale_after_ns=1_000_000_000
        )
        self._plan = StreamPlan(stream_id, layout(4, 4096), is_static=True)
        atexit.register(self._end)

    def make(self) -> str:
        self._storage.submit(MakeFiles(self._plan))
        while not (results := self._storage.poll()):
            time.sleep(0.001)
        assert isinstance(results[0], FilesReady)
        self._files = results[0].files
        return str(self._files.directory)

    def _end(self) -> None:
        self._storage.submit(RemoveFiles(self._plan.stream_id, self._files.directory))
        self._storage.submit(MakeFiles(self._plan))
        self._storage.close()


def test_program_that_ends_leaves_no_files(shm_base: Path, free_stream_id: int) -> None:
    with RemoteProcess(Forgetful, str(shm_base), free_stream_id) as other:
        assert Path(other.call("make")).is_dir()
    assert list(shm_base.iterdir()) == []
