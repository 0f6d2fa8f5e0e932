"""The manifest of a recording: its record format, and reading it.

The manifest lists the segments, so that opening a recording does not open each of them. It has two files at
the root. `_manifest` is a sorted snapshot with one checksum. `_manifest.<generation>.log` has the changes
since, as records with a checksum each; `_manifest.count` says how many these are. A segment is logged when it
is opened and again when it is sealed: after a crash only segments that are listed as open are examined. A new
snapshot replaces its predecessor by a rename, then the old log is removed.

Appending (`manifest_store`) takes the manifest's lock. Reading takes none.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

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
        ("head_crc32c", "<u4"),
        ("reserved2", "u1", (48,)),
        ("crc32c", "<u4"),
    ]
)
_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("crc32c", "<u4"),
        ("generation", "<u8"),
        ("count", "<u8"),
        ("minor", "<u4"),
        ("reserved", "u1", (28,)),
    ]
)
_COUNT: Final = np.dtype(
    [
        ("magic", "S8"),
        ("generation", "<u8"),
        ("log_records", "<u8"),
        ("reserved", "u1", (36,)),
        ("crc32c", "<u4"),
    ]
)
_MAGIC: Final = b"TPRECMAN"
_COUNT_MAGIC: Final = b"TPRECCNT"
_KEY: Final = ("stream_id", "epoch", "first_seq")
assert RECORD.itemsize == 128
HEADER_BYTES: Final = _HEADER.itemsize
"""The start of a snapshot file. Its generation and checksum change whenever the snapshot does."""
assert HEADER_BYTES == 64
assert _COUNT.itemsize == 64
_MAX_ATTEMPTS: Final = 100
_COUNT_MINOR: Final = 2
"""The minor version that added the count."""

Records = npt.NDArray[Any]


class SegmentKey(NamedTuple):
    """Stream, epoch and first sequence of a segment: what the records are sorted by."""

    stream_id: int
    epoch: int
    first_seq: int


class RecordKind(IntEnum):
    """The `kind` of a manifest record."""

    OPEN = 1
    """A writer is about to create the segment, or has it open."""
    SEALED = 2
    REMOVED = 3
    """Retention removed the segment, or it stayed empty."""
    TRIMMED = 4
    """All frames of stream and epoch up to `last_seq` were removed. Only in snapshots."""


class DamagedManifest(Exception):
    """The manifest is missing or inconsistent. The segment files must be scanned instead."""

    def __init__(self, reason: str, *, known: Manifest | None = None) -> None:
        """`known` is what the intact part contains: the files do not show what retention removed."""
        super().__init__(reason)
        self.known = known


class LogCount(NamedTuple):
    """The number of records that the log of a generation had at least: it shows that a log was cut."""

    generation: int
    log_records: int


@dataclass(frozen=True, slots=True)
class ManifestSnapshot:
    """A snapshot file that was read and verified. Its header identifies it: generation and checksum."""

    header: bytes
    segments: Records
    trimmed: dict[tuple[int, int], int]
    has_open: bool


@dataclass(slots=True)
class Manifest:
    """State of the manifest at one time. `segments` are sorted by stream, epoch, first sequence."""

    generation: int = 0
    segments: Records = field(default_factory=lambda: np.empty(0, RECORD))
    trimmed: dict[tuple[int, int], int] = field(default_factory=dict)
    """(stream, epoch) → the last sequence that was removed."""
    removed: list[SegmentKey] = field(default_factory=list)
    """Segments whose removal is in the log: their files may still exist."""
    log_records: int = 0
    changed_ns: int = 0
    """Time of the last change, by the clock of the filesystem."""
    snapshot: ManifestSnapshot | None = None
    """The snapshot without the log, so that the next `load` can reuse it."""

    def open_segments(self) -> Records:
        """The segments that are listed as open."""
        if (
            self.snapshot is not None
            and self.segments is self.snapshot.segments
            and not self.snapshot.has_open
        ):
            return self.segments[:0]
        records: Records = self.segments[self.segments["kind"] == RecordKind.OPEN]
        return records

    def segments_of(self, stream_id: int, epoch: int | None = None) -> Records:
        """The segments of a stream, or of one of its epochs."""
        records = _equal(self.segments, "stream_id", stream_id)
        return records if epoch is None else _equal(records, "epoch", epoch)


def _equal(records: Records, column: str, value: int) -> Records:
    low, high = _bounds(records[column], RECORD[column].type(value))
    part: Records = records[low:high]
    return part


def _bounds(column: npt.NDArray[Any], value: Any) -> tuple[int, int]:
    """First and end position of a value in a sorted column. `np.searchsorted` would copy the column first."""
    return bisect_left(column, value), bisect_right(column, value)


def load(root: Path, *, previous: ManifestSnapshot | None = None) -> Manifest:
    """Reads the manifest. Raises DamagedManifest if it is missing or inconsistent.

    A snapshot file that has not changed since `previous` is not read again.
    """
    for _ in range(_MAX_ATTEMPTS):
        # The count first: a log only grows, so an intact one has at least as many records as were counted.
        count = read_count(root) or LogCount(0, 0)
        manifest = _read_snapshot(root, previous)
        if count.generation > manifest.generation:
            raise DamagedManifest("the manifest was replaced by an older one", known=manifest)
        expected = count.log_records if count.generation == manifest.generation else 0
        try:
            log = log_path(root, manifest.generation)
            content, changed = log.read_bytes(), log.stat().st_mtime_ns
        except FileNotFoundError:
            # Either there was no change, or a newer snapshot replaced this one meanwhile.
            if _read_generation(root) != manifest.generation:
                continue
            if expected:
                raise DamagedManifest(f"the log with {expected} records is missing", known=manifest) from None
            return manifest
        records = _read_log(content, manifest)
        _apply_log(manifest, records)
        manifest.changed_ns = max(manifest.changed_ns, changed)
        if len(records) < expected:
            if _read_generation(root) != manifest.generation:
                continue
            raise DamagedManifest(f"the log has {len(records)} of {expected} records", known=manifest)
        return manifest
    raise DamagedManifest("the manifest changes faster than it can be read")


def read_count(root: Path) -> LogCount | None:
    """The counted records of the log; None if there is no valid count, as in old recordings."""
    try:
        content = (root / layout.MANIFEST_COUNT).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _COUNT.itemsize:
        return None
    record = np.frombuffer(content, _COUNT)[0]
    if record["magic"] != _COUNT_MAGIC or record_checksum(record) != record["crc32c"]:
        return None
    return LogCount(int(record["generation"]), int(record["log_records"]))


def encode_count(count: LogCount) -> bytes:
    """The content of the file of the count."""
    record = np.zeros(1, _COUNT)
    record["magic"], record["generation"], record["log_records"] = _COUNT_MAGIC, *count
    record["crc32c"] = record_checksum(record[0])
    return record.tobytes()


def has_count(root: Path) -> bool:
    """Whether the writer of the snapshot also wrote a count: since version 1.2."""
    try:
        with (root / layout.MANIFEST_FILE).open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return False
    return len(header) == HEADER_BYTES and int(np.frombuffer(header, _HEADER)["minor"][0]) >= _COUNT_MINOR


def log_name(generation: int) -> str:
    """The name of the log that follows the snapshot of a generation."""
    return f"{layout.MANIFEST_FILE}.{generation}.log"


def log_path(root: Path, generation: int) -> Path:
    """The log that follows the snapshot of a generation."""
    return root / log_name(generation)


def log_files(root: Path) -> Iterable[Path]:
    """All logs, of any generation."""
    return root.glob(f"{layout.MANIFEST_FILE}.*.log")


def _read_generation(root: Path) -> int:
    try:
        with (root / layout.MANIFEST_FILE).open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return 0
    return decode_generation(header)


def decode_generation(header: bytes) -> int:
    """The generation in the header of a snapshot file; -1 if the header is truncated."""
    return int(np.frombuffer(header, _HEADER, 1)[0]["generation"]) if len(header) >= HEADER_BYTES else -1


def _read_snapshot(root: Path, previous: ManifestSnapshot | None) -> Manifest:
    try:
        with (root / layout.MANIFEST_FILE).open("rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
            status = os.fstat(file.fileno())
            if previous is None or header != previous.header or _snapshot_size(previous) != status.st_size:
                previous = _parse_snapshot(header, file.read())
    except FileNotFoundError:
        raise DamagedManifest("there is no manifest") from None
    return Manifest(
        decode_generation(previous.header),
        previous.segments,
        dict(previous.trimmed),
        changed_ns=status.st_mtime_ns,
        snapshot=previous,
    )


def _snapshot_size(snapshot: ManifestSnapshot) -> int:
    return HEADER_BYTES + int(np.frombuffer(snapshot.header, _HEADER, 1)[0]["count"]) * RECORD.itemsize


def _parse_snapshot(start: bytes, body: bytes) -> ManifestSnapshot:
    if len(start) < HEADER_BYTES:
        raise DamagedManifest("the manifest is truncated")
    header = np.frombuffer(start, _HEADER, 1)[0]
    if header["magic"] != _MAGIC or header["version"] != layout.VERSION:
        raise DamagedManifest("the manifest has an unknown format")
    if len(body) != int(header["count"]) * RECORD.itemsize:
        raise DamagedManifest("the manifest is truncated")
    if _snapshot_checksum(header, body) != header["crc32c"]:
        raise DamagedManifest("the manifest was changed")
    records = np.frombuffer(body, RECORD)
    # Copied once: repeated access to every 128th byte takes longer than all that follows.
    kinds = records["kind"].copy()
    is_trimmed, has_open = kinds == RecordKind.TRIMMED, bool((kinds == RecordKind.OPEN).any())
    if not is_trimmed.any():
        return ManifestSnapshot(start, records, {}, has_open)
    trimmed = {
        (int(record["stream_id"]), int(record["epoch"])): int(record["last_seq"])
        for record in records[is_trimmed]
    }
    return ManifestSnapshot(start, records[~is_trimmed], trimmed, has_open)


def decode_snapshot(content: bytes) -> Manifest:
    """The manifest in the bytes of a snapshot file. Raises DamagedManifest."""
    snapshot = _parse_snapshot(content[:HEADER_BYTES], content[HEADER_BYTES:])
    return Manifest(
        decode_generation(snapshot.header), snapshot.segments, dict(snapshot.trimmed), snapshot=snapshot
    )


def _snapshot_checksum(header: Any, body: memoryview | bytes) -> int:
    blank = header.copy()
    blank["crc32c"] = 0
    return _native.crc32c(body, _native.crc32c(blank.tobytes()))


def _read_log(content: bytes, snapshot: Manifest) -> Records:
    """The records of a log. A crash may leave a torn last record; any other wrong checksum is damage."""
    records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
    # All checksums in one call: a reader that follows a recording does this repeatedly.
    starts = np.arange(len(records), dtype=np.uint64) * np.uint64(RECORD.itemsize)
    sums = _native.crc32c_each(content, starts, np.full(len(records), RECORD.itemsize - 4, np.uint64))
    wrong = np.flatnonzero(sums != records["crc32c"])
    if not len(wrong):
        return records
    if wrong[0] == len(records) - 1:
        return records[:-1]
    raise DamagedManifest(f"record {wrong[0]} of the log was changed", known=snapshot)


def record_checksum(record: Any) -> int:
    """Checksum of a record without its last field."""
    return _native.crc32c(record.tobytes()[:-4])


def _apply_log(manifest: Manifest, log: Records) -> None:
    manifest.log_records = len(log)
    if not len(log):
        return
    # Only the last record of each segment is valid.
    last_number = {key: number for number, key in enumerate(_record_keys(log))}
    newest = log[list(last_number.values())]
    kinds = newest["kind"]
    for record in newest[(kinds == RecordKind.REMOVED) | (kinds == RecordKind.TRIMMED)]:
        key = record_key(record)
        if record["rows"]:
            epoch_key = key.stream_id, key.epoch
            manifest.trimmed[epoch_key] = max(manifest.trimmed.get(epoch_key, 0), int(record["last_seq"]))
        manifest.removed.append(key)
    new = newest[(kinds == RecordKind.OPEN) | (kinds == RecordKind.SEALED)]
    manifest.segments = replace_segments(manifest.segments, list(last_number), new)


def replace_segments(segments: Records, keys: Iterable[SegmentKey], new: Records) -> Records:
    """Sorted segments without those of `keys`, and with `new`."""
    keep = np.ones(len(segments), bool)
    end = record_key(segments[-1]) if len(segments) else None
    # Most keys are of new segments, behind the last one of the list.
    keys = [key for key in keys if end is not None and key <= end]
    # Few segments change: each is found by a binary search instead of a comparison with every segment.
    for key in keys:
        low, high = 0, len(segments)
        for column, value in zip(_KEY, key, strict=True):
            first, last = _bounds(segments[column][low:high], RECORD[column].type(value))
            low, high = low + first, low + last
        keep[low:high] = False
    added = sort_records(new)
    if not keys and (end is None or not len(added) or record_key(added[0]) > end):
        return np.concatenate((segments, added))
    return sort_records(np.concatenate((segments[keep], added)))


def _record_keys(records: Records) -> list[SegmentKey]:
    return [SegmentKey(*key) for key in zip(*(records[name].tolist() for name in _KEY), strict=True)]


def record_key(record: Any) -> SegmentKey:
    """The key of one record."""
    return SegmentKey(int(record["stream_id"]), int(record["epoch"]), int(record["first_seq"]))


def sort_records(records: Records) -> Records:
    """The records in order of their keys."""
    return records[np.lexsort([records[name] for name in reversed(_KEY)])]


def make_record(kind: RecordKind, name: layout.SegmentName, stats: SegmentStats | None = None) -> Records:
    """An array of one record, with its checksum."""
    record = np.zeros(1, RECORD)
    record["kind"] = kind
    record["stream_id"], record["epoch"], record["first_seq"] = name.stream_id, name.epoch, name.first_seq
    for column in (
        "last_seq", "rows", "size_bytes", "payload_bytes", "first_time_ns", "last_time_ns", "head_crc32c",
    ):  # fmt: skip
        record[column] = getattr(stats, column) if stats is not None else 0
    record["crc32c"] = record_checksum(record[0])
    return record


def segment_name(record: Any) -> layout.SegmentName:
    """The segment of a record."""
    return layout.SegmentName(*record_key(record))


def encode_snapshot(generation: int, manifest: Manifest) -> bytes:
    """The content of a snapshot file."""
    trimmed = []
    for (stream_id, epoch), last_seq in manifest.trimmed.items():
        stats = SegmentStats(rows=1, last_seq=last_seq)
        trimmed.append(make_record(RecordKind.TRIMMED, layout.SegmentName(stream_id, epoch, 0), stats))
    body = sort_records(np.concatenate([manifest.segments, *trimmed])).tobytes()
    header = np.zeros(1, _HEADER)
    header["magic"], header["version"], header["generation"] = _MAGIC, layout.VERSION, generation
    header["count"], header["minor"] = len(body) // RECORD.itemsize, layout.MINOR
    header["crc32c"] = _snapshot_checksum(header[0], body)
    return header.tobytes() + body
