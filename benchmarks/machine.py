"""Description of the machine, and its load by other processes during a measurement."""

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
_QUIET_SAMPLE_S = 0.25


def describe() -> dict[str, str]:
    """Hardware and software of this machine, for the report."""
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
    """Processor time, in cores, that other processes used during a `with` block."""

    def __init__(self) -> None:
        self.others = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sets `others` at the end of the block."""
        began, all_s, own_s = time.monotonic(), _machine_cpu_s(), _own_cpu_s()
        yield
        elapsed = time.monotonic() - began
        self.others = max(0.0, (_machine_cpu_s() - all_s) - (_own_cpu_s() - own_s)) / max(elapsed, 1e-9)


def _machine_cpu_s() -> float:
    """Processor time of the whole machine: user, nice, system, irq, softirq and steal."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS_HZ


def _own_cpu_s() -> float:
    """Processor time of this process and of its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def wait_until_quiet(limit: float, deadline: float) -> bool:
    """Waits until other processes use less than `limit` cores. Returns False at the deadline."""
    while time.monotonic() < deadline:
        usage = Usage()
        with usage.watched():
            time.sleep(_QUIET_SAMPLE_S)
        if usage.others < limit:
            return True
    return False
