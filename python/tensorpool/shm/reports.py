"""What a look at regions found, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sbe import RegionType
from .slots import RingReport


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
