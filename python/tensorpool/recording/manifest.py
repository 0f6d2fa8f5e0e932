"""The manifest: which segments there are, so that opening a recording does not look at each of them.

Two files at the root. `_manifest` is a snapshot, sorted, with one checksum; `_manifest.<generation>.log`
has what happened since, one record each with a checksum of its own. A segment is in the log before its file
exists and again when it is sealed: whatever a crash leaves unsaid, only segments that were said to be open
have to be looked at. A snapshot replaces its predecessor by a rename, and then the old log goes.

Appending takes the manifest's lock. Reading takes none.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from . import layout
from .segment_writer import SegmentStats

RECORD: Final = np.dtype(
    [
        ("kind", "u1"),
        ("reserved1", "u1", (3,)),
        ("stream_id", "<u4"),
        ("epoch", "<u8"),
        ("first_seq", "<u8"),
        ("last_seq", "<u8"),
        ("rows", "<u8"),
        ("size_bytes", "<u8"),
        ("payload_bytes", "<u8"),
        ("first_time_ns", "<i8"),
        ("last_time_ns", "<i8"),
        ("reserved2", "u1", (52,)),
        ("crc32c", "<u4"),
    ]
)
_HEAD: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("crc32c", "<u4"),
        ("generation", "<u8"),
        ("count", "<u8"),
        ("reserved", "u1", (32,)),
    ]
)
_MAGIC: Final = b"TPRECMAN"
_KEY: Final = ("stream_id", "epoch", "first_seq")
assert RECORD.itemsize == 128
assert _HEAD.itemsize == 64

Records = npt.NDArray[Any]
Key = tuple[int, int, int]


class Kind(IntEnum):
    OPEN = 1
    """A writer is about to make the segment, or has it open."""
    SEALED = 2
    REMOVED = 3
    """Retention removed it, or it came to nothing."""
    TRIMMED = 4
    """Nothing of stream and epoch is left up to `last_seq`: what removed segments leave in a snapshot."""


class DamagedManifest(Exception):
    """The manifest is missing or cannot be relied upon; the files themselves say what there is."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was read and found sound. Its head tells it from any other: generation and checksum."""

    head: bytes
    segments: Records
    trimmed: dict[tuple[int, int], int]
    has_open: bool


@dataclass(slots=True)
class Manifest:
    """What the manifest says at one moment. `segments` are sorted by stream, epoch, first sequence."""

    generation: int = 0
    segments: Records = field(default_factory=lambda: np.empty(0, RECORD))
    trimmed: dict[tuple[int, int], int] = field(default_factory=dict)
    """(stream, epoch) → the last sequence that was removed."""
    removed: list[Key] = field(default_factory=list)
    """Segments whose removal is in the log: their files may still be there."""
    log_records: int = 0
    changed_ns: int = 0
    """When a writer last touched it, by the clock of the filesystem."""
    snapshot: Snapshot | None = None
    """What the snapshot alone said, for the next look."""

    def open_segments(self) -> Records:
        if (
            self.snapshot is not None
            and self.segments is self.snapshot.segments
            and not self.snapshot.has_open
        ):
            return self.segments[:0]
        found: Records = self.segments[self.segments["kind"] == Kind.OPEN]
        return found

    def of(self, stream_id: int, epoch: int | None = None) -> Records:
        """The segments of a stream, or of one of its epochs."""
        found = _equal(self.segments, "stream_id", stream_id)
        return found if epoch is None else _equal(found, "epoch", epoch)


def _equal(records: Records, column: str, value: int) -> Records:
    low, high = _bounds(records[column], RECORD[column].type(value))
    found: Records = records[low:high]
    return found


def _bounds(column: npt.NDArray[Any], value: Any) -> tuple[int, int]:
    """Where a value stands in a sorted column. NumPy's own search would copy a column of records first."""
    return bisect_left(column, value), bisect_right(column, value)


def load(root: Path, *, before: Snapshot | None = None) -> Manifest:
    """Reads the manifest. Raises DamagedManifest if there is none, or it does not add up.

    A snapshot that is still the one of `before` is not read again: it has all segments there ever were.
    """
    for _ in range(100):
        manifest = _read_snapshot(root, before)
        try:
            log = _log_path(root, manifest.generation)
            content, changed = log.read_bytes(), log.stat().st_mtime_ns
        except FileNotFoundError:
            # Either nothing happened since, or a newer snapshot was made between the two looks.
            if _read_generation(root) != manifest.generation:
                continue
            return manifest
        _apply(manifest, _read_log(content))
        manifest.changed_ns = max(manifest.changed_ns, changed)
        return manifest
    raise DamagedManifest("the manifest changes faster than it can be read")


def _log_path(root: Path, generation: int) -> Path:
    return root / f"{layout.MANIFEST_FILE}.{generation}.log"


def _read_generation(root: Path) -> int:
    try:
        with (root / layout.MANIFEST_FILE).open("rb") as file:
            head = file.read(_HEAD.itemsize)
    except FileNotFoundError:
        return 0
    return int(np.frombuffer(head, _HEAD)["generation"][0]) if len(head) == _HEAD.itemsize else -1


def _read_snapshot(root: Path, before: Snapshot | None) -> Manifest:
    try:
        with (root / layout.MANIFEST_FILE).open("rb", buffering=0) as file:
            head = file.read(_HEAD.itemsize)
            status = os.fstat(file.fileno())
            if before is None or head != before.head or _snapshot_size(before) != status.st_size:
                before = _parsed(head, file.read())
    except FileNotFoundError:
        raise DamagedManifest("there is no manifest") from None
    generation = int(np.frombuffer(before.head, _HEAD, 1)[0]["generation"])
    return Manifest(
        generation,
        before.segments,
        dict(before.trimmed),
        changed_ns=status.st_mtime_ns,
        snapshot=before,
    )


def _snapshot_size(one: Snapshot) -> int:
    return _HEAD.itemsize + int(np.frombuffer(one.head, _HEAD, 1)[0]["count"]) * RECORD.itemsize


def _parsed(start: bytes, body: bytes) -> Snapshot:
    if len(start) < _HEAD.itemsize:
        raise DamagedManifest("the manifest is cut off")
    head = np.frombuffer(start, _HEAD, 1)[0]
    if head["magic"] != _MAGIC or head["version"] != layout.VERSION:
        raise DamagedManifest("the manifest has another form")
    if len(body) != int(head["count"]) * RECORD.itemsize:
        raise DamagedManifest("the manifest is cut off")
    if _head_checksum(head, body) != head["crc32c"]:
        raise DamagedManifest("the manifest was changed")
    records = np.frombuffer(body, RECORD)
    # Copied once: a look at every 128th byte takes longer than all that is done with them.
    kinds = records["kind"].copy()
    is_trimmed, has_open = kinds == Kind.TRIMMED, bool((kinds == Kind.OPEN).any())
    if not is_trimmed.any():
        return Snapshot(start, records, {}, has_open)
    trimmed = {
        (int(one["stream_id"]), int(one["epoch"])): int(one["last_seq"]) for one in records[is_trimmed]
    }
    return Snapshot(start, records[~is_trimmed], trimmed, has_open)


def _head_checksum(head: Any, body: memoryview | bytes) -> int:
    clean = head.copy()
    clean["crc32c"] = 0
    return _native.crc32c(body, _native.crc32c(clean.tobytes()))


def _read_log(content: bytes) -> Records:
    """The records of a log. A torn last one is what a crash leaves; anything else wrong is damage."""
    records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
    # All in one call: a reader that follows a recording does this again and again.
    starts = np.arange(len(records), dtype=np.uint64) * np.uint64(RECORD.itemsize)
    sums = _native.crc32c_each(content, starts, np.full(len(records), RECORD.itemsize - 4, np.uint64))
    wrong = np.flatnonzero(sums != records["crc32c"])
    if not len(wrong):
        return records
    if wrong[0] == len(records) - 1:
        return records[:-1]
    raise DamagedManifest(f"record {wrong[0]} of the log was changed")


def record_checksum(record: Any) -> int:
    return _native.crc32c(record.tobytes()[:-4])


def _apply(manifest: Manifest, log: Records) -> None:
    manifest.log_records = len(log)
    if not len(log):
        return
    # The newest record of a segment counts.
    latest = {key: number for number, key in enumerate(_keys_of(log))}
    newest = log[list(latest.values())]
    kinds = newest["kind"]
    for record in newest[(kinds == Kind.REMOVED) | (kinds == Kind.TRIMMED)]:
        key = _key_of(record)
        _trim(manifest, key[:2], int(record["last_seq"]), int(record["rows"]))
        manifest.removed.append(key)
    new = newest[(kinds == Kind.OPEN) | (kinds == Kind.SEALED)]
    manifest.segments = replaced(manifest.segments, list(latest), new)


def replaced(segments: Records, keys: Iterable[Key], new: Records) -> Records:
    """Sorted segments without those under `keys`, and with others."""
    keep = np.ones(len(segments), bool)
    end = _key_of(segments[-1]) if len(segments) else None
    # Most are new, and lie behind the last one that is known.
    keys = [key for key in keys if end is not None and key <= end]
    # Few change: each is found in the sorted array instead of looking at every segment.
    for key in keys:
        low, high = 0, len(segments)
        for column, value in zip(_KEY, key, strict=True):
            first, last = _bounds(segments[column][low:high], RECORD[column].type(value))
            low, high = low + first, low + last
        keep[low:high] = False
    added = sort(new)
    if not keys and (end is None or not len(added) or _key_of(added[0]) > end):
        return np.concatenate((segments, added))
    return sort(np.concatenate((segments[keep], added)))


def _trim(manifest: Manifest, where: tuple[int, int], last_seq: int, rows: int) -> None:
    if rows:
        manifest.trimmed[where] = max(manifest.trimmed.get(where, 0), last_seq)


def _keys_of(records: Records) -> list[Key]:
    return list(zip(*(records[name].tolist() for name in _KEY), strict=True))


def _key_of(record: Any) -> Key:
    return int(record["stream_id"]), int(record["epoch"]), int(record["first_seq"])


def sort(records: Records) -> Records:
    return records[np.lexsort([records[name] for name in reversed(_KEY)])]


def record(kind: Kind, name: layout.SegmentName, stats: SegmentStats | None = None) -> Records:
    """One record, with its checksum."""
    made = np.zeros(1, RECORD)
    made["kind"] = kind
    made["stream_id"], made["epoch"], made["first_seq"] = name.stream_id, name.epoch, name.first_seq
    for column in ("last_seq", "rows", "size_bytes", "payload_bytes", "first_time_ns", "last_time_ns"):
        made[column] = getattr(stats, column) if stats is not None else 0
    made["crc32c"] = record_checksum(made[0])
    return made


def name_of(one: Any) -> layout.SegmentName:
    return layout.SegmentName(*_key_of(one))


def snapshot(generation: int, manifest: Manifest) -> bytes:
    """The bytes of a snapshot."""
    trimmed = []
    for (stream_id, epoch), last_seq in manifest.trimmed.items():
        stats = SegmentStats(rows=1, last_seq=last_seq)
        trimmed.append(record(Kind.TRIMMED, layout.SegmentName(stream_id, epoch, 0), stats))
    body = sort(np.concatenate([manifest.segments, *trimmed])).tobytes()
    head = np.zeros(1, _HEAD)
    head["magic"], head["version"], head["generation"] = _MAGIC, layout.VERSION, generation
    head["count"] = len(body) // RECORD.itemsize
    head["crc32c"] = _head_checksum(head[0], body)
    return head.tobytes() + body


def log_path(root: Path, manifest: Manifest) -> Path:
    return _log_path(root, manifest.generation)


def logs(root: Path) -> Iterable[Path]:
    return root.glob(f"{layout.MANIFEST_FILE}.*.log")
