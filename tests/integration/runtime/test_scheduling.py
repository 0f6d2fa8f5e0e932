"""Cores and priorities of the threads of a connection and of a role."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tensorpool as tp
from tensorpool.errors import InvalidConfig
from tests.remote_process import ROOT


class ThreadScheduling(NamedTuple):
    """Cores and nice value of a thread."""

    cores: set[int]
    nice: int


def scheduling_by_thread() -> dict[int, ThreadScheduling]:
    """The threads of this process by number: two may have one name, until a new one has set its own."""
    threads = {}
    for task in Path("/proc/self/task").iterdir():
        number = int(task.name)
        # A thread may end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            cores, nice = os.sched_getaffinity(number), os.getpriority(os.PRIO_PROCESS, number)
            threads[number] = ThreadScheduling(cores, nice)
    return threads


def thread_names() -> set[str]:
    return {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}


def test_threads_of_a_connection_have_their_cores_and_priority(
    aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    core, lower = max(cores), min(nice + 4, 19)
    before = scheduling_by_thread()
    monkeypatch.setenv("TENSORPOOL_AERON__CPU_AFFINITY", str(core))
    monkeypatch.setenv("TENSORPOOL_AERON__PRIORITY", f"nice:{lower}")
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base):

        def of_connection() -> list[ThreadScheduling]:
            return [seen for number, seen in scheduling_by_thread().items() if number not in before]

        # The third is Aeron's client.
        wait_until(lambda: of_connection().count(ThreadScheduling({core}, lower)) == 3)
        assert {"tp-conductor", "tp-media-driver"} <= thread_names()
        threads = scheduling_by_thread()
    assert all(threads.get(number, seen) == seen for number, seen in before.items())


def test_real_time_priority_of_threads_that_never_sleep_is_refused(
    aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_AERON__PRIORITY", "fifo:10")
    monkeypatch.setenv("TENSORPOOL_AERON__IDLE", "spin")
    with pytest.raises(InvalidConfig, match="would stop its core"):
        tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base)


def test_role_with_cores_that_do_not_exist_ends_with_one_sentence(aeron_dir: Path) -> None:
    command = [sys.executable, "-m", "tensorpool", "media-driver", "--aeron-dir", str(aeron_dir)]
    ended = subprocess.run(
        [*command, "--set", "runtime.cpu_affinity=9999"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "cpu_affinity [9999]: this process may use the cores" in ended.stderr
    assert "Traceback" not in ended.stderr
