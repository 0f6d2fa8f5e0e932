"""The writer of one stream (lock, open segment, sequences), and recovery after a crashed writer.

Recovery keeps the complete batches of an open segment, truncates the torn end and reports it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import CorruptRecording, InvalidFrames
from ..text import parse_number
from . import layout, manifest, manifest_store, segment_index
from .arrow_format import END_OF_STREAM
from .batch import BatchBuilder, FrameBatch
from .gaps import Gap, GapTracker
from .layout import lock_stream
from .manifest import RecordKind
from .manifest_store import file_stats, load_index
from .rows import RowBlock
from .segment_file import SegmentFile
from .segment_writer import SegmentWriter
from .tables import read_gaps


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """Result of the recovery of one segment."""

    name: layout.SegmentName
    """Which segment."""
    rows: int
    """Frames that it has now."""
    cut_bytes: int
    """Bytes after its last complete batch, which were cut."""
    reason: str | None
    """Why bytes were cut; None if the file ended with a complete batch."""
    path: Path | None
    """The sealed file; None if there was no complete batch and the file was removed."""

    def __str__(self) -> str:
        segment = f"stream {self.name.stream_id}, epoch {self.name.epoch}, segment {self.name.first_seq}"
        cut = f", {self.cut_bytes} torn bytes cut ({self.reason})" if self.cut_bytes else ""
        return f"{segment}: {self.rows} rows kept{cut}"


def recover_stream(root: Path, stream_id: int) -> list[RecoveredSegment]:
    """Seals every open segment of a stream. The caller holds the stream's lock, so no writer is running."""
    recovered = []
    for epoch, epoch_dir in layout.epoch_dirs(root / f"stream={stream_id}").items():
        for path in sorted(epoch_dir.glob(f"*{layout.PARTIAL}")):
            first_seq = parse_number(path.name.removesuffix(layout.PARTIAL))
            if first_seq is not None:
                recovered.append(recover_segment(root, layout.SegmentName(stream_id, epoch, first_seq)))
    return recovered


def recover_segment(root: Path, name: layout.SegmentName) -> RecoveredSegment:
    """Truncates the torn end of an open segment and seals it."""
    path = name.partial(root)
    size = path.stat().st_size
    try:
        file = SegmentFile(path)
    except CorruptRecording as error:
        return _remove_segment(root, name, size, str(error))
    end, rows, reason = _intact_part(file)
    if rows == 0:
        return _remove_segment(root, name, size, reason)
    is_ended = file.scan.is_ended and reason is None
    del file
    with write_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, end)
            if not is_ended:
                write_all(fd, [memoryview(END_OF_STREAM)])
            os.fsync(fd)
        finally:
            os.close(fd)
        segment_index.write(root, name, path)
        sealed = name.sealed(root)
        path.rename(sealed)
        sync_directory(sealed.parent)
    stats = file_stats(SegmentFile(sealed))
    manifest_store.append(root, manifest.make_record(RecordKind.SEALED, name, stats))
    return RecoveredSegment(name, rows, max(size - end, 0), reason, sealed)


class _IntactPart(NamedTuple):
    """End of the intact batches of a segment, their rows, and the reason why the part behind is cut."""

    end: int
    rows: int
    reason: str | None


def _intact_part(file: SegmentFile) -> _IntactPart:
    scan = file.scan_more()
    tail = file.tail()
    reason = tail.reason if tail is not None else None
    rows = 0
    for location in scan.batches:
        # The size of a file may reach the disk before its content: after a power failure a batch may have its
        # full length, and a payload of zeros.
        try:
            damaged = RowBlock(file, location).damaged_rows()
        except CorruptRecording as error:
            return _IntactPart(location.start, rows, str(error))
        if len(damaged):
            return _IntactPart(location.start, rows, "a payload does not match its checksum")
        rows += location.rows
    return _IntactPart(scan.end, rows, reason)


def _remove_segment(root: Path, name: layout.SegmentName, size: int, reason: str | None) -> RecoveredSegment:
    path = name.partial(root)
    path.unlink()
    sync_directory(path.parent)
    manifest_store.append(root, manifest.make_record(RecordKind.REMOVED, name))
    return RecoveredSegment(name, 0, size, reason, None)


class StreamWriter:
    """Writes one stream. Holds the stream's lock from construction to `release`. Not thread-safe."""

    def __init__(self, root: Path, stream_id: int, *, holder: str, batch_bytes: int, batch_rows: int) -> None:
        self.root = root
        self.stream_id = stream_id
        directory = root / f"stream={stream_id}"
        for parent in make_directories(directory, above=root):
            sync_directory(parent)
        self._lock = lock_stream(directory, holder)
        try:
            self.recovered: list[RecoveredSegment] = recover_stream(root, stream_id)
            self._ends = self._recorded_ends()
        except BaseException:
            self._lock.release()
            raise
        self.builder = BatchBuilder(stream_id, batch_bytes=batch_bytes, batch_rows=batch_rows)
        """Frames that were appended one at a time and are not written yet."""
        self.segment: SegmentWriter | None = None
        self.opened_ns = 0
        self._tracker: GapTracker | None = None
        self._epoch: int | None = max(self._ends, default=None)

    def _recorded_ends(self) -> dict[int, int]:
        """Epoch → the last sequence that earlier writers recorded."""
        index = load_index(self.root)
        segments = index.segments_of(self.stream_id)
        ends = {epoch: last for (stream, epoch), last in index.trimmed.items() if stream == self.stream_id}
        epochs = segments["epoch"]
        # Sorted by epoch: the last record of each epoch has the highest sequence.
        for at in np.flatnonzero(np.append(epochs[1:] != epochs[:-1], len(epochs) > 0)).tolist():
            epoch, last = int(epochs[at]), int(segments["last_seq"][at])
            ends[epoch] = max(last, ends.get(epoch, 0))
        return ends

    @property
    def recorded_end(self) -> tuple[int, int] | None:
        """Epoch and sequence of the last frame of earlier writers."""
        return max(self._ends.items(), default=None)

    def tracker(self, epoch: int) -> GapTracker:
        """The gap tracker of an epoch. Raises InvalidFrames for an earlier epoch than the last one."""
        if self._tracker is not None and epoch == self._epoch:
            return self._tracker
        if self._epoch is not None and epoch < self._epoch:
            raise InvalidFrames(
                f"stream {self.stream_id}: epoch {epoch} comes after epoch {self._epoch}; epochs only grow",
                path=self.root,
            )
        if self._tracker is not None and self._epoch is not None and self._tracker.last_seq is not None:
            self._ends[self._epoch] = self._tracker.last_seq
        self._epoch = epoch
        last_seq = self._ends.get(epoch)
        # An earlier writer may have declared gaps behind its last frame.
        declared = [] if last_seq is None else read_gaps(self.root, self.stream_id, epoch)
        self._tracker = GapTracker(self.stream_id, epoch, last_seq=last_seq, declared=declared)
        return self._tracker

    def needs_new_segment(self, frames: FrameBatch, *, segment_bytes: int, opened_before_ns: int) -> bool:
        """Whether the open segment is full, too old, of another epoch or missing."""
        segment = self.segment
        if segment is None:
            return True
        if segment.stats.rows == 0:
            # Created for a batch that a full disk rejected, and named after that batch's first frame.
            return segment.name != layout.SegmentName(frames.stream_id, frames.epoch, frames.first_seq)
        is_full = segment.end + frames.packed_bytes > segment_bytes
        is_old = self.opened_ns <= opened_before_ns
        return is_full or is_old or segment.name.epoch != frames.epoch

    @property
    def position(self) -> tuple[int, int] | None:
        """The last epoch, and its last sequence that is a row or in a gap."""
        if self._epoch is None or (last_seq := self.tracker(self._epoch).last_seq) is None:
            return None
        return self._epoch, last_seq

    def declare(self, gap: Gap) -> None:
        """Adds a gap to the sequences of its epoch. Raises InvalidFrames if it overlaps them."""
        if self._epoch is not None and gap.epoch < self._epoch:
            self._declare_past(gap)
            return
        try:
            self.tracker(gap.epoch).declare(gap.first_seq, gap.count, gap.reason)
        except ValueError as error:
            raise InvalidFrames(
                f"stream {self.stream_id}, epoch {gap.epoch}: {error}", path=self.root
            ) from None

    def _declare_past(self, gap: Gap) -> None:
        """Adds a gap at the end of a past epoch: the recorder learned of its last frames too late."""
        last_seq = self._ends.get(gap.epoch)
        if last_seq is None or gap.first_seq <= last_seq or gap.count < 1:
            raise InvalidFrames(
                f"stream {self.stream_id}, epoch {gap.epoch}: a gap from {gap.first_seq} on does not follow "
                "the last row or gap",
                path=self.root,
            )
        self._ends[gap.epoch] = gap.last_seq

    def check(self, frames: FrameBatch) -> GapTracker:
        """The tracker of the frames' epoch. Raises InvalidFrames if they cannot be the next rows."""
        if fault := frames.content_fault():
            raise InvalidFrames(f"stream {self.stream_id}: {fault}", path=self.root)
        tracker = self.tracker(frames.epoch)
        if fault := tracker.sequence_fault(frames.seq):
            raise InvalidFrames(f"stream {self.stream_id}, epoch {frames.epoch}: {fault}", path=self.root)
        return tracker

    def open_segment(self, frames: FrameBatch, now_ns: int) -> SegmentWriter:
        """Creates the segment that begins with these frames, and lists it in the manifest."""
        name = layout.SegmentName(self.stream_id, frames.epoch, frames.first_seq)
        segment = SegmentWriter(self.root, name)
        try:
            # After the file was created: until it is listed, readers find it because its directory is newer
            # than the manifest. For the same reason without a sync, which would delay the frames.
            manifest_store.append(self.root, manifest.make_record(RecordKind.OPEN, name), sync=False)
        except BaseException:
            segment.path.unlink(missing_ok=True)
            segment.abandon()
            raise
        self.segment, self.opened_ns = segment, now_ns
        return segment

    def write(self, frames: FrameBatch, tracker: GapTracker) -> list[Gap]:
        """Writes to the open segment. Returns the undeclared gaps before and between these frames."""
        assert self.segment is not None, "the caller has opened one"
        self.segment.write(frames)
        return tracker.add_rows(frames.seq)

    def release(self) -> None:
        """Releases the stream's lock."""
        self._lock.release()
