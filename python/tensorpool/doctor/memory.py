"""Shared memory: is there enough, is it of the right kind, are huge pages there, and what was left in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..clock import SYSTEM_CLOCK, Clock
from ..sbe import MAGIC
from ..shm.epoch_files import HEADER_RING, Mount, is_alive, mount_of, mounts, user_name
from ..shm.inspect import STALE_NS, read_superblock
from ..units import format_capacity
from .checks import Check, fail, ok, warn

# A stream that nobody has described: 8 slots of 64 KiB, 1 MiB and 4 MiB.
ONE_STREAM_BYTES: Final = 8 * ((64 << 10) + (1 << 20) + (4 << 20)) + (8 << 10)
_AMPLE_BYTES: Final = 512 << 20
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})


@dataclass(frozen=True, slots=True)
class Space:
    """A filesystem's size."""

    total_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, path: Path) -> Space:
        found = os.statvfs(path)
        return cls(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)


def check_space(base: Path, space: Space, mount: Mount | None) -> Check:
    """Size and kind of the filesystem that regions are made on."""
    name = "shared memory"
    kind = "an unknown filesystem" if mount is None else mount.kind
    found = (
        f"{base} on {kind}: {format_capacity(space.free_bytes)} free of {format_capacity(space.total_bytes)}"
    )
    if mount is not None and "ro" in mount.options:
        return fail(
            name, f"{found}, read-only", "No region can be made.", f"Remount {mount.point} read-write."
        )
    if space.free_bytes < ONE_STREAM_BYTES:
        return fail(
            name,
            found,
            f"Not even one stream of the default layout ({format_capacity(ONE_STREAM_BYTES)}) fits.",
            _enlarge(base, mount),
        )
    if mount is not None and mount.kind not in _IN_MEMORY:
        return warn(
            name,
            found,
            "This is no memory filesystem: frames are written back to a disk.",
            'Set [shm] base_dir = "/dev/shm", or mount a tmpfs there.',
        )
    if space.free_bytes < _AMPLE_BYTES:
        return warn(
            name,
            found,
            f"Room for {space.free_bytes // ONE_STREAM_BYTES} streams of the default layout, no more.",
            _enlarge(base, mount),
        )
    return ok(name, found)


def _enlarge(base: Path, mount: Mount | None) -> str:
    point = base if mount is None else mount.point
    return f"mount -o remount,size=4G {point}   (in a container: --shm-size=4g)"


def check_hugepages(meminfo: str, known: Iterable[Mount], base_mount: Mount | None, *, wanted: bool) -> Check:
    """`wanted`: the configuration has streams that need huge pages."""
    name = "huge pages"
    figures = dict(_figures(meminfo))
    total, free, page_kib = (
        figures.get(key, 0) for key in ("HugePages_Total", "HugePages_Free", "Hugepagesize")
    )
    points = [str(one.point) for one in known if one.kind == "hugetlbfs"]
    where = f"hugetlbfs at {', '.join(points)}" if points else "no hugetlbfs is mounted"
    found = f"{free} of {total} free, {page_kib} KiB each; {where}"
    if not wanted:
        return ok(name, f"{found}; the configuration needs none")
    if total == 0:
        return fail(
            name, found, "Streams that require huge pages are refused.",
            "echo 512 > /proc/sys/vm/nr_hugepages   (keep it in /etc/sysctl.d: vm.nr_hugepages)",
        )  # fmt: skip
    if base_mount is None or base_mount.kind != "hugetlbfs":
        return fail(
            name, found, "The base directory is not on hugetlbfs, so such streams are refused.",
            "mount -t hugetlbfs none /dev/hugepages, and set [shm] base_dir to it.",
        )  # fmt: skip
    if free == 0:
        return warn(
            name, found, "All huge pages are in use: the next stream is refused.", "Raise vm.nr_hugepages."
        )
    return ok(name, found)


def _figures(meminfo: str) -> Iterator[tuple[str, int]]:
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            yield key, int(number[0])


@dataclass(frozen=True, slots=True)
class Leftover:
    """An epoch directory whose owner is dead."""

    directory: Path
    pid: int
    size_bytes: int


def find_leftovers(base: Path, *, clock: Clock = SYSTEM_CLOCK) -> list[Leftover]:
    """Epochs of this user whose owner is dead and silent. Looks, and removes nothing."""
    found = []
    for header in base.glob(f"tensorpool-{user_name()}/*/*/*/{HEADER_RING}"):
        head = read_superblock(header)
        if head is None or head.magic != MAGIC:
            continue
        age = clock.monotonic_ns() - head.activity_timestamp_ns
        if not 0 <= age <= STALE_NS and not is_alive(head.pid):
            found.append(Leftover(header.parent, head.pid, _size(header.parent)))
    return found


def _size(directory: Path) -> int:
    total = 0
    for one in directory.iterdir():
        try:
            total += one.lstat().st_size
        except OSError:
            continue
    return total


def check_leftovers(found: list[Leftover]) -> Check:
    name = "leftovers"
    if not found:
        return ok(name, "no regions of dead processes")
    total = sum(one.size_bytes for one in found)
    words = "epoch" if len(found) == 1 else "epochs"
    some = ", ".join(str(one.directory) for one in found[:3]) + (", …" if len(found) > 3 else "")
    return warn(
        name,
        f"{len(found)} {words} of dead processes, {format_capacity(total)}: {some}",
        "They take memory until the next owner of the stream removes them.",
        "Start the stream's producer or driver again, or remove the directories.",
    )


def memory_checks(base: Path, *, wants_hugepages: bool) -> list[Check]:
    """All of them, on the machine as it is."""
    if not base.is_dir():
        missing = f"{base} is no directory"
        return [fail("shared memory", missing, "No region can be made.", 'Set [shm] base_dir = "/dev/shm".')]
    known = mounts()
    mount = mount_of(base, known)
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        meminfo = ""
    return [
        check_space(base, Space.of(base), mount),
        check_hugepages(meminfo, known, mount, wanted=wants_hugepages),
        check_leftovers(find_leftovers(base)),
    ]
