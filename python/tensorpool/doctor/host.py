"""What the kernel lets this process have: locked memory, open files, mappings.

The machine and the software on it: clock, Python, numpy, Java.

The directories: may this user write there, and may nobody else who should not.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from .. import _native
from ..shm.epoch_files import user_name
from ..shm.inspect import user_of
from ..state_dir import state_path
from ..units import format_capacity
from .checks import Check, fail, ok, warn
from .memory import ONE_STREAM_BYTES

_FEW_FILES: Final = 256
_SOME_FILES: Final = 1024
# Linux' own default; the media driver and every stream have several mappings each.
_USUAL_MAPPINGS: Final = 65_530


def check_memlock(limit: int, *, wanted: bool) -> Check:
    """`wanted`: the configuration has memory locked."""
    name = "locked memory"
    if limit == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    found = f"{format_capacity(limit)} a process"
    if not wanted:
        return ok(name, f"{found}; the configuration locks none")
    remedy = "LimitMEMLOCK=infinity in the systemd unit, or memlock in /etc/security/limits.conf"
    if limit < ONE_STREAM_BYTES:
        return fail(name, found, "[driver] mlock is set, and not even one stream may be locked.", remedy)
    return warn(
        name, found, f"[driver] mlock is set: room for {limit // ONE_STREAM_BYTES} default streams.", remedy
    )


def check_files(soft: int, hard: int) -> Check:
    name = "open files"
    if soft == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"{soft} a process, at most {most}"
    more = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    remedy = f"ulimit -n {more}, or LimitNOFILE= in the systemd unit"
    if soft < _FEW_FILES:
        return fail(name, found, "A handful of streams uses them up.", remedy)
    if soft < _SOME_FILES:
        return warn(name, found, "A driver of many streams uses them up.", remedy)
    return ok(name, found)


def check_mappings(most: int | None) -> Check:
    name = "memory mappings"
    if most is None:
        return ok(name, "unknown")
    if most < _USUAL_MAPPINGS:
        return warn(
            name, f"{most} a process", "A process that reads many streams uses them up.",
            f"sysctl vm.max_map_count={_USUAL_MAPPINGS}",
        )  # fmt: skip
    return ok(name, f"{most} a process")


def limit_checks(*, wants_mlock: bool) -> list[Check]:
    """All of them, for this process."""
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        most = None
    return [
        check_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], wanted=wants_mlock),
        check_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_mappings(most),
    ]


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


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A directory as the kernel has it; for one that is missing, the nearest above it that is there."""

    path: Path
    there: Path
    uid: int
    mode: int
    is_writable: bool

    @classmethod
    def of(cls, path: Path) -> DirectoryFacts:
        there = path
        while not there.is_dir() and there != there.parent:
            there = there.parent
        status = there.stat()
        return cls(
            path, there, status.st_uid, stat.S_IMODE(status.st_mode), os.access(there, os.W_OK | os.X_OK)
        )

    @property
    def exists(self) -> bool:
        return self.path == self.there

    def words(self) -> str:
        return (
            f"{self.path}, {user_of(self.uid)} {self.mode:04o}"
            if self.exists
            else f"{self.path}, not there yet"
        )


def check_base(base: DirectoryFacts, own: DirectoryFacts, me: int) -> Check:
    """The base directory and, in it, this user's own directory."""
    name = "base directory"
    if own.exists and own.uid != me:
        return fail(
            name,
            own.words(),
            f"Another user made a directory with the name of yours: regions of user id {me} are refused.",
            f"Remove {own.path} (as {user_of(own.uid)} or root), or set [shm] base_dir to another place.",
        )
    where = own if own.exists else base
    if not where.is_writable:
        return fail(
            name, where.words(), "No region can be made.",
            f"Make {where.there} writable for you, or set [shm] base_dir to another place.",
        )  # fmt: skip
    if base.mode & stat.S_IWOTH and not base.mode & stat.S_ISVTX:
        return warn(
            name,
            base.words(),
            "Everybody may rename and remove what others made there.",
            f"chmod +t {base.path}",
        )
    if own.exists and own.mode & 0o022:
        return warn(
            name, own.words(), "Others may make directories among your regions.", f"chmod go-w {own.path}"
        )
    return ok(name, where.words())


def check_state(state: DirectoryFacts, me: int) -> Check:
    """Where epoch marks and locks live."""
    name = "state directory"
    if not state.is_writable:
        return fail(
            name, state.words(), "Epoch marks and locks cannot be kept, so no producer and no driver starts.",
            f"Make {state.there} writable for you, or set XDG_STATE_HOME.",
        )  # fmt: skip
    if state.exists and state.uid != me:
        return warn(
            name,
            state.words(),
            "It belongs to another user, who can change your locks.",
            "Set XDG_STATE_HOME.",
        )
    if state.exists and state.mode & 0o022:
        return warn(
            name, state.words(), "Others can change your locks and epoch marks.", f"chmod go-w {state.path}"
        )
    return ok(name, state.words())


def place_checks(base: Path) -> list[Check]:
    """All of them, on the machine as it is."""
    me = os.geteuid()
    own = base / f"tensorpool-{user_name()}"
    return [
        check_base(DirectoryFacts.of(base), DirectoryFacts.of(own), me),
        check_state(DirectoryFacts.of(state_path()), me),
    ]
