"""Region files of an epoch: paths, creation, superblocks, removal after a dead owner, and filesystem mounts.

Implements wire §6, §7.1 and §15.21a.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from .. import _native
from ..clock import age_ns

SUPERBLOCK_BYTES: Final = 64
"""Bytes before the first slot of a region (wire §7.1)."""
HEADER_SLOT_BYTES: Final = 256
"""Bytes of one slot of a header ring (wire §8)."""
HEADER_RING: Final = "header.ring"


class Superblock(NamedTuple):
    """The first 64 bytes of a region (wire §7.1)."""

    magic: int
    layout_version: int
    epoch: int
    stream_id: int
    region_type: int
    pool_id: int
    nslots: int
    slot_bytes: int
    stride_bytes: int
    pid: int
    start_timestamp_ns: int
    activity_timestamp_ns: int

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """The fields of a superblock, unchecked. Raises ValueError for fewer than 64 bytes."""
        return cls(**_native.read_superblock(content).to_json())


class PoolFile(NamedTuple):
    """One payload pool of an epoch and the URI of its region."""

    pool_id: int
    stride_bytes: int
    uri: str


def user_name() -> str:
    """The effective user's name in the form that directory names use; the uid where it has no name."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return _native.sanitize_user(name)


def stream_dir(base: Path, namespace: str, stream_id: int) -> Path:
    """`<base>/tensorpool-<user>/<namespace>/<stream_id>`: wire §15.21a.3."""
    return base / f"tensorpool-{user_name()}" / namespace / str(stream_id)


@dataclass(frozen=True, slots=True)
class EpochFiles:
    """The regions of one epoch, owned by this process."""

    directory: Path
    epoch: int
    nslots: int
    header_uri: str
    pools: list[PoolFile]
    numa_node: int | None = None
    """The NUMA node of all pages; None if there are several, or it is not known."""

    @property
    def paths(self) -> list[Path]:
        """All region files."""
        return [
            self.directory / HEADER_RING,
            *(self.directory / f"{pool.pool_id}.pool" for pool in self.pools),
        ]

    @classmethod
    def from_native(cls, regions: _native.EpochRegions, epoch: int, nslots: int) -> Self:
        """The files that `_native.create_epoch` or `_native.assign_epoch` returned."""
        pools = [PoolFile(pool.pool_id, pool.stride_bytes, pool.uri) for pool in regions.pools]
        return cls(Path(regions.directory), epoch, nslots, regions.header_uri, pools)

    def remove(self) -> None:
        """Removes the regions, and the directories above them that are empty then."""
        with suppress(FileNotFoundError):
            _native.remove_epoch(self.directory)
        stream = self.directory.parent
        with suppress(OSError):
            for directory in (stream, stream.parent, stream.parent.parent):
                directory.rmdir()


@dataclass(frozen=True, slots=True)
class RegionAccess:
    """Who may use the files of an epoch, and on which pages they are."""

    dir_mode: int = 0o700
    file_mode: int = 0o600
    group: int | None = None
    require_hugepages: bool = False


PRIVATE: Final = RegionAccess()
"""Files of this user alone, on ordinary pages unless the base directory is on hugetlbfs."""


class PoolSpec(NamedTuple):
    """Id and slot size of one payload pool."""

    pool_id: int
    stride_bytes: int


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """The regions of an epoch that is to be created, as `_native.create_epoch` takes them."""

    base: Path
    namespace: str
    stream_id: int
    epoch: int
    nslots: int
    pools: Sequence[PoolSpec]
    access: RegionAccess = PRIVATE
    prefault: bool = False
    """Touch every page now, so that no frame waits for the kernel to clear one."""
    user: str = field(default_factory=user_name)
    """The user in the path."""


def create_epoch(spec: EpochSpec) -> EpochFiles:
    """Creates the regions, fully allocated. A failure leaves no files."""
    return EpochFiles.from_native(_native.create_epoch(spec), spec.epoch, spec.nslots)


def remove_leftovers(stream: Path, *, stale_after_ns: int) -> list[int]:
    """Removes epochs whose owner is dead: stale activity *and* no such process. Returns their numbers.

    Only directories of the canonical layout are removed. The caller holds the stream's lock.
    """
    removed = []
    with suppress(FileNotFoundError):
        for directory in list(stream.iterdir()):
            if (
                directory.name.isdecimal()
                and not directory.is_symlink()
                and _is_dead(directory, stale_after_ns)
            ):
                with suppress(OSError):
                    _native.remove_epoch(directory)
                    removed.append(int(directory.name))
    return removed


def _is_dead(directory: Path, stale_after_ns: int) -> bool:
    try:
        with open(directory / HEADER_RING, "rb") as file:
            superblock = Superblock.decode(file.read(SUPERBLOCK_BYTES))
    except (OSError, ValueError):
        # Its creation was interrupted, so it was never announced. A young directory may still be in creation.
        return time.time_ns() - directory.stat().st_mtime_ns > stale_after_ns
    age = age_ns(superblock.activity_timestamp_ns)
    # A reboot resets the monotonic clock: a timestamp in the future is from another boot.
    return not 0 <= age <= stale_after_ns and not is_alive(superblock.pid)


def is_alive(pid: int) -> bool:
    """Whether the process exists. A zombie does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    with suppress(OSError):
        # The state follows the process name, which may contain brackets and spaces.
        state = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return not state or state[0] not in ("Z", "X")
    return True


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table of mounts."""

    point: Path
    kind: str
    options: frozenset[str]


def mounts(table: str = "/proc/self/mounts") -> list[Mount]:
    """All mounts in the kernel's order: a later mount hides an earlier mount at the same point."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        _, point, kind, options, *_ = [*line.split(), "", "", "", ""]
        # The kernel writes a space as \040.
        plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        entries.append(Mount(Path(plain), kind, frozenset(options.split(","))))
    return entries


def mount_of(path: Path, known: list[Mount] | None = None) -> Mount | None:
    """The mount that `path`, or the nearest directory above it that exists, is on."""
    real = Path(os.path.realpath(path))
    best = None
    for mount in mounts() if known is None else known:
        depth = len(mount.point.parts)
        if real.is_relative_to(mount.point) and (best is None or depth >= len(best.point.parts)):
            best = mount
    return best


def is_hugetlbfs(path: Path) -> bool:
    """Whether the path is on a mount of hugepages."""
    mount = mount_of(path)
    return mount is not None and mount.kind == "hugetlbfs"
