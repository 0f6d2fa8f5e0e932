"""Inspection of region files: superblocks, slots, broken rules and owners, as reports and as JSON.

Consumers validate regions natively, against the announce. Without an announce, a file is checked against its
own superblock, its path in the canonical layout, and the other files of its epoch. A file is read and never
mapped: truncation of a mapped file would kill this process, a read just ends early.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock, age_ns
from ..errors import CodecError, TensorPoolError
from ..sbe import MAGIC, Dtype, MajorOrder, RegionType, SlotHeader, TensorHeader
from ..text import JsonMapping
from ..units import NULL_U32
from .epoch_files import (
    HEADER_RING,
    HEADER_SLOT_BYTES,
    SUPERBLOCK_BYTES,
    Superblock,
    is_alive,
    is_hugetlbfs,
)

LAYOUT_VERSION: Final = 1
# Three announce periods of one second: after that a consumer takes the owner for stale.
STALE_NS: Final = 3_000_000_000
_URI_SCHEME: Final = "shm:"
_MIN_STRIDE: Final = 64
_POOL_FILE: Final = re.compile(r"([1-9]\d{0,4})\.pool")
_STREAM_AND_EPOCH: Final = re.compile(r"tensorpool-[^/]+/[^/]+/(\d+)/(\d+)$")
# 64-bit fields: JSON readers that use doubles would round them, so they are written as text.
_WIDE_FIELDS: Final = ("magic", "epoch", "pid", "start_timestamp_ns", "activity_timestamp_ns")
_TENSOR_HEADER_BYTES: Final = 192
_MAX_DIMS: Final = 8
_COMMIT_WORD_BYTES: Final = 8
# The lowest bit of the commit word; the sequence is in the bits above it (wire §8.3).
_COMMITTED: Final = 1
# Slots read by one system call.
_SLOTS_PER_READ: Final = 4096
# Reads of a slot that changes while it is read.
_MAX_READS: Final = 3

_ITEM_BYTES: Final = {
    Dtype.UINT8: 1, Dtype.INT8: 1, Dtype.BOOLEAN: 1, Dtype.BYTES: 1, Dtype.BIT: 1,
    Dtype.UINT16: 2, Dtype.INT16: 2,
    Dtype.UINT32: 4, Dtype.INT32: 4, Dtype.FLOAT32: 4,
    Dtype.UINT64: 8, Dtype.INT64: 8, Dtype.FLOAT64: 8,
}  # fmt: skip


class NotARegion(TensorPoolError, ValueError):
    """The path has no regions to inspect. The message says which paths do."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


# --- slots of a header ring (wire §8)

SlotState = Literal["empty", "committed", "in_progress"]


@dataclass(frozen=True, slots=True)
class SlotReport:
    """The content of one slot. Fields of the tensor header are None where it could not be decoded."""

    index: int
    state: SlotState
    seq: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    values_bytes: int | None = None
    pool_id: int | None = None
    timestamp_ns: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RingReport:
    """All slots of a header ring."""

    slots: tuple[SlotReport, ...] = field(default=())

    @property
    def newest_seq(self) -> int | None:
        """The highest committed sequence."""
        committed = (slot.seq for slot in self.slots if slot.state == "committed" and slot.seq is not None)
        return max(committed, default=None)

    def count(self, state: SlotState) -> int:
        """The number of slots in this state."""
        return sum(slot.state == state for slot in self.slots)

    def newest(self, limit: int) -> list[SlotReport]:
        """The slots that were written last, newest first."""
        written = [slot for slot in self.slots if slot.state != "empty"]
        return sorted(written, key=lambda slot: slot.seq or 0, reverse=True)[:limit]


def read_ring(fd: int, nslots: int, strides: Mapping[int, int] | None) -> RingReport:
    """Reports on the slots of the ring behind `fd`. `strides` maps pool ids to strides; None: unknown.

    A slot that changes while it is read counts as in progress, as it does for a consumer.
    """
    reports: list[SlotReport] = []
    for first in range(0, nslots, _SLOTS_PER_READ):
        count = min(_SLOTS_PER_READ, nslots - first)
        content = os.pread(fd, count * HEADER_SLOT_BYTES, _offset(first))
        for position in range(len(content) // HEADER_SLOT_BYTES):
            slot = content[position * HEADER_SLOT_BYTES : (position + 1) * HEADER_SLOT_BYTES]
            index = first + position
            reports.append(check_slot(index, _stable_slot(fd, index, slot), nslots, strides))
    return RingReport(tuple(reports))


def _offset(index: int) -> int:
    return SUPERBLOCK_BYTES + index * HEADER_SLOT_BYTES


def _stable_slot(fd: int, index: int, content: bytes) -> bytes:
    """The slot with the same commit word before and after the read; otherwise marked as in progress."""
    for _ in range(_MAX_READS):
        commit_word = os.pread(fd, _COMMIT_WORD_BYTES, _offset(index))
        if commit_word == content[:_COMMIT_WORD_BYTES]:
            return content
        content = os.pread(fd, HEADER_SLOT_BYTES, _offset(index))
    return bytes([content[0] & ~_COMMITTED]) + content[1:]


def check_slot(index: int, content: bytes, nslots: int, strides: Mapping[int, int] | None) -> SlotReport:
    """The report on the 256 bytes of one slot, with the rules they break."""
    if not any(content):
        return SlotReport(index, "empty")
    commit_word = int.from_bytes(content[:_COMMIT_WORD_BYTES], "little")
    seq = commit_word >> 1
    problems: list[str] = []
    if seq % nslots != index:
        problems.append(f"holds sequence {seq}, which belongs into slot {seq % nslots}")
    if not commit_word & _COMMITTED:
        return SlotReport(index, "in_progress", seq, problems=tuple(problems))
    try:
        slot = SlotHeader.decode(content)
    except CodecError as error:
        return SlotReport(index, "committed", seq, problems=(*problems, f"unreadable: {error}"))
    if slot.payload_offset != 0:
        problems.append(f"the payload starts at offset {slot.payload_offset}, not at 0")
    if slot.payload_slot != index:
        problems.append(f"the payload slot is {slot.payload_slot}, not {index}")
    if strides is not None:
        if slot.pool_id not in strides:
            problems.append(f"there is no pool {slot.pool_id}")
        elif slot.values_len_bytes > strides[slot.pool_id]:
            problems.append(f"{slot.values_len_bytes} bytes do not fit the stride {strides[slot.pool_id]}")
    shape, dtype, tensor_problems = _check_tensor(slot)
    return SlotReport(
        index, "committed", seq, shape, dtype, slot.values_len_bytes, slot.pool_id, slot.timestamp_ns,
        (*problems, *tensor_problems),
    )  # fmt: skip


def _check_tensor(slot: SlotHeader) -> tuple[tuple[int, ...] | None, str | None, list[str]]:
    """Shape, element type and problems of the tensor header."""
    if len(slot.header_bytes) != _TENSOR_HEADER_BYTES:
        return (
            None,
            None,
            [f"the tensor header has {len(slot.header_bytes)} bytes, not {_TENSOR_HEADER_BYTES}"],
        )
    try:
        tensor = TensorHeader.decode(slot.header_bytes)
    except CodecError as error:
        return None, None, [f"the tensor header is unreadable: {error}"]
    item_bytes = _ITEM_BYTES.get(tensor.dtype)
    if item_bytes is None:
        return None, None, ["the element type is unknown"]
    dtype = tensor.dtype.name.lower()
    if not 1 <= tensor.ndims <= _MAX_DIMS:
        return None, dtype, [f"{tensor.ndims} dimensions, not 1 to {_MAX_DIMS}"]
    shape = tensor.dims[: tensor.ndims]
    problems = []
    if tensor.major_order is MajorOrder.UNKNOWN:
        problems.append("the major order is unknown")
    if min(shape) < 0:
        problems.append("a dimension is negative")
    elif (extent := _extent(shape, tensor.strides[: tensor.ndims], item_bytes)) > slot.values_len_bytes:
        problems.append(f"the tensor spans {extent} bytes of a payload of {slot.values_len_bytes}")
    return shape, dtype, problems


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> int:
    """The bytes from the first element to the end of the last. Strides of 0 mean contiguous."""
    if 0 in shape:
        return 0
    if not any(strides):
        return math.prod(shape) * item_bytes
    return sum((dim - 1) * stride for dim, stride in zip(shape, strides, strict=True)) + item_bytes


# --- regions and epochs


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One region file."""

    path: Path
    size_bytes: int = 0
    expected_bytes: int | None = None
    owner: str = ""
    group: str = ""
    mode: int = 0
    superblock: Superblock | None = None
    activity_age_ns: int | None = None
    """Negative: the timestamp is from another boot."""
    pid_alive: bool | None = None
    ring: RingReport | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The type of region that the superblock names."""
        match None if self.superblock is None else self.superblock.region_type:
            case RegionType.HEADER_RING:
                return "header ring"
            case RegionType.PAYLOAD_POOL:
                return "payload pool"
        return "unknown"


@dataclass(frozen=True, slots=True)
class EpochReport:
    """The regions of one epoch directory, and how they fit together."""

    directory: Path
    regions: tuple[RegionReport, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def all_problems(self) -> list[str]:
        """The problems of the epoch and of its regions."""
        return [*self.problems, *_by_file([(region.path.name, region.problems) for region in self.regions])]

    def all_warnings(self) -> list[str]:
        """The warnings of the epoch and of its regions."""
        return [*self.warnings, *_by_file([(region.path.name, region.warnings) for region in self.regions])]


def _by_file(texts_by_file: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Each text with its file name; a text that all files share appears once, without a name."""
    names_by_text: dict[str, list[str]] = {}
    for name, texts in texts_by_file:
        for text in texts:
            names_by_text.setdefault(text, []).append(name)
    lines = []
    for text, names in names_by_text.items():
        if len(names) == len(texts_by_file) > 1:
            lines.append(text)
        else:
            lines += [f"{name}: {text}" for name in names]
    return lines


def to_json(report: EpochReport) -> JsonMapping:
    """The report in JSON types; 64-bit numbers are text."""
    return {
        "directory": str(report.directory),
        "valid": not report.all_problems(),
        "problems": list(report.problems),
        "warnings": list(report.warnings),
        "regions": [_region_json(region) for region in report.regions],
    }


def _region_json(region: RegionReport) -> JsonMapping:
    ring = region.ring
    superblock = None
    if region.superblock is not None:
        fields = region.superblock._asdict()
        superblock = {name: str(value) if name in _WIDE_FIELDS else value for name, value in fields.items()}
    return {
        "path": str(region.path),
        "kind": region.kind,
        "size_bytes": region.size_bytes,
        "expected_bytes": region.expected_bytes,
        "owner": region.owner,
        "group": region.group,
        "mode": f"{region.mode:04o}",
        "superblock": superblock,
        "activity_age_s": None if region.activity_age_ns is None else region.activity_age_ns / 1e9,
        "pid_alive": region.pid_alive,
        "ring": None if ring is None else _ring_json(ring),
        "problems": list(region.problems),
        "warnings": list(region.warnings),
    }


def _ring_json(ring: RingReport) -> JsonMapping:
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


def region_path(text: str) -> tuple[Path, bool]:
    """The path that a path or region URI names, and whether the URI requires hugepages."""
    if not text.startswith(_URI_SCHEME):
        return Path(text), False
    try:
        uri = _native.parse_region_uri(text)
    except ValueError as error:
        raise NotARegion(f"{error}; write shm:file?path=/dev/shm/…/header.ring", path=text) from None
    return Path(uri.path), uri.require_hugepages


def inspect(text: str, *, clock: Clock = SYSTEM_CLOCK) -> list[EpochReport]:
    """Reports on a path or URI: a region, an epoch directory, or a stream directory with its epochs.

    Raises NotARegion where the path has no regions. Broken rules are in the reports.
    """
    path, needs_hugepages = region_path(text)
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError as error:
        raise NotARegion(f"{path}: {error.strerror}", path=str(path)) from None
    if not is_directory:
        region = inspect_region(path, clock=clock)
        if needs_hugepages and not is_hugetlbfs(path):
            problem = "the URI requires hugepages, and the file is not on hugetlbfs"
            region = replace(region, problems=(*region.problems, problem))
        return [EpochReport(path.parent, (region,))]
    if _region_files(path):
        return [inspect_epoch(path, clock=clock)]
    epochs = sorted(
        (entry for entry in _entries(path) if entry.name.isdecimal() and _region_files(entry)), key=_epoch
    )
    if not epochs:
        raise NotARegion(
            f"{path} has no regions: name a region file, an epoch directory or a stream directory, as in "
            "/dev/shm/tensorpool-<user>/<namespace>/<stream>",
            path=str(path),
        )
    *older, newest = (inspect_epoch(epoch, clock=clock) for epoch in epochs)
    warning = "superseded by a later epoch; its owner removes it after a grace"
    return [*(replace(report, warnings=(*report.warnings, warning)) for report in older), newest]


def inspect_epoch(directory: Path, *, clock: Clock = SYSTEM_CLOCK) -> EpochReport:
    """Reports on all regions of one epoch directory, and whether they fit together."""
    files = _region_files(directory)
    superblocks = {path: read_superblock(path) for path in files}
    strides = {
        superblock.pool_id: superblock.stride_bytes
        for superblock in superblocks.values()
        if superblock is not None and superblock.region_type == RegionType.PAYLOAD_POOL
    }
    regions = tuple(inspect_region(path, clock=clock, strides=strides) for path in files)
    problems = list(_disagreements(regions))
    if directory / HEADER_RING not in superblocks:
        problems.insert(0, f"{HEADER_RING} is missing")
    if not any(region.kind == "payload pool" for region in regions):
        problems.append("no payload pool")
    others = sorted(entry.name for entry in _entries(directory) if entry not in superblocks)
    warnings = [f"{', '.join(others)}: not part of the layout"] if others else []
    return EpochReport(directory, regions, tuple(problems), tuple(warnings))


def inspect_region(
    path: Path, *, clock: Clock = SYSTEM_CLOCK, strides: dict[int, int] | None = None
) -> RegionReport:
    """Reports on one file. `strides` are those of the epoch's pools; without them slots are not checked
    against their pool.
    """
    try:
        fd = _open(path)
    except OSError as error:
        problem = (
            "a symbolic link, which consumers refuse"
            if path.is_symlink()
            else f"cannot be read: {error.strerror}"
        )
        return RegionReport(path, problems=(problem,))
    try:
        return _RegionCheck(path, fd, os.fstat(fd), clock).report(strides)
    finally:
        os.close(fd)


def read_superblock(path: Path) -> Superblock | None:
    """The superblock of a region file; None where it cannot be read."""
    try:
        fd = _open(path)
        try:
            return Superblock.decode(os.pread(fd, SUPERBLOCK_BYTES, 0))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def _open(path: Path) -> int:
    # Opening a FIFO must not block. Consumers refuse a symbolic link, so inspection does too.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass
class _RegionCheck:
    """The check of one open region file; collects problems and warnings."""

    path: Path
    fd: int
    status: os.stat_result
    clock: Clock
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def report(self, strides: dict[int, int] | None) -> RegionReport:
        """Runs all checks."""
        status = self.status
        report = RegionReport(
            self.path,
            size_bytes=status.st_size,
            owner=user_of(status.st_uid),
            group=group_of(status.st_gid),
            mode=stat.S_IMODE(status.st_mode),
        )
        if not stat.S_ISREG(status.st_mode):
            return replace(report, problems=("not a regular file",))
        if status.st_mode & stat.S_IWOTH:
            self.warnings.append("writable by all users; remove the permission with chmod o-w")
        if status.st_size < SUPERBLOCK_BYTES:
            problem = f"{status.st_size} bytes are too few for a superblock of {SUPERBLOCK_BYTES}"
            return replace(report, problems=(problem,), warnings=tuple(self.warnings))
        superblock = Superblock.decode(os.pread(self.fd, SUPERBLOCK_BYTES, 0))
        if superblock.magic != MAGIC:
            problem = f"magic is {superblock.magic:#018x}, a region has {MAGIC:#018x}"
            return replace(report, problems=(problem,), warnings=tuple(self.warnings))
        expected = self.check_fields(superblock)
        self.check_path(superblock)
        age, alive = self.check_owner(superblock)
        ring = None
        if expected is not None and superblock.region_type == RegionType.HEADER_RING:
            ring = self.check_ring(superblock, strides)
        return replace(
            report,
            superblock=superblock,
            expected_bytes=expected,
            activity_age_ns=age,
            pid_alive=alive,
            ring=ring,
            problems=tuple(self.problems),
            warnings=tuple(self.warnings),
        )

    def check_fields(self, head: Superblock) -> int | None:
        """The file size that the superblock needs; None for an unknown region type."""
        if head.layout_version != LAYOUT_VERSION:
            self.problems.append(f"layout version {head.layout_version}; this version reads {LAYOUT_VERSION}")
        nslots, stride = head.nslots, head.stride_bytes
        if nslots == 0 or nslots & (nslots - 1):
            self.problems.append(f"{nslots} slots is not a power of two")
        match head.region_type:
            case RegionType.HEADER_RING:
                if head.pool_id != 0:
                    self.problems.append(f"a header ring of pool {head.pool_id}; it has to be 0")
                if head.slot_bytes != HEADER_SLOT_BYTES:
                    self.problems.append(
                        f"slots of {head.slot_bytes} bytes; a header ring has {HEADER_SLOT_BYTES}"
                    )
                if stride not in (0, HEADER_SLOT_BYTES, NULL_U32):
                    self.problems.append(f"a header ring has no stride; this one says {stride}")
                stride = HEADER_SLOT_BYTES
            case RegionType.PAYLOAD_POOL:
                if head.pool_id == 0:
                    self.problems.append("pool id 0 is the header ring's")
                if stride < _MIN_STRIDE or stride & (stride - 1):
                    self.problems.append(f"stride {stride} is not a power of two of at least {_MIN_STRIDE}")
                if head.slot_bytes not in (0, stride, NULL_U32):
                    self.problems.append(f"slots of {head.slot_bytes} bytes at a stride of {stride}")
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

    def check_path(self, head: Superblock) -> None:
        """Compares stream, epoch and pool with the canonical path (wire §15.21a.3)."""
        pool = 0 if self.path.name == HEADER_RING else _pool_of(self.path.name)
        if pool is not None and pool != head.pool_id:
            self.problems.append(f"pool {head.pool_id} in a file called {self.path.name}")
        match = _STREAM_AND_EPOCH.search(str(self.path.absolute().parent))
        if match is None:
            self.warnings.append(
                "not in the canonical layout <base>/tensorpool-<user>/<namespace>/<stream>/<epoch>"
            )
            return
        for name, value, in_path in (
            ("stream", head.stream_id, match[1]),
            ("epoch", head.epoch, match[2]),
        ):
            if value != int(in_path):
                self.problems.append(f"{name} {value} in the directory of {name} {in_path}")

    def check_owner(self, head: Superblock) -> tuple[int, bool]:
        """Age of the activity timestamp, and whether the owner process exists."""
        age = age_ns(head.activity_timestamp_ns, self.clock)
        alive = is_alive(head.pid)
        if age < 0:
            self.warnings.append("its last activity is from another boot, or another machine's clock")
        if not 0 <= age <= STALE_NS and not alive:
            self.warnings.append(
                f"left behind by process {head.pid}, which is dead; the stream's next owner removes it"
            )
        elif age > STALE_NS:
            self.warnings.append(
                f"process {head.pid} is alive, but its activity timestamp is {age / 1e9:.1f} s old"
            )
        return age, alive

    def check_ring(self, head: Superblock, strides: dict[int, int] | None) -> RingReport:
        """Reports on the slots of a header ring."""
        # Never more slots than the file has room for: the superblock may be wrong.
        room = max(0, self.status.st_size - SUPERBLOCK_BYTES) // HEADER_SLOT_BYTES
        ring = read_ring(self.fd, min(head.nslots, room), strides)
        self.problems += [f"slot {slot.index}: {text}" for slot in ring.slots for text in slot.problems]
        return ring


def _disagreements(regions: Iterable[RegionReport]) -> Iterable[str]:
    superblocks = [region.superblock for region in regions if region.superblock is not None]
    for plural, values in (
        ("epochs", {superblock.epoch for superblock in superblocks}),
        ("streams", {superblock.stream_id for superblock in superblocks}),
        ("numbers of slots", {superblock.nslots for superblock in superblocks}),
        ("owners", {superblock.pid for superblock in superblocks}),
    ):
        if len(values) > 1:
            yield f"the regions name different {plural}: {', '.join(map(str, sorted(values)))}"


def _region_files(directory: Path) -> list[Path]:
    """The header ring first, then the pools by number."""
    entries = _entries(directory)
    files = [path for path in entries if path.name == HEADER_RING or _pool_of(path.name) is not None]
    return sorted(files, key=lambda path: _pool_of(path.name) or 0)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _pool_of(name: str) -> int | None:
    match = _POOL_FILE.fullmatch(name)
    return None if match is None else int(match[1])


def _epoch(directory: Path) -> int:
    return int(directory.name)


def user_of(uid: int) -> str:
    """The name of a user; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_of(gid: int) -> str:
    """The name of a group; the number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
