"""Totals of a recording (`info`), and a check of all its bytes (`verify`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptRecording, NotARecording
from . import layout, manifest
from .gaps import RecordingLedger
from .layout import check_root
from .manifest import DamagedManifest, RecordKind
from .manifest_store import load_index
from .recording import Recording
from .retention import LeaseClaim, read_leases
from .rows import RowBlock
from .segment_file import SegmentFile

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


@dataclass(slots=True)
class StreamInfo:
    """Totals of one stream of a recording."""

    stream_id: int
    segments: int
    open_segments: int
    rows: int
    size_bytes: int
    first_time_ns: int | None
    last_time_ns: int | None
    ledgers: list[RecordingLedger] = field(default_factory=list)

    @property
    def missing(self) -> dict[str, int]:
        """Number of missing sequences by reason."""
        missing: dict[str, int] = {}
        for ledger in self.ledgers:
            for reason, count in ledger.gaps.items():
                missing[reason] = missing.get(reason, 0) + count
        return missing


@dataclass(slots=True)
class RecordingInfo:
    """Totals of a recording."""

    root: Path
    version: int
    streams: list[StreamInfo]
    leases: list[LeaseClaim]

    @property
    def rows(self) -> int:
        """Number of frames."""
        return sum(stream.rows for stream in self.streams)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return sum(stream.size_bytes for stream in self.streams)


def info(root: str | os.PathLike[str]) -> RecordingInfo:
    """Totals of a recording from its manifest. Opens only segments that are not sealed or have holes."""
    recording = Recording(root)
    streams = [_stream_info(recording, stream_id) for stream_id in recording.streams]
    return RecordingInfo(recording.root, layout.VERSION, streams, read_leases(recording.root))


def _stream_info(recording: Recording, stream_id: int) -> StreamInfo:
    records = recording.segments[recording.segments["stream_id"] == stream_id]
    ledgers = recording.ledger(stream_id)
    is_open = records["kind"] == RecordKind.OPEN
    sealed = records[~is_open & (records["rows"] > 0)]
    first = int(sealed["first_time_ns"].min()) if len(sealed) else None
    last = int(sealed["last_time_ns"].max()) if len(sealed) else None
    size = int(records["size_bytes"].sum())
    for record in records[is_open]:
        name = manifest.segment_name(record)
        size += _file_size(recording.root, name)
        for block, _ in recording.frames(
            stream_id, epoch=name.epoch, seq=(name.first_seq, None), skip_damage=True
        ).runs():
            low, high = int(block.receive_time_ns.min()), int(block.receive_time_ns.max())
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
    return StreamInfo(
        stream_id=stream_id,
        segments=len(records),
        open_segments=int(is_open.sum()),
        rows=sum(ledger.rows for ledger in ledgers),
        size_bytes=size,
        first_time_ns=first,
        last_time_ns=last,
        ledgers=ledgers,
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between a recording and what was written. `kind` is a stable identifier."""

    kind: str
    path: Path
    offset: int | None
    message: str

    def __str__(self) -> str:
        location = str(self.path) if self.offset is None else f"{self.path}, byte {self.offset}"
        return f"{location}: {self.message}"


class _ListedSegment(NamedTuple):
    """The part of a manifest record that `verify` compares with the file."""

    kind: int
    rows: int


@dataclass(slots=True)
class VerifyResult:
    """Totals and problems. A torn end of an open segment is only a note: its writer may be running."""

    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    ledgers: list[RecordingLedger] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def add_problem(self, kind: str, path: Path, offset: int | None, message: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(kind, path, offset, message))

    def add_note(self, kind: str, path: Path, offset: int | None, message: str) -> None:
        """Adds a note: a finding that does not make the recording bad."""
        self.notes.append(Problem(kind, path, offset, message))


def verify(root: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyResult:
    """Checks every batch and every payload against its checksum, and the manifest against the files."""
    root = Path(root)
    check_root(root)
    result = VerifyResult()
    listed = _check_manifest(root, result)
    segments = layout.all_segments(root)
    sizes = {name: _file_size(root, name) for name in segments}
    done, total = 0, sum(sizes.values())
    for name, is_sealed in segments.items():
        record = listed.get(name) if listed is not None else None
        if listed is not None and record is None:
            result.add_note("unlisted", name.sealed(root), None, "is not in the manifest; repair adds it")
        rows = -1 if record is None or record.kind != RecordKind.SEALED else record.rows
        _check_segment(root, name, is_sealed, rows, result)
        done += sizes[name]
        if progress is not None:
            progress(done, total)
    for name, record in (listed or {}).items():
        if name not in segments and record.kind == RecordKind.SEALED:
            result.add_problem("missing", name.sealed(root), None, "is in the manifest, but has no file")
    if result.ok:
        recording = Recording(root)
        result.ledgers = [ledger for stream_id in recording.streams for ledger in recording.ledger(stream_id)]
    return result


def _file_size(root: Path, name: layout.SegmentName) -> int:
    for path in (name.partial(root), name.sealed(root)):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def _check_manifest(root: Path, result: VerifyResult) -> dict[layout.SegmentName, _ListedSegment] | None:
    """The segments that the manifest lists; None if it is damaged or missing."""
    path = root / layout.MANIFEST_FILE
    try:
        manifest.load(root)
    except DamagedManifest as error:
        if path.exists() or layout.all_segments(root):
            result.add_note("manifest", path, None, f"{error}; repair writes a new one")
        # Otherwise nothing was recorded, so there is nothing to list.
        return None
    return {
        manifest.segment_name(record): _ListedSegment(int(record["kind"]), int(record["rows"]))
        for record in load_index(root).segments
    }


def _check_segment(
    root: Path, name: layout.SegmentName, is_sealed: bool, rows: int, result: VerifyResult
) -> None:
    path = name.sealed(root) if is_sealed else name.partial(root)
    try:
        file = SegmentFile(path)
    except FileNotFoundError:
        if not is_sealed:
            _check_segment(root, name, True, rows, result)
        return
    except (CorruptRecording, NotARecording) as error:
        # A writer that has just created its segment has not written the schema yet.
        add = result.add_problem if is_sealed else result.add_note
        add("schema", path, 0, str(error))
        return
    scan = file.scan_more(resume=True)
    result.segments += 1
    result.size_bytes += len(file.data)
    for damage in scan.damage:
        is_tail = damage.end == len(file.data)
        add = result.add_note if is_tail and not is_sealed else result.add_problem
        kind = "torn" if is_tail else "batch"
        add(kind, path, damage.start, f"{damage.reason} ({damage.size_bytes} bytes)")
    for batch in scan.batches:
        try:
            block = RowBlock(file, batch)
        except CorruptRecording as error:
            result.add_problem("batch", path, batch.start, str(error))
            continue
        if (block.stream_id, block.epoch) != (name.stream_id, name.epoch):
            message = f"belongs to stream {block.stream_id}, epoch {block.epoch}"
            result.add_problem("misplaced", path, batch.start, message)
        result.rows += len(block)
        for row in block.damaged_rows().tolist():
            message = f"the payload of frame {int(block.seq[row])} does not match its checksum"
            result.add_problem("payload", path, int(block.payload_offset[row]), message)
    if rows > scan.rows and not scan.damage:
        message = f"has {scan.rows} rows, but the manifest lists {rows}"
        result.add_problem("short", path, scan.end, message)
