"""Cores and priorities of the threads of a connection and of a role."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorpool as tp
from tensorpool.errors import InvalidConfig
from tests.remote_process import ROOT


def scheduling_by_thread() -> dict[str, tuple[set[int], int]]:
    """Cores and nice value of each thread of this process."""
    threads = {}
    for task in Path("/proc/self/task").iterdir():
        number = int(task.name)
        name = (task / "comm").read_text().strip()
        threads[name] = (os.sched_getaffinity(number), os.getpriority(os.PRIO_PROCESS, number))
    return threads


def test_threads_of_a_connection_have_their_cores_and_priority(
    aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    core, lower = max(cores), min(nice + 4, 19)
    before = scheduling_by_thread()
    monkeypatch.setenv("TENSORPOOL_AERON__CPU_AFFINITY", str(core))
    monkeypatch.setenv("TENSORPOOL_AERON__PRIORITY", f"nice:{lower}")
    monkeypatch.setenv("TENSORPOOL_AERON__IDLE", "rest")
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base):
        threads = scheduling_by_thread()
    of_connection = {name for name, seen in threads.items() if seen == ({core}, lower)}
    # The third is Aeron's client, which names its thread itself.
    assert {"tp-conductor", "tp-media-driver"} < of_connection
    assert len(of_connection) == 3
    assert {name: threads[name] for name in before if name in threads} == before


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
