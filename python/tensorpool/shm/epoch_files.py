"""The files of an epoch, and what dead owners left behind.

Which filesystem a path is on.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import _native

_SUPERBLOCK_BYTES = 64
HEADER_RING = "header.ring"


def user_name() -> str:
    """The effective user, as it appears in the directory name."""
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
    pools: list[tuple[int, int, str]]

    def remove(self) -> None:
        """Removes the regions, and of the directories above them what nobody else uses."""
        with suppress(FileNotFoundError):
            _native.remove_epoch(self.directory)
        stream = self.directory.parent
        with suppress(OSError):
            for directory in (stream, stream.parent, stream.parent.parent):
                directory.rmdir()


def create_epoch(
    *, base: Path, namespace: str, stream_id: int, epoch: int, nslots: int, pools: list[tuple[int, int]]
) -> EpochFiles:
    """Makes the regions, fully allocated, private to this user. On an error nothing stays."""
    directory, header_uri, made = _native.create_epoch(
        base=base,
        user=user_name(),
        namespace=namespace,
        stream_id=stream_id,
        epoch=epoch,
        nslots=nslots,
        pools=pools,
    )
    return EpochFiles(Path(directory), epoch, nslots, header_uri, made)


def remove_leftovers(stream: Path, *, stale_after_ns: int) -> list[int]:
    """Removes epochs whose owner is dead: no recent activity *and* no such process.

    Looks only at directories in the canonical layout. The caller holds the stream's lock.
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
            head = file.read(_SUPERBLOCK_BYTES)
        superblock = _native.read_superblock(head)
    except (OSError, ValueError):
        # Cut off in the making: nobody was ever told of it. Young ones may be in the making now.
        return time.time_ns() - directory.stat().st_mtime_ns > stale_after_ns
    age = time.monotonic_ns() - superblock["activity_timestamp_ns"]
    # A reboot sets the monotonic clock back: activity from the future is from another boot.
    return not 0 <= age <= stale_after_ns and not is_alive(superblock["pid"])


def is_alive(pid: int) -> bool:
    """Whether there is such a process. One that has ended and waits for its parent to notice is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    with suppress(OSError):
        # The state follows the name, which may itself hold brackets and spaces.
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
    """All mounts; later ones lie over earlier ones."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, point, kind, options, *_ = [*line.split(), "", "", "", ""]
        # Spaces and the like are written as \040.
        plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        found.append(Mount(Path(plain), kind, frozenset(options.split(","))))
    return found


def mount_of(path: Path, known: list[Mount] | None = None) -> Mount | None:
    """The mount that `path`, or the nearest directory above it that exists, is on."""
    real = Path(os.path.realpath(path))
    best = None
    for one in mounts() if known is None else known:
        if real.is_relative_to(one.point) and (best is None or len(one.point.parts) >= len(best.point.parts)):
            best = one
    return best


def is_hugetlbfs(path: Path) -> bool:
    found = mount_of(path)
    return found is not None and found.kind == "hugetlbfs"
