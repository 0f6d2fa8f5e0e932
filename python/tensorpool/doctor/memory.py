"""Checks of shared memory: size and kind of the filesystem, huge pages, and regions of dead processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..clock import SYSTEM_CLOCK, Clock, age_ns
from ..errors import ConfigError
from ..sbe import MAGIC
from ..shm.epoch_files import HEADER_RING, Mount, is_alive, mount_of, mounts, user_name
from ..shm.inspect import STALE_NS, read_superblock
from ..units import format_bytes, parse_size
from .checks import Check, fail, ok, warn

DEFAULT_STREAM_BYTES: Final = 8 * ((64 << 10) + (1 << 20) + (4 << 20)) + (8 << 10)
"""A stream of the default layout: 8 slots in pools of 64 KiB, 1 MiB and 4 MiB."""
_AMPLE_BYTES: Final = 512 << 20
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})


@dataclass(frozen=True, slots=True)
class Space:
    """Size and free space of a filesystem."""

    total_bytes: int
    free_bytes: int

    @classmethod
    def from_path(cls, path: Path) -> Space:
        """The space of the filesystem of `path`."""
        status = os.statvfs(path)
        return cls(status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)


def check_space(base: Path, space: Space, mount: Mount | None) -> Check:
    """Finding on size and kind of the filesystem of the regions."""
    name = "shared memory"
    kind = "an unknown filesystem" if mount is None else mount.kind
    found = f"{base} on {kind}: {format_bytes(space.free_bytes)} free of {format_bytes(space.total_bytes)}"
    if mount is not None and "ro" in mount.options:
        return fail(
            name, f"{found}, read-only", "No region can be created.", f"Remount {mount.point} read-write."
        )
    if space.free_bytes < DEFAULT_STREAM_BYTES:
        return fail(
            name,
            found,
            f"A stream of the default layout ({format_bytes(DEFAULT_STREAM_BYTES)}) does not fit.",
            _enlarge(base, mount),
        )
    if mount is not None and mount.kind not in _IN_MEMORY:
        return warn(
            name,
            found,
            "This is not a memory filesystem: frames are written back to a disk.",
            'Set [shm] base_dir = "/dev/shm", or mount a tmpfs there.',
        )
    if space.free_bytes < _AMPLE_BYTES:
        return warn(
            name,
            found,
            f"Room for {space.free_bytes // DEFAULT_STREAM_BYTES} streams of the default layout, no more.",
            _enlarge(base, mount),
        )
    return ok(name, found)


def _enlarge(base: Path, mount: Mount | None) -> str:
    point = base if mount is None else mount.point
    return f"mount -o remount,size=4G {point}   (in a container: --shm-size=4g)"


def check_hugepages(meminfo: str, known: Iterable[Mount], base_mount: Mount | None, *, wanted: bool) -> Check:
    """Finding on huge pages. `wanted`: the configuration has streams that need them."""
    name = "huge pages"
    figures = parse_meminfo(meminfo)
    total, free, page_kib = (
        figures.get(key, 0) for key in ("HugePages_Total", "HugePages_Free", "Hugepagesize")
    )
    points = [str(mount.point) for mount in known if mount.kind == "hugetlbfs"]
    where = f"hugetlbfs at {', '.join(points)}" if points else "no hugetlbfs is mounted"
    found = f"{free} of {total} free, {page_kib} KiB each; {where}"
    if not wanted:
        return ok(name, f"{found}; the configuration needs none")
    if total == 0:
        return fail(
            name, found, "Streams that require huge pages are rejected.",
            "echo 512 > /proc/sys/vm/nr_hugepages   (keep it in /etc/sysctl.d: vm.nr_hugepages)",
        )  # fmt: skip
    if base_mount is None or base_mount.kind != "hugetlbfs":
        return fail(
            name, found, "The base directory is not on hugetlbfs, so such streams are rejected.",
            "mount -t hugetlbfs none /dev/hugepages, and set [shm] base_dir to it.",
        )  # fmt: skip
    if free == 0:
        return warn(
            name, found, "All huge pages are in use: the next stream is rejected.", "Raise vm.nr_hugepages."
        )
    return ok(name, found)


_HUGE_OPTION: Final = "huge="


def check_transparent_hugepages(base: Path, mount: Mount | None) -> Check:
    """Finding on transparent huge pages of the filesystem of the regions. They are never
    required: the check is always ok, and says what to type to have them."""
    name = "transparent huge pages"
    if mount is None or mount.kind != "tmpfs":
        return ok(name, f"{base} is not on tmpfs, which alone has them for shared memory")
    chosen = next((option for option in mount.options if option.startswith(_HUGE_OPTION)), "huge=never")
    if chosen == "huge=never":
        return ok(
            name,
            f"{mount.point} has none. With them, copies of large frames need fewer address translations: "
            f"mount -o remount,huge=advise {mount.point}",
        )
    return ok(name, f"{mount.point} has them ({chosen}); regions of 2 MiB and more use them")


def parse_meminfo(meminfo: str) -> dict[str, int]:
    """The figures of /proc/meminfo, in its own units."""
    figures = {}
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        number, *_ = rest.split() or [""]
        if number.isdecimal():
            figures[key] = int(number)
    return figures


def read_meminfo() -> str:
    """The text of /proc/meminfo; empty where there is none."""
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""


def read_last_level_cache(directory: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Bytes of the last-level cache of the first core; None where the system does not say."""
    caches = []
    for cache in directory.glob("index*"):
        try:
            level, size = ((cache / name).read_text(encoding="ascii").strip() for name in ("level", "size"))
            caches.append((int(level), parse_size(f"{size}iB" if size[-1:] in "KM" else size)))
        except (OSError, ValueError, ConfigError):
            continue
    _, size_bytes = max(caches, default=(0, None))
    return size_bytes


@dataclass(frozen=True, slots=True)
class Leftover:
    """An epoch directory whose owner process is dead."""

    directory: Path
    pid: int
    size_bytes: int


def find_leftovers(base: Path, *, clock: Clock = SYSTEM_CLOCK) -> list[Leftover]:
    """Epochs of this user whose owner is dead and whose activity timestamp is stale. Removes nothing."""
    leftovers = []
    for header in base.glob(f"tensorpool-{user_name()}/*/*/*/{HEADER_RING}"):
        head = read_superblock(header)
        if head is None or head.magic != MAGIC:
            continue
        age = age_ns(head.activity_timestamp_ns, clock)
        if not 0 <= age <= STALE_NS and not is_alive(head.pid):
            leftovers.append(Leftover(header.parent, head.pid, _size(header.parent)))
    return leftovers


def _size(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total


def check_leftovers(leftovers: list[Leftover]) -> Check:
    """Finding on the regions of dead processes."""
    name = "leftovers"
    if not leftovers:
        return ok(name, "no regions of dead processes")
    total = sum(leftover.size_bytes for leftover in leftovers)
    noun = "epoch" if len(leftovers) == 1 else "epochs"
    directories = ", ".join(str(leftover.directory) for leftover in leftovers[:3])
    more = ", …" if len(leftovers) > 3 else ""
    return warn(
        name,
        f"{len(leftovers)} {noun} of dead processes, {format_bytes(total)}: {directories}{more}",
        "They use memory until the next owner of the stream removes them.",
        "Start the stream's producer or driver again, or remove the directories.",
    )


def memory_checks(base: Path, *, wants_hugepages: bool) -> list[Check]:
    """Findings on shared memory below the base directory."""
    if not base.is_dir():
        if base.exists():
            found, remedy = f"{base} is not a directory", 'Set [shm] base_dir = "/dev/shm".'
        else:
            found, remedy = f"{base} does not exist", f"Create it: mkdir -m 700 {base}"
        return [fail("shared memory", found, "No region can be created.", remedy)]
    known = mounts()
    mount = mount_of(base, known)
    return [
        check_space(base, Space.from_path(base), mount),
        check_hugepages(read_meminfo(), known, mount, wanted=wants_hugepages),
        check_transparent_hugepages(base, mount),
        check_leftovers(find_leftovers(base)),
    ]
