"""What a recording holds, from the manifest where it can be used, and from the files where not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import CorruptRecording, NotARecording
from . import layout, manifest
from .manifest import DamagedManifest, Kind, Manifest, Records
from .scan import SegmentFile
from .segment_writer import SegmentStats

# Directories of older epochs do not change any more, and there may be thousands.
_EPOCHS_WATCHED: Final = 16


def load_index(root: Path, before: Manifest | None = None) -> Manifest:
    """The manifest with what it did not know yet. Changes nothing on disk. `before` is what was last known:
    the next look is quicker then.
    """
    try:
        known = manifest.load(root, before=before.snapshot if before is not None else None)
    except DamagedManifest:
        return scan_files(root)
    settle_open(root, known)
    add_unlisted(root, known)
    return known


def add_unlisted(root: Path, known: Manifest) -> None:
    if unlisted := find_unlisted(root, known):
        fresh = np.concatenate(unlisted)
        known.segments = manifest.replaced(known.segments, [_key(one) for one in fresh], fresh)


def _key(one: Any) -> tuple[int, int, int]:
    return int(one["stream_id"]), int(one["epoch"]), int(one["first_seq"])


def settle_open(root: Path, known: Manifest) -> None:
    """Looks at the segments that were open when the manifest last heard of them."""
    keys, fresh = [], [np.empty(0, manifest.RECORD)]
    for one in known.open_segments():
        name = manifest.name_of(one)
        # In this order: it may be sealed between the two looks, but never the other way round.
        if name.partial(root).exists():
            continue
        keys.append(_key(one))
        if name.sealed(root).exists():
            fresh.append(describe(root, name))
    if keys:
        known.segments = manifest.replaced(known.segments, keys, np.concatenate(fresh))


def find_unlisted(root: Path, known: Manifest, *, but: Collection[tuple[int, int]] = ()) -> list[Records]:
    """Segments that the manifest does not know, except those of the given streams and epochs.

    A writer changes the manifest after every change of a directory, so a directory that changed later than
    the manifest tells of something else: a crash, a copy, a restored manifest.
    """
    changes: list[Records] = []
    for stream_id, stream_dir in layout.stream_dirs(root).items():
        epochs = sorted(layout.epoch_dirs(stream_dir).items())[-_EPOCHS_WATCHED:]
        for epoch, epoch_dir in epochs:
            if (stream_id, epoch) in but or epoch_dir.stat().st_mtime_ns <= known.changed_ns:
                continue
            listed = set(known.of(stream_id, epoch)["first_seq"].tolist())
            gone = {key[2] for key in known.removed if key[:2] == (stream_id, epoch)}
            for first_seq in layout.segments_in(epoch_dir):
                if first_seq not in listed and first_seq not in gone:
                    changes.append(describe(root, layout.SegmentName(stream_id, epoch, first_seq)))
    return changes


def scan_files(
    root: Path,
    *,
    known: Manifest | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Looks at every segment. What `known` says of a sealed one of the same size is believed."""
    names = [
        layout.SegmentName(stream_id, epoch, first_seq)
        for stream_id, stream_dir in layout.stream_dirs(root).items()
        for epoch, epoch_dir in layout.epoch_dirs(stream_dir).items()
        for first_seq in layout.segments_in(epoch_dir)
    ]
    believed = {_key(one): one for one in known.segments if one["kind"] == Kind.SEALED} if known else {}
    found = Manifest(known.generation if known else 0)
    found.trimmed = dict(known.trimmed) if known else {}
    records: list[Records] = []
    for number, name in enumerate(names):
        one = believed.get((name.stream_id, name.epoch, name.first_seq))
        path = name.sealed(root)
        if one is not None and path.exists() and path.stat().st_size == one["size_bytes"]:
            records.append(np.array([one], manifest.RECORD))
        else:
            records.append(describe(root, name))
        if progress is not None:
            progress(number + 1, len(names))
    if records:
        found.segments = manifest.sort(np.concatenate(records))
    return found


def describe(root: Path, name: layout.SegmentName) -> Records:
    """A manifest's record of a segment, from its file. One that cannot be read is listed with no rows."""
    sealed = name.sealed(root)
    kind, path = (Kind.SEALED, sealed) if sealed.exists() else (Kind.OPEN, name.partial(root))
    stats = SegmentStats()
    if kind is Kind.SEALED:
        try:
            stats = file_stats(SegmentFile(path))
        except FileNotFoundError:
            pass
        except (CorruptRecording, NotARecording):
            stats.size_bytes = path.stat().st_size
    return manifest.record(kind, name, stats)


def file_stats(file: SegmentFile) -> SegmentStats:
    """What is in a segment, by looking at every batch of it."""
    from .rows import RowBlock

    scan = file.scan_more(resume=True)
    stats = SegmentStats(rows=scan.rows, size_bytes=len(file.data))
    blocks = [RowBlock(file, place) for place in scan.batches]
    if blocks:
        stats.last_seq = scan.batches[-1].last_seq
        stats.payload_bytes = sum(int(block.payload_bytes.sum()) for block in blocks)
        stats.first_time_ns = min(int(block.receive_time_ns.min()) for block in blocks)
        stats.last_time_ns = max(int(block.receive_time_ns.max()) for block in blocks)
    return stats
