"""Checks of the host: process limits, clock and software, and the access rights of directories."""

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
from ..durable import state_path
from ..shm.epoch_files import user_name
from ..shm.inspect import user_of
from ..units import format_bytes
from .checks import Check, fail, ok, warn
from .memory import DEFAULT_STREAM_BYTES

_FEW_FILES: Final = 256
_SOME_FILES: Final = 1024
_DEFAULT_MAPPINGS: Final = 65_530
"""Linux' default. The media driver and every stream have several mappings each."""
_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_FAST_CLOCKS: Final = frozenset(
    {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"}
)
"""Clocks that are read without a system call; the others take a microsecond and more."""
_JAVA_TIMEOUT_S: Final = 20.0
NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")

# --- process limits


def check_memlock(limit: int, *, wanted: bool) -> Check:
    """Finding on the limit of locked memory. `wanted`: the configuration locks memory."""
    name = "locked memory"
    if limit == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    found = f"{format_bytes(limit)} a process"
    if not wanted:
        return ok(name, f"{found}; the configuration locks none")
    remedy = "LimitMEMLOCK=infinity in the systemd unit, or memlock in /etc/security/limits.conf"
    if limit < DEFAULT_STREAM_BYTES:
        return fail(name, found, "[driver] mlock is set, and the limit is too small for one stream.", remedy)
    return warn(
        name,
        found,
        f"[driver] mlock is set: room for {limit // DEFAULT_STREAM_BYTES} default streams.",
        remedy,
    )


def check_files(soft: int, hard: int) -> Check:
    """Finding on the limit of open files."""
    name = "open files"
    if soft == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    maximum = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"{soft} a process, at most {maximum}"
    advised = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    remedy = f"ulimit -n {advised}, or LimitNOFILE= in the systemd unit"
    if soft < _FEW_FILES:
        return fail(name, found, "A few streams use them up.", remedy)
    if soft < _SOME_FILES:
        return warn(name, found, "A driver of many streams uses them up.", remedy)
    return ok(name, found)


def check_mappings(limit: int | None) -> Check:
    """Finding on the limit of memory mappings; None if it is not known."""
    name = "memory mappings"
    if limit is None:
        return ok(name, "unknown")
    if limit < _DEFAULT_MAPPINGS:
        return warn(
            name, f"{limit} a process", "A process that reads many streams uses them up.",
            f"sysctl vm.max_map_count={_DEFAULT_MAPPINGS}",
        )  # fmt: skip
    return ok(name, f"{limit} a process")


def limit_checks(*, wants_mlock: bool) -> list[Check]:
    """Findings on the limits of this process."""
    try:
        mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        mappings = None
    return [
        check_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], wanted=wants_mlock),
        check_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_mappings(mappings),
    ]


# --- machine and software


def check_clock(source: str | None) -> Check:
    """Finding on the kernel's clock source; None if it is not known."""
    name = "clock"
    if source is None:
        return ok(name, "its source is not known")
    if source in _FAST_CLOCKS:
        return ok(name, source)
    return warn(
        name, source, "Reading the time takes a system call, for every frame and every wait.",
        "Boot with clocksource=tsc where the processor has an invariant TSC.",
    )  # fmt: skip


def check_system(system: str, byte_order: str, cores: int) -> Check:
    """Finding on the operating system and the processor."""
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
    """Finding on Java, which only the tests need."""
    name = "Java"
    if version is None:
        return ok(name, "none found; only the interoperability tests need it")
    return ok(name, version)


def java_version() -> str | None:
    """The first line of `java -version`; None without Java."""
    java = shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stderr or done.stdout).splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def machine_checks(package_version: str) -> list[Check]:
    """Findings on this machine and its software."""
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


# --- directories


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """Owner and mode of a directory, or of its nearest parent that exists."""

    path: Path
    existing: Path
    uid: int
    mode: int
    is_writable: bool

    @classmethod
    def from_path(cls, path: Path) -> DirectoryFacts:
        """The facts of a directory, which need not exist."""
        existing = path
        while not existing.is_dir() and existing != existing.parent:
            existing = existing.parent
        status = existing.stat()
        writable = os.access(existing, os.W_OK | os.X_OK)
        return cls(path, existing, status.st_uid, stat.S_IMODE(status.st_mode), writable)

    @property
    def exists(self) -> bool:
        """Whether the directory itself exists."""
        return self.path == self.existing

    def describe(self) -> str:
        """Path, owner and mode."""
        if not self.exists:
            return f"{self.path}, does not exist yet"
        return f"{self.path}, {user_of(self.uid)} {self.mode:04o}"


def check_base(base: DirectoryFacts, own: DirectoryFacts, me: int) -> Check:
    """Finding on the base directory and, in it, this user's own directory."""
    name = "base directory"
    if own.exists and own.uid != me:
        return fail(
            name,
            own.describe(),
            f"Another user owns the directory with your name: regions of user id {me} are rejected.",
            f"Remove {own.path} (as {user_of(own.uid)} or root), or set [shm] base_dir to another directory.",
        )
    where = own if own.exists else base
    if not where.is_writable:
        return fail(
            name, where.describe(), "No region can be created.",
            f"Make {where.existing} writable for you, or set [shm] base_dir to another directory.",
        )  # fmt: skip
    if base.mode & stat.S_IWOTH and not base.mode & stat.S_ISVTX:
        return warn(
            name,
            base.describe(),
            "Every user may rename and remove the files of others there.",
            f"chmod +t {base.path}",
        )
    if own.exists and own.mode & 0o022:
        return warn(
            name,
            own.describe(),
            "Other users may create directories among your regions.",
            f"chmod go-w {own.path}",
        )
    return ok(name, where.describe())


def check_state(state: DirectoryFacts, me: int) -> Check:
    """Finding on the directory of epoch marks and locks."""
    name = "state directory"
    if not state.is_writable:
        return fail(
            name, state.describe(), "No epoch marks and locks: no producer and no driver starts.",
            f"Make {state.existing} writable for you, or set XDG_STATE_HOME.",
        )  # fmt: skip
    if state.exists and state.uid != me:
        return warn(
            name,
            state.describe(),
            "It belongs to another user, who can change your locks.",
            "Set XDG_STATE_HOME.",
        )
    if state.exists and state.mode & 0o022:
        return warn(
            name,
            state.describe(),
            "Other users can change your locks and epoch marks.",
            f"chmod go-w {state.path}",
        )
    return ok(name, state.describe())


def directory_checks(base: Path) -> list[Check]:
    """Findings on the directories of this user."""
    me = os.geteuid()
    own = base / f"tensorpool-{user_name()}"
    return [
        check_base(DirectoryFacts.from_path(base), DirectoryFacts.from_path(own), me),
        check_state(DirectoryFacts.from_path(state_path()), me),
    ]


# --- GPUs


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What this machine has of CUDA."""

    has_device_files: bool
    """Whether NVIDIA's kernel driver has made its device files."""
    has_bindings: bool
    """Whether the extra `cuda` is installed."""
    devices: tuple[str, ...] = ()
    """The names of the devices that CUDA sees."""
    registers_read_only: bool = True
    """Whether consumers can register their pools."""
    fault: str = ""
    """Why CUDA could not be asked."""


def read_gpu_facts() -> GpuFacts:
    """What this machine has of CUDA; opens no device."""
    has_files = NVIDIA_DEVICE.exists()
    try:
        from cuda.bindings import runtime
    except ImportError:
        return GpuFacts(has_files, has_bindings=False)
    if not has_files:
        return GpuFacts(has_device_files=False, has_bindings=True)
    try:
        error, count = runtime.cudaGetDeviceCount()
    except RuntimeError as loading:
        # Older bindings look for the library of the driver here.
        return GpuFacts(has_files, has_bindings=True, fault=str(loading))
    if int(error) != 0:
        return GpuFacts(has_files, has_bindings=True, fault=error.name)
    attribute = runtime.cudaDeviceAttr.cudaDevAttrHostRegisterReadOnlySupported
    names, registers = [], True
    for ordinal in range(count):
        _, properties = runtime.cudaGetDeviceProperties(ordinal)
        names.append(properties.name.decode())
        _, supported = runtime.cudaDeviceGetAttribute(attribute, ordinal)
        registers = registers and bool(supported)
    return GpuFacts(has_files, has_bindings=True, devices=tuple(names), registers_read_only=registers)


def check_gpu(facts: GpuFacts) -> Check:
    """Finding on GPUs: whether consumers can have `device="cuda:0"`, and at full speed."""
    name = "GPU"
    if not facts.has_device_files:
        return ok(name, "none")
    if not facts.has_bindings:
        return warn(
            name,
            "NVIDIA's driver is loaded; its Python bindings are not installed",
            "consumers cannot copy frames to the GPU (device=)",
            "pip install 'aeron-tensorpool[cuda]'",
        )
    if facts.fault or not facts.devices:
        return warn(
            name,
            f"CUDA finds no device ({facts.fault or 'none'})",
            "consumers cannot copy frames to the GPU (device=)",
            "compare with nvidia-smi; in a container, give it the GPUs; install a driver of CUDA's version",
        )
    found = ", ".join(f"cuda:{i} {device}" for i, device in enumerate(facts.devices))
    if not facts.registers_read_only:
        return warn(
            name,
            f"{found}; read-only memory cannot be registered",
            "copies of consumers go over pageable memory, several times slower",
            "install a newer driver of NVIDIA",
        )
    return ok(name, found)
