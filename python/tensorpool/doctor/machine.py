"""The machine and the software on it: clock, Python, numpy, Java."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

from .. import _native
from .check import Check, fail, ok, warn

_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
# These are read without a system call, or by one instruction; the others take a microsecond and more.
_FAST_CLOCKS: Final = frozenset(
    {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"}
)
_JAVA_TIMEOUT_S: Final = 20.0


def check_clock(source: str | None) -> Check:
    name = "clock"
    if source is None:
        return ok(name, "its source is not known here")
    if source in _FAST_CLOCKS:
        return ok(name, source)
    return warn(
        name, source, "Reading the time takes a system call: every frame and every wait pays for it.",
        "Boot with clocksource=tsc where the processor has an invariant TSC.",
    )  # fmt: skip


def check_system(system: str, byte_order: str, cores: int) -> Check:
    name = "machine"
    found = f"{system}, {cores} cores, {byte_order}-endian"
    if not system.startswith("Linux") or byte_order != "little":
        return fail(
            name, found, "Regions and locks need Linux on a little-endian machine.", "Use another machine."
        )
    if cores < 2:
        return warn(
            name, found, "Producer, consumer and media driver take turns: latencies are in milliseconds.",
            "Give it two cores or more.",
        )  # fmt: skip
    return ok(name, found)


def check_java(version: str | None) -> Check:
    name = "Java"
    if version is None:
        return ok(name, "none found; only the interoperability tests need it")
    return ok(name, version)


def java_version() -> str | None:
    """The first line of `java -version`."""
    java = shutil.which("java")
    if java is None:
        return None
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (told.stderr or told.stdout).splitlines()
    return lines[0] if told.returncode == 0 and lines else None


def machine_checks(package_version: str) -> list[Check]:
    """All of them, on the machine as it is."""
    try:
        source = _CLOCK_SOURCE.read_text().strip()
    except OSError:
        source = None
    software = f"tensorpool {package_version}, Python {platform.python_version()}, numpy {np.__version__}"
    native = Path(_native.__file__).name if getattr(_native, "__file__", None) else "built in"
    return [
        check_system(f"{platform.system()} {platform.release()}", sys.byteorder, _cores()),
        check_clock(source),
        ok("software", f"{software}, native module {native}"),
        check_java(java_version()),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
