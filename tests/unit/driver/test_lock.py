"""Locks of namespaces and control streams, and their holders (driver §2.1)."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from tensorpool.driver import read_holder
from tensorpool.driver.lock import DriverLock, Holder, driver_state, qualified_namespace
from tensorpool.errors import DriverAlreadyRunning
from tests.remote_process import RemoteProcess
from tests.unit.driver.roles import LockHolder, holder


@pytest.mark.requirement("driver-2.1-1")
def test_second_driver_is_refused_with_the_holder(tmp_path: Path) -> None:
    with RemoteProcess(LockHolder, str(tmp_path)) as first:
        pid = first.call("pid")
        with pytest.raises(DriverAlreadyRunning) as caught:
            DriverLock(tmp_path, "default", holder())
        message = str(caught.value)
        assert f"namespace 'default' below {tmp_path} has a driver already" in message
        assert f"the service, process {pid} of " in message
        assert "media driver /dev/shm/aeron-x" in message
        assert "attach to that driver, stop it, or choose another namespace" in message
        assert (caught.value.pid, caught.value.embedded) == (pid, False)
        holder_read = read_holder(tmp_path, "default")
        assert holder_read is not None
        assert holder_read == Holder.parse(caught.value.holder)
        assert (holder_read.pid, holder_read.control_stream_id, holder_read.embedded) == (pid, 1000, False)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", holder_read.started)
        # Reading the holder does not take the lock.
        assert first.call("read", base=str(tmp_path)) == str(holder_read)
    assert read_holder(tmp_path, "default") is None


def test_lock_error_names_an_embedded_driver(tmp_path: Path) -> None:
    with RemoteProcess(LockHolder, str(tmp_path), True) as first:
        pid = first.call("pid")
        with pytest.raises(DriverAlreadyRunning, match=f"embedded in process {pid} of ") as caught:
            DriverLock(tmp_path, "default", holder())
        assert caught.value.embedded is True


@pytest.mark.requirement("driver-2.1-1")
def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    with RemoteProcess(LockHolder, str(tmp_path)) as first:
        first.call("pid")
        first.kill()
        # The file remains; the lock has ended.
        assert (driver_state(tmp_path, "default") / "lock").exists()
        assert read_holder(tmp_path, "default") is None
        lock = DriverLock(tmp_path, "default", holder())
    holder_read = read_holder(tmp_path, "default")
    assert holder_read is not None
    assert holder_read.pid == os.getpid()
    lock.release()


def test_namespaces_instances_and_bases_have_separate_locks(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    locks = [
        DriverLock(tmp_path, "default", holder(control=1)),
        DriverLock(tmp_path, qualified_namespace("default", "a"), holder(control=2)),
        DriverLock(tmp_path, "lab", holder(control=3)),
        DriverLock(other, "default", holder(control=4)),
    ]
    assert read_holder(tmp_path, "default", "a") is not None
    assert read_holder(tmp_path, "default", "b") is None
    for lock in locks:
        lock.release()


@pytest.mark.requirement("driver-2.1-1")
def test_control_stream_has_one_driver(tmp_path: Path) -> None:
    first = DriverLock(tmp_path, "a", holder("a", control=1000))
    with pytest.raises(DriverAlreadyRunning) as caught:
        DriverLock(tmp_path, "b", holder("b", control=1000))
    assert "control stream 1000 of the media driver /dev/shm/aeron-x has a driver" in str(caught.value)
    assert "namespace 'a'" in str(caught.value)
    # The namespace's lock is released again.
    assert read_holder(tmp_path, "b") is None
    second = DriverLock(tmp_path, "b", holder("b", control=1001))
    third = DriverLock(tmp_path, "c", holder("c", aeron_dir="/dev/shm/aeron-y"))
    for lock in (first, second, third):
        lock.release()


def test_symlinked_base_has_the_same_lock(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    lock = DriverLock(tmp_path, "default", holder())
    assert read_holder(link, "default") is not None
    lock.release()


@pytest.mark.parametrize("text", ["", "pid 7", "[]", "{}", '{"pid": "7"}', "\x00"])
def test_holder_without_text_is_another_process(tmp_path: Path, text: str) -> None:
    assert Holder.parse(text) is None
    lock = DriverLock(tmp_path, "default", holder())
    (driver_state(tmp_path, "default") / "lock").write_text(text)
    holder_read = read_holder(tmp_path, "default")
    assert holder_read == Holder()
    assert str(holder_read) == "another process"
    lock.release()


def test_one_of_many_concurrent_drivers_gets_the_lock(tmp_path: Path) -> None:
    won: list[DriverLock] = []
    lost: list[DriverAlreadyRunning] = []
    barrier = threading.Barrier(8)

    def attempt() -> None:
        barrier.wait()
        try:
            won.append(DriverLock(tmp_path, "default", holder()))
        except DriverAlreadyRunning as error:
            lost.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].release()
