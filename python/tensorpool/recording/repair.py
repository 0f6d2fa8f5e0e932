"""Makes a recording whole again: what reads is kept, what does not becomes a gap, nothing is thrown away."""

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
    """What a repair did."""

    recovered: list[RecoveredSegment] = field(default_factory=list)
    """Segments that were left open by a writer that died."""
    rewritten: list[Path] = field(default_factory=list)
    set_aside: list[Path] = field(default_factory=list)
    """Where the damaged originals are now."""
    lost: list[Gap] = field(default_factory=list)
    is_manifest_new: bool = False

    @property
    def changed(self) -> bool:
        return bool(self.recovered or self.rewritten or self.set_aside or self.is_manifest_new)


def repair(root: str | os.PathLike[str], *, progress: Progress | None = None) -> RepairResult:
    """Recovers open segments, takes damage out of sealed ones, makes a manifest that fits the files.

    Needs the locks of all streams, so it raises LockHeld while a writer is at work. Damaged originals are
    kept under `_damaged`.
    """
    root = Path(root)
    check_root(root)
    create_root(root, created_ns=SYSTEM_CLOCK.wall_ns())
    done = RepairResult()
    known: Manifest | None = None
    with manifest_store.locked(root):
        try:
            known = manifest.load(root)
        except DamagedManifest:
            done.is_manifest_new = True
    locks = []
    tables = TableWriter(root, f"{SYSTEM_CLOCK.wall_ns():020}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        streams = layout.stream_dirs(root)
        for stream_dir in streams.values():
            locks.append(lock_stream(stream_dir, "repair"))
        for stream_id in streams:
            done.recovered += recover_stream(root, stream_id)
        names = [
            layout.SegmentName(stream_id, epoch, first_seq)
            for stream_id, stream_dir in streams.items()
            for epoch, epoch_dir in layout.epoch_dirs(stream_dir).items()
            for first_seq in layout.segments_in(epoch_dir)
        ]
        for number, name in enumerate(names):
            _repair_segment(root, name, _last_seq(known, name), done)
            if progress is not None:
                progress(number + 1, len(names))
        for gap in done.lost:
            tables.add(
                "gaps",
                {
                    "time_ns": SYSTEM_CLOCK.wall_ns(), "stream_id": gap.stream_id,
                    "epoch": layout.signed(gap.epoch), "first_seq": layout.signed(gap.first_seq),
                    "count": layout.signed(gap.count), "reason": gap.reason,
                },
            )  # fmt: skip
        with manifest_store.locked(root):
            # Rewritten segments have other sizes than the manifest says, so those are looked at again.
            before = _load(root)
            after = manifest_store.rebuild_locked(root, known=before)
            if before is None or not np.array_equal(before.segments, after.segments):
                done.is_manifest_new = True
    finally:
        tables.close()
        for lock in locks:
            lock.release()
    return done


def _load(root: Path) -> Manifest | None:
    try:
        return manifest.load(root)
    except DamagedManifest:
        return None


def _last_seq(known: Manifest | None, name: layout.SegmentName) -> int | None:
    """The last sequence that a segment had, if the manifest still knows."""
    if known is None:
        return None
    records = known.of(name.stream_id, name.epoch)
    found = records[records["first_seq"] == np.uint64(name.first_seq)]
    return int(found["last_seq"][0]) if len(found) and found["rows"][0] else None


def _repair_segment(root: Path, name: layout.SegmentName, last_seq: int | None, done: RepairResult) -> None:
    path = name.sealed(root)
    kept: list[tuple[RowBlock, npt.NDArray[np.intp]]] = []
    try:
        file = SegmentFile(path, lenient=True)
    except (CorruptRecording, NotARecording):
        is_damaged = True
    else:
        scan = file.scan_more(resume=True)
        # Without a schema the first batch is looked for, and what lies before it counts as damage.
        is_damaged = bool(scan.damage) or file.tail() is not None
        for place in scan.batches:
            try:
                block = RowBlock(file, place)
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
            for start, stop in consecutive(rows):
                writer.write(block.as_frames(start, stop))
    aside = root / layout.DAMAGED_DIR / f"{name.stream_id}-{name.epoch}-{path.name}"
    for parent in make_directories(aside.parent, above=root):
        sync_directory(parent)
    path.rename(aside)
    sync_directory(aside.parent)
    done.set_aside.append(aside)
    if writer is not None:
        done.rewritten.append(writer.seal())
    done.lost += _lost(root, name, seqs, last_seq)


def _lost(
    root: Path, name: layout.SegmentName, seqs: npt.NDArray[np.uint64], last_seq: int | None
) -> list[Gap]:
    """The sequences that the segment had and has no more."""
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


def consecutive(rows: npt.NDArray[np.intp] | range) -> list[tuple[int, int]]:
    """Runs of neighbouring rows, as (start, stop): their payloads lie in one piece."""
    if len(rows) == 0:
        return []
    if isinstance(rows, range):
        return [(rows.start, rows.stop)]
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts)]
