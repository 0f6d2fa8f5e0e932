"""The machine that figures come from, and how much of it others used meanwhile."""

from __future__ import annotations

import os
import platform
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_TICKS_HZ = os.sysconf("SC_CLK_TCK")
_QUIET_LOOK_S = 0.25


def describe() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "last-level cache": _last_level_cache(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def _last_level_cache() -> str:
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return sizes[-1].read_text(encoding="ascii").strip() if sizes else "unknown"


class Usage:
    """Processor time, in cores, that processes other than ours used during a block."""

    def __init__(self) -> None:
        self.others = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        began, all_s, own_s = time.monotonic(), _all_s(), _own_s()
        yield
        elapsed = time.monotonic() - began
        self.others = max(0.0, (_all_s() - all_s) - (_own_s() - own_s)) / max(elapsed, 1e-9)


def _all_s() -> float:
    """user, nice, system, irq, softirq and steal: whatever kept a core from us."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS_HZ


def _own_s() -> float:
    """This process and its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def wait_until_quiet(limit: float, deadline: float) -> bool:
    """Waits for a moment in which others use less than `limit` cores. False if none came by the deadline."""
    while time.monotonic() < deadline:
        usage = Usage()
        with usage.watched():
            time.sleep(_QUIET_LOOK_S)
        if usage.others < limit:
            return True
    return False
