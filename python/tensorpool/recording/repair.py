"""Repair of a recording: intact frames are kept, damaged ones become gaps, damaged files are set aside."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..clock import SYSTEM_CLOCK
from ..durable import make_directories, sync_directory
from ..errors import CorruptRecording, NotARecording
from . import layout, manifest, manifest_store
from .gaps import CORRUPT, Gap, classify_missing, find_holes
from .inspect import Progress
from .layout import check_root, create_root, lock_stream
from .manifest import DamagedManifest, Manifest
from .rows import RowBlock
from .segment_file import SegmentFile
from .segment_writer import SegmentWriter
from .stream_writer import RecoveredSegment, recover_stream
from .tables import TableWriter, read_gaps


@dataclass(slots=True)
class RepairResult:
    """The changes of a repair."""

    recovered: list[RecoveredSegment] = field(default_factory=list)
    """Segments that a crashed writer left open."""
    rewritten: list[Path] = field(default_factory=list)
    quarantined: list[Path] = field(default_factory=list)
    """The damaged originals, under their new paths."""
    lost: list[Gap] = field(default_factory=list)
    manifest_rebuilt: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything was repaired."""
        return bool(self.recovered or self.rewritten or self.quarantined or self.manifest_rebuilt)


def repair(root: str | os.PathLike[str], *, progress: Progress | None = None) -> RepairResult:
    """Recovers open segments, rewrites damaged ones without the damage, and rebuilds the manifest.

    Takes the locks of all streams, so it raises LockHeld while a writer is running. Damaged originals are
    moved to `_damaged`.
    """
    root = Path(root)
    check_root(root)
    create_root(root, created_ns=SYSTEM_CLOCK.wall_ns())
    result = RepairResult()
    with manifest_store.locked(root):
        known = _load_manifest(root)
    result.manifest_rebuilt = known is None
    locks = []
    tables = TableWriter(root, f"{SYSTEM_CLOCK.wall_ns():020}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        streams = layout.stream_dirs(root)
        for stream_dir in streams.values():
            locks.append(lock_stream(stream_dir, "repair"))
        for stream_id in streams:
            result.recovered += recover_stream(root, stream_id)
        names = [name for name in layout.all_segments(root) if name.stream_id in streams]
        for number, name in enumerate(names):
            _repair_segment(root, name, _last_seq(known, name), result)
            if progress is not None:
                progress(number + 1, len(names))
        for gap in result.lost:
            tables.add_gap(gap, SYSTEM_CLOCK.wall_ns())
        with manifest_store.locked(root):
            # Rewritten segments have other sizes than the manifest lists, so the rebuild reads them again.
            before = _load_manifest(root)
            after = manifest_store.rebuild_locked(root, known=before)
            if before is None or not np.array_equal(before.segments, after.segments):
                result.manifest_rebuilt = True
    finally:
        tables.close()
        for lock in locks:
            lock.release()
    return result


def _load_manifest(root: Path) -> Manifest | None:
    try:
        return manifest.load(root)
    except DamagedManifest:
        return None


def _last_seq(known: Manifest | None, name: layout.SegmentName) -> int | None:
    """The last sequence of a segment in the manifest; None if the manifest does not list it."""
    if known is None:
        return None
    records = known.segments_of(name.stream_id, name.epoch)
    records = records[records["first_seq"] == np.uint64(name.first_seq)]
    return int(records["last_seq"][0]) if len(records) and records["rows"][0] else None


def _repair_segment(root: Path, name: layout.SegmentName, last_seq: int | None, result: RepairResult) -> None:
    path = name.sealed(root)
    kept: list[tuple[RowBlock, npt.NDArray[np.intp]]] = []
    try:
        file = SegmentFile(path, lenient=True)
    except (CorruptRecording, NotARecording):
        is_damaged = True
    else:
        scan = file.scan_more(resume=True)
        # Without a schema the scan searches for the first batch; the bytes before it are damage.
        is_damaged = bool(scan.damage) or file.tail() is not None
        for location in scan.batches:
            try:
                block = RowBlock(file, location)
            except CorruptRecording:
                is_damaged = True
                continue
            bad = block.damaged_rows()
            is_damaged |= len(bad) > 0
            kept.append((block, np.setdiff1d(np.arange(len(block)), bad)))
        if last_seq is not None and scan.batches and scan.batches[-1].last_seq < last_seq:
            is_damaged = True
    if not is_damaged:
        return
    seqs = np.concatenate([block.seq[rows] for block, rows in kept] or [np.empty(0, np.uint64)])
    writer = None
    if len(seqs):
        writer = SegmentWriter(root, layout.SegmentName(name.stream_id, name.epoch, int(seqs[0])))
        for block, rows in kept:
            for start, stop in consecutive_runs(rows):
                writer.write(block.to_frames(start, stop))
    aside = root / layout.DAMAGED_DIR / f"{name.stream_id}-{name.epoch}-{path.name}"
    for parent in make_directories(aside.parent, above=root):
        sync_directory(parent)
    path.rename(aside)
    sync_directory(aside.parent)
    result.quarantined.append(aside)
    if writer is not None:
        result.rewritten.append(writer.seal())
    result.lost += _lost_sequences(root, name, seqs, last_seq)


def _lost_sequences(
    root: Path, name: layout.SegmentName, seqs: npt.NDArray[np.uint64], last_seq: int | None
) -> list[Gap]:
    """The gaps that the damage leaves in a segment; without those that were declared before."""
    missing = find_holes(seqs, after=name.first_seq - 1) if len(seqs) else []
    end = int(seqs[-1]) if len(seqs) else name.first_seq - 1
    if last_seq is not None and end < last_seq:
        missing.append((end + 1, last_seq))
    declared = read_gaps(root, name.stream_id, name.epoch)
    return [
        Gap(name.stream_id, name.epoch, first, last - first + 1, CORRUPT)
        for first, last, reason in classify_missing(missing, declared, CORRUPT)
        if reason == CORRUPT
    ]


def consecutive_runs(rows: npt.NDArray[np.intp] | range) -> list[tuple[int, int]]:
    """Runs of consecutive row numbers as (start, stop): their payloads are contiguous."""
    if len(rows) == 0:
        return []
    if isinstance(rows, range):
        return [(rows.start, rows.stop)]
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts)]
