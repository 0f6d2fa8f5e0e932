"""What is in a recording, in figures.

Reads every byte of a recording and says what is not as it was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CorruptRecording, NotARecording
from . import layout, manifest
from .gaps import RecordingLedger
from .layout import check_root
from .manifest import DamagedManifest, Kind
from .manifest_store import load_index
from .recording import Recording
from .retention import LeaseClaim, read_leases
from .rows import RowBlock
from .segment_file import SegmentFile


@dataclass(slots=True)
class StreamInfo:
    """One stream of a recording."""

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
        """Sequences that are not there, by reason."""
        found: dict[str, int] = {}
        for ledger in self.ledgers:
            for reason, count in ledger.gaps.items():
                found[reason] = found.get(reason, 0) + count
        return found


@dataclass(slots=True)
class RecordingInfo:
    """A recording as a whole."""

    root: Path
    version: int
    streams: list[StreamInfo]
    leases: list[LeaseClaim]

    @property
    def rows(self) -> int:
        return sum(stream.rows for stream in self.streams)

    @property
    def size_bytes(self) -> int:
        return sum(stream.size_bytes for stream in self.streams)


def info(root: str | os.PathLike[str]) -> RecordingInfo:
    """Figures of a recording, from the manifest; only segments that are open or have holes are looked at."""
    recording = Recording(root)
    streams = [_stream(recording, stream_id) for stream_id in recording.streams]
    return RecordingInfo(recording.root, layout.VERSION, streams, read_leases(recording.root))


def _stream(recording: Recording, stream_id: int) -> StreamInfo:
    records = recording.segments[recording.segments["stream_id"] == stream_id]
    ledgers = recording.ledger(stream_id)
    is_open = records["kind"] == Kind.OPEN
    sealed = records[~is_open & (records["rows"] > 0)]
    first = int(sealed["first_time_ns"].min()) if len(sealed) else None
    last = int(sealed["last_time_ns"].max()) if len(sealed) else None
    size = int(records["size_bytes"].sum())
    for record in records[is_open]:
        name = layout.SegmentName(*(int(record[key]) for key in ("stream_id", "epoch", "first_seq")))
        for path in (name.partial(recording.root), name.sealed(recording.root)):
            if path.exists():
                size += path.stat().st_size
                break
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


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `kind` is a stable word."""

    kind: str
    path: Path
    offset: int | None
    message: str

    def __str__(self) -> str:
        where = str(self.path) if self.offset is None else f"{self.path}, byte {self.offset}"
        return f"{where}: {self.message}"


@dataclass(slots=True)
class VerifyResult:
    """What verifying found. A torn end of an open segment is a note: its writer may be at work."""

    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    ledgers: list[RecordingLedger] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(root: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyResult:
    """Checks every batch and every payload against its checksum, and the manifest against the files."""
    root = Path(root)
    check_root(root)
    found = VerifyResult()
    listed = _check_manifest(root, found)
    names = _names(root)
    sizes = [_size(root, name) for name, _ in names]
    done, total = 0, sum(sizes)
    for (name, is_sealed), size in zip(names, sizes, strict=True):
        record = listed.get(name) if listed is not None else None
        if listed is not None and record is None:
            found.notes.append(
                Problem("unlisted", name.sealed(root), None, "is not in the manifest; repair lists it")
            )
        rows = -1 if record is None or record[0] != Kind.SEALED else record[1]
        _check_segment(root, name, is_sealed, rows, found)
        done += size
        if progress is not None:
            progress(done, total)
    seen = {name for name, _ in names}
    for name, (kind, _) in (listed or {}).items():
        if name not in seen and kind == Kind.SEALED:
            found.problems.append(
                Problem("missing", name.sealed(root), None, "is in the manifest, and the file is gone")
            )
    if found.ok:
        recording = Recording(root)
        found.ledgers = [one for stream_id in recording.streams for one in recording.ledger(stream_id)]
    return found


def _names(root: Path) -> list[tuple[layout.SegmentName, bool]]:
    """The segments that there are, and whether each is sealed."""
    return [
        (layout.SegmentName(stream_id, epoch, first_seq), is_sealed)
        for stream_id, stream_dir in layout.stream_dirs(root).items()
        for epoch, epoch_dir in layout.epoch_dirs(stream_dir).items()
        for first_seq, is_sealed in layout.segments_in(epoch_dir).items()
    ]


def _size(root: Path, name: layout.SegmentName) -> int:
    for path in (name.partial(root), name.sealed(root)):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def _check_manifest(root: Path, found: VerifyResult) -> dict[layout.SegmentName, tuple[int, int]] | None:
    """Segment → (kind, rows) as the manifest has them; None if it cannot be used."""
    try:
        manifest.load(root)
    except DamagedManifest as error:
        if not (root / layout.MANIFEST_FILE).exists() and not _names(root):
            return None  # Nothing was recorded, so there was nothing to list.
        found.notes.append(
            Problem("manifest", root / layout.MANIFEST_FILE, None, f"{error}; repair makes a new one")
        )
        return None
    return {manifest.name_of(one): (int(one["kind"]), int(one["rows"])) for one in load_index(root).segments}


def _check_segment(
    root: Path, name: layout.SegmentName, is_sealed: bool, rows: int, found: VerifyResult
) -> None:
    path = name.sealed(root) if is_sealed else name.partial(root)
    try:
        file = SegmentFile(path)
    except FileNotFoundError:
        if not is_sealed:
            _check_segment(root, name, True, rows, found)
        return
    except (CorruptRecording, NotARecording) as error:
        # A writer that has just made its segment has not written the schema yet.
        place = found.problems if is_sealed else found.notes
        place.append(Problem("schema", path, 0, str(error)))
        return
    scan = file.scan_more(resume=True)
    found.segments += 1
    found.size_bytes += len(file.data)
    for damage in scan.damage:
        is_tail = damage.end == len(file.data)
        place = found.notes if is_tail and not is_sealed else found.problems
        place.append(
            Problem(
                "torn" if is_tail else "batch",
                path,
                damage.start,
                f"{damage.reason} ({damage.size_bytes} bytes)",
            )
        )
    for batch in scan.batches:
        try:
            block = RowBlock(file, batch)
        except CorruptRecording as error:
            found.problems.append(Problem("batch", path, batch.start, str(error)))
            continue
        if (block.stream_id, block.epoch) != (name.stream_id, name.epoch):
            found.problems.append(
                Problem(
                    "misplaced",
                    path,
                    batch.start,
                    f"belongs to stream {block.stream_id}, epoch {block.epoch}",
                )
            )
        found.rows += len(block)
        for row in block.damaged_rows().tolist():
            found.problems.append(
                Problem(
                    "payload", path, int(block.payload_at[row]),
                    f"the payload of frame {int(block.seq[row])} is not what was written",
                )
            )  # fmt: skip
    if rows > scan.rows and not scan.damage:
        found.problems.append(
            Problem("short", path, scan.end, f"has {scan.rows} rows, and the manifest knows of {rows}")
        )
