"""A look at region files: what they say of themselves, which rules they break, who owns them.

For people and their tools. Consumers judge regions natively, against the announce; here there is none, so
a file is judged against itself, its place in the canonical layout, and its neighbours.

What a look at regions found, for people and as JSON.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import TensorPoolError
from ..sbe import MAGIC, RegionType
from .epoch_files import HEADER_RING, is_alive, is_hugetlbfs
from .slots import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES, RingReport, read_ring


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One region file."""

    path: Path
    size_bytes: int = 0
    expected_bytes: int | None = None
    owner: str = ""
    group: str = ""
    mode: int = 0
    superblock: dict[str, int] | None = None
    activity_age_ns: int | None = None
    """Negative: from a clock that this boot does not know."""
    pid_alive: bool | None = None
    ring: RingReport | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        match None if self.superblock is None else self.superblock["region_type"]:
            case RegionType.HEADER_RING:
                return "header ring"
            case RegionType.PAYLOAD_POOL:
                return "payload pool"
        return "unknown"


@dataclass(frozen=True, slots=True)
class EpochReport:
    """The regions of one epoch directory, judged together."""

    directory: Path
    regions: tuple[RegionReport, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def all_problems(self) -> list[str]:
        """Its own and those of its regions."""
        return [*self.problems, *_gathered([(one.path.name, one.problems) for one in self.regions])]

    def all_warnings(self) -> list[str]:
        return [*self.warnings, *_gathered([(one.path.name, one.warnings) for one in self.regions])]


def _gathered(told: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Each text with the file it is about; what is said of every file is said once."""
    about: dict[str, list[str]] = {}
    for name, texts in told:
        for text in texts:
            about.setdefault(text, []).append(name)
    found = []
    for text, names in about.items():
        if len(names) == len(told) > 1:
            found.append(text)
        else:
            found += [f"{name}: {text}" for name in names]
    return found


def to_json(report: EpochReport) -> dict[str, Any]:
    """The report as JSON can hold it: 64-bit numbers are text."""
    return {
        "directory": str(report.directory),
        "valid": not report.all_problems(),
        "problems": list(report.problems),
        "warnings": list(report.warnings),
        "regions": [_region_json(one) for one in report.regions],
    }


_WIDE = ("magic", "epoch", "pid", "start_timestamp_ns", "activity_timestamp_ns")


def _region_json(one: RegionReport) -> dict[str, Any]:
    head = one.superblock
    ring = one.ring
    return {
        "path": str(one.path),
        "kind": one.kind,
        "size_bytes": one.size_bytes,
        "expected_bytes": one.expected_bytes,
        "owner": one.owner,
        "group": one.group,
        "mode": f"{one.mode:04o}",
        "superblock": None if head is None else {k: str(v) if k in _WIDE else v for k, v in head.items()},
        "activity_age_s": None if one.activity_age_ns is None else one.activity_age_ns / 1e9,
        "pid_alive": one.pid_alive,
        "ring": None if ring is None else _ring_json(ring),
        "problems": list(one.problems),
        "warnings": list(one.warnings),
    }


def _ring_json(ring: RingReport) -> dict[str, Any]:
    return {
        "newest_seq": None if ring.newest_seq is None else str(ring.newest_seq),
        "committed": ring.count("committed"),
        "in_progress": ring.count("in_progress"),
        "empty": ring.count("empty"),
        "slots": [
            {
                "index": slot.index,
                "state": slot.state,
                "seq": None if slot.seq is None else str(slot.seq),
                "shape": slot.shape,
                "dtype": slot.dtype,
                "bytes": slot.values_bytes,
                "pool_id": slot.pool_id,
                "timestamp_ns": None if slot.timestamp_ns is None else str(slot.timestamp_ns),
            }
            for slot in ring.slots
        ],
    }


LAYOUT_VERSION: Final = 1
# Three announces of one a second: what a consumer takes for the longest silence.
STALE_NS: Final = 3_000_000_000
_URI_SCHEME: Final = "shm:"
_MIN_STRIDE: Final = 64
_NULL_U32: Final = 0xFFFF_FFFF
_POOL_FILE: Final = re.compile(r"([1-9]\d{0,4})\.pool")
_STREAM_AND_EPOCH: Final = re.compile(r"tensorpool-[^/]+/[^/]+/(\d+)/(\d+)$")


class NotARegion(TensorPoolError, ValueError):
    """There is nothing to inspect at that path. Says what would do."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


def region_path(text: str) -> tuple[Path, bool]:
    """The path that a person or an announce names, and whether it has to be on hugepages."""
    if not text.startswith(_URI_SCHEME):
        return Path(text), False
    try:
        path, needs_hugepages = _native.parse_region_uri(text)
    except ValueError as error:
        raise NotARegion(f"{error}; as in shm:file?path=/dev/shm/…/header.ring", path=text) from None
    return Path(path), needs_hugepages


def inspect(text: str, *, clock: Clock = SYSTEM_CLOCK) -> list[EpochReport]:
    """What lies at a path or URI: a region, an epoch directory, or a stream directory with its epochs.

    Raises NotARegion where there is nothing to look at. What is broken is in the reports.
    """
    path, needs_hugepages = region_path(text)
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError as error:
        raise NotARegion(f"{path}: {error.strerror}", path=str(path)) from None
    if not is_directory:
        region = inspect_region(path, clock=clock)
        if needs_hugepages and not is_hugetlbfs(path):
            wrong = "the URI requires hugepages, and the file is not on hugetlbfs"
            region = replace(region, problems=(*region.problems, wrong))
        return [EpochReport(path.parent, (region,))]
    if _region_files(path):
        return [inspect_epoch(path, clock=clock)]
    epochs = sorted(
        (one for one in _entries(path) if one.name.isdecimal() and _region_files(one)), key=_epoch
    )
    if not epochs:
        raise NotARegion(
            f"{path} has no regions: name a region file, an epoch directory or a stream directory, as in "
            "/dev/shm/tensorpool-<user>/<namespace>/<stream>",
            path=str(path),
        )
    reports = [inspect_epoch(one, clock=clock) for one in epochs]
    older = "superseded by a later epoch; its owner removes it after a grace"
    return [*(replace(one, warnings=(*one.warnings, older)) for one in reports[:-1]), reports[-1]]


def inspect_epoch(directory: Path, *, clock: Clock = SYSTEM_CLOCK) -> EpochReport:
    """All regions of one epoch directory, and whether they fit together."""
    files = _region_files(directory)
    heads = {path: read_superblock(path) for path in files}
    strides = {
        head["pool_id"]: head["stride_bytes"]
        for head in heads.values()
        if head is not None and head["region_type"] == RegionType.PAYLOAD_POOL
    }
    regions = tuple(inspect_region(path, clock=clock, strides=strides) for path in files)
    problems = list(_disagreements(regions))
    if directory / HEADER_RING not in heads:
        problems.insert(0, f"there is no {HEADER_RING}")
    if not any(one.kind == "payload pool" for one in regions):
        problems.append("there is no payload pool")
    strangers = sorted(one.name for one in _entries(directory) if one not in heads)
    warnings = [f"{', '.join(strangers)}: not part of the layout"] if strangers else []
    return EpochReport(directory, regions, tuple(problems), tuple(warnings))


def inspect_region(
    path: Path, *, clock: Clock = SYSTEM_CLOCK, strides: dict[int, int] | None = None
) -> RegionReport:
    """One file. `strides` are those of the epoch's pools; without them slots are not judged by their pool."""
    try:
        # A FIFO must not hold us, and a link is refused by every consumer too.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = (
            "a symbolic link, which consumers refuse"
            if path.is_symlink()
            else f"cannot be read: {error.strerror}"
        )
        return RegionReport(path, problems=(what,))
    try:
        return _RegionCheck(path, fd, os.fstat(fd), clock).report(strides)
    finally:
        os.close(fd)


def read_superblock(path: Path) -> dict[str, int] | None:
    """The superblock, or None where there is none to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _native.read_superblock(os.pread(fd, SUPERBLOCK_BYTES, 0))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


@dataclass
class _RegionCheck:
    """One file while it is being looked at."""

    path: Path
    fd: int
    status: os.stat_result
    clock: Clock
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def report(self, strides: dict[int, int] | None) -> RegionReport:
        status = self.status
        made = RegionReport(
            self.path,
            size_bytes=status.st_size,
            owner=user_of(status.st_uid),
            group=group_of(status.st_gid),
            mode=stat.S_IMODE(status.st_mode),
        )
        if not stat.S_ISREG(status.st_mode):
            return replace(made, problems=("not a regular file",))
        if status.st_mode & stat.S_IWOTH:
            self.warnings.append("everybody may write to it")
        if status.st_size < SUPERBLOCK_BYTES:
            short = f"{status.st_size} bytes are too few for a superblock of {SUPERBLOCK_BYTES}"
            return replace(made, problems=(short,), warnings=tuple(self.warnings))
        head = _native.read_superblock(os.pread(self.fd, SUPERBLOCK_BYTES, 0))
        if head["magic"] != MAGIC:
            wrong = f"magic is {head['magic']:#018x}, a region has {MAGIC:#018x}"
            return replace(made, problems=(wrong,), warnings=tuple(self.warnings))
        expected = self.judge_fields(head)
        self.judge_place(head)
        age, alive = self.judge_owner(head)
        ring = None
        if expected is not None and head["region_type"] == RegionType.HEADER_RING:
            ring = self.judge_ring(head, strides)
        return replace(
            made,
            superblock=head,
            expected_bytes=expected,
            activity_age_ns=age,
            pid_alive=alive,
            ring=ring,
            problems=tuple(self.problems),
            warnings=tuple(self.warnings),
        )

    def judge_fields(self, head: dict[str, int]) -> int | None:
        """The bytes that the file should have; None where the superblock does not say."""
        if head["layout_version"] != LAYOUT_VERSION:
            self.problems.append(
                f"layout version {head['layout_version']}; this version reads {LAYOUT_VERSION}"
            )
        nslots, stride = head["nslots"], head["stride_bytes"]
        if nslots == 0 or nslots & (nslots - 1):
            self.problems.append(f"{nslots} slots is not a power of two")
        match head["region_type"]:
            case RegionType.HEADER_RING:
                if head["pool_id"] != 0:
                    self.problems.append(f"a header ring of pool {head['pool_id']}; it has to be 0")
                if head["slot_bytes"] != HEADER_SLOT_BYTES:
                    self.problems.append(
                        f"slots of {head['slot_bytes']} bytes; a header ring has {HEADER_SLOT_BYTES}"
                    )
                if stride not in (0, HEADER_SLOT_BYTES, _NULL_U32):
                    self.problems.append(f"a header ring has no stride; this one says {stride}")
                stride = HEADER_SLOT_BYTES
            case RegionType.PAYLOAD_POOL:
                if head["pool_id"] == 0:
                    self.problems.append("pool id 0 is the header ring's")
                if stride < _MIN_STRIDE or stride & (stride - 1):
                    self.problems.append(f"stride {stride} is not a power of two of at least {_MIN_STRIDE}")
                if head["slot_bytes"] not in (0, stride, _NULL_U32):
                    self.problems.append(f"slots of {head['slot_bytes']} bytes at a stride of {stride}")
            case other:
                self.problems.append(
                    f"region type {other} is neither a header ring (1) nor a payload pool (2)"
                )
                return None
        expected = SUPERBLOCK_BYTES + nslots * stride
        if self.status.st_size < expected:
            self.problems.append(f"{self.status.st_size:,} bytes, the superblock needs {expected:,}")
        elif self.status.st_size > expected and not is_hugetlbfs(self.path):
            self.warnings.append(f"{self.status.st_size - expected:,} bytes more than the superblock needs")
        return expected

    def judge_place(self, head: dict[str, int]) -> None:
        """The canonical path says stream, epoch and pool too (wire §15.21a.3)."""
        pool = 0 if self.path.name == HEADER_RING else _pool_of(self.path.name)
        if pool is not None and pool != head["pool_id"]:
            self.problems.append(f"pool {head['pool_id']} in a file called {self.path.name}")
        found = _STREAM_AND_EPOCH.search(str(self.path.absolute().parent))
        if found is None:
            self.warnings.append(
                "not in the canonical layout <base>/tensorpool-<user>/<namespace>/<stream>/<epoch>"
            )
            return
        for name, told, place in (("stream_id", "stream", found[1]), ("epoch", "epoch", found[2])):
            if head[name] != int(place):
                self.problems.append(f"{told} {head[name]} in the directory of {told} {place}")

    def judge_owner(self, head: dict[str, int]) -> tuple[int, bool]:
        age = self.clock.monotonic_ns() - head["activity_timestamp_ns"]
        alive = is_alive(head["pid"])
        if age < 0:
            self.warnings.append("its last activity is from another boot, or another machine's clock")
        if not 0 <= age <= STALE_NS and not alive:
            self.warnings.append(
                f"left behind by process {head['pid']}, which is dead; the stream's next owner removes it"
            )
        elif age > STALE_NS:
            self.warnings.append(
                f"process {head['pid']} is there, and gave no sign of life for {age / 1e9:.1f} s"
            )
        return age, alive

    def judge_ring(self, head: dict[str, int], strides: dict[int, int] | None) -> RingReport:
        # No more slots than the file has room for, whatever the superblock says.
        room = max(0, self.status.st_size - SUPERBLOCK_BYTES) // HEADER_SLOT_BYTES
        ring = read_ring(self.fd, min(head["nslots"], room), strides)
        self.problems += [f"slot {one.index}: {text}" for one in ring.slots for text in one.problems]
        return ring


def _disagreements(regions: Iterable[RegionReport]) -> Iterable[str]:
    heads = [one.superblock for one in regions if one.superblock is not None]
    for name, words in (
        ("epoch", "epochs"), ("stream_id", "streams"), ("nslots", "numbers of slots"), ("pid", "owners"),
    ):  # fmt: skip
        values = sorted({head[name] for head in heads})
        if len(values) > 1:
            yield f"the regions name different {words}: {', '.join(map(str, values))}"


def _region_files(directory: Path) -> list[Path]:
    """The header ring first, then the pools by number."""
    named = [one for one in _entries(directory) if one.name == HEADER_RING or _pool_of(one.name) is not None]
    return sorted(named, key=lambda one: _pool_of(one.name) or 0)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _pool_of(name: str) -> int | None:
    found = _POOL_FILE.fullmatch(name)
    return None if found is None else int(found[1])


def _epoch(directory: Path) -> int:
    return int(directory.name)


def user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
