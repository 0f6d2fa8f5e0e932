"""One stream of a recording while it is written: its lock, its open segment, its sequences.

What a writer that died left behind: complete batches are kept, the torn tail is cut and reported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import CorruptRecording, InvalidFrames, NotARecording
from . import layout, manifest, manifest_store
from .arrow_format import END_OF_STREAM
from .batch import BatchBuilder, FrameBatch
from .gaps import Gap, GapTracker
from .layout import lock_stream
from .manifest import Kind
from .manifest_store import file_stats, load_index
from .rows import RowBlock
from .segment_file import SegmentFile
from .segment_writer import SegmentWriter
from .tables import read_gaps


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """What became of a segment that was not sealed."""

    name: layout.SegmentName
    rows: int
    cut_bytes: int
    reason: str | None
    """Why bytes were cut; None if the file ended with a complete batch."""
    path: Path | None
    """The sealed file; None if there was no complete batch, and the file is gone."""

    def __str__(self) -> str:
        where = f"stream {self.name.stream_id}, epoch {self.name.epoch}, segment {self.name.first_seq}"
        cut = f", {self.cut_bytes} torn bytes cut ({self.reason})" if self.cut_bytes else ""
        return f"{where}: {self.rows} rows kept{cut}"


def recover_stream(root: Path, stream_id: int) -> list[RecoveredSegment]:
    """Seals every open segment of a stream. The caller holds the stream's lock, so no writer is alive."""
    found = []
    for epoch, epoch_dir in layout.epoch_dirs(root / f"stream={stream_id}").items():
        for path in sorted(epoch_dir.glob(f"*{layout.PARTIAL}")):
            number = path.name.removesuffix(layout.PARTIAL)
            if number.isdigit():
                found.append(recover_segment(root, layout.SegmentName(stream_id, epoch, int(number))))
    return found


def recover_segment(root: Path, name: layout.SegmentName) -> RecoveredSegment:
    """Cuts the torn tail of an open segment and seals it."""
    path = name.partial(root)
    size = path.stat().st_size
    try:
        file = SegmentFile(path)
    except CorruptRecording as error:
        return _drop(root, name, size, str(error))
    except NotARecording:
        raise
    end, rows, reason = _sound_until(file)
    if rows == 0:
        return _drop(root, name, size, reason)
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
        sealed = name.sealed(root)
        path.rename(sealed)
        sync_directory(sealed.parent)
    stats = file_stats(SegmentFile(sealed))
    manifest_store.append(root, manifest.record(Kind.SEALED, name, stats))
    return RecoveredSegment(name, rows, max(size - end, 0), reason, sealed)


def _sound_until(file: SegmentFile) -> tuple[int, int, str | None]:
    """Where the complete batches end, how many rows they have, and what is wrong behind them."""
    scan = file.scan_more()
    tail = file.tail()
    reason = tail.reason if tail is not None else None
    rows = 0
    for place in scan.batches:
        # The size of a file may reach the disk before its content: after a power cut a batch may be there in
        # full, with zeros for payload.
        try:
            damaged = RowBlock(file, place).damaged_rows()
        except CorruptRecording as error:
            return place.start, rows, str(error)
        if len(damaged):
            return place.start, rows, "a payload is not what was written"
        rows += place.rows
    return scan.end, rows, reason


def _drop(root: Path, name: layout.SegmentName, size: int, reason: str | None) -> RecoveredSegment:
    path = name.partial(root)
    path.unlink()
    sync_directory(path.parent)
    manifest_store.append(root, manifest.record(Kind.REMOVED, name))
    return RecoveredSegment(name, 0, size, reason, None)


class StreamWriter:
    """Holds the stream's lock from its making to `release`. One thread at a time."""

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
        self.pending = BatchBuilder(stream_id, batch_bytes=batch_bytes, batch_rows=batch_rows)
        self.segment: SegmentWriter | None = None
        self.opened_ns = 0
        self._book: GapTracker | None = None
        self._epoch: int | None = max(self._ends, default=None)

    def _recorded_ends(self) -> dict[int, int]:
        """Epoch → the last sequence that is recorded, of earlier writers."""
        index = load_index(self.root)
        segments = index.of(self.stream_id)
        ends = {epoch: last for (stream, epoch), last in index.trimmed.items() if stream == self.stream_id}
        epochs = segments["epoch"]
        # Sorted by epoch: the last of each run has its highest sequence.
        for at in np.flatnonzero(np.append(epochs[1:] != epochs[:-1], len(epochs) > 0)).tolist():
            epoch, last = int(epochs[at]), int(segments["last_seq"][at])
            ends[epoch] = max(last, ends.get(epoch, 0))
        return ends

    @property
    def found(self) -> tuple[int, int] | None:
        """Epoch and sequence of the last frame of earlier writers."""
        return max(self._ends.items(), default=None)

    def book(self, epoch: int) -> GapTracker:
        """The sequences of an epoch. Epochs only grow, so a new one ends the segment of the last."""
        if self._book is not None and epoch == self._epoch:
            return self._book
        if self._epoch is not None and epoch < self._epoch:
            raise InvalidFrames(
                f"stream {self.stream_id}: epoch {epoch} comes after epoch {self._epoch}; epochs only grow",
                path=self.root,
            )
        if self._book is not None and self._epoch is not None and self._book.last_seq is not None:
            self._ends[self._epoch] = self._book.last_seq
        self._epoch = epoch
        last_seq = self._ends.get(epoch)
        # An earlier writer may have said what is missing behind its last frame.
        declared = [] if last_seq is None else read_gaps(self.root, self.stream_id, epoch)
        self._book = GapTracker(self.stream_id, epoch, last_seq=last_seq, declared=declared)
        return self._book

    def wants_new_segment(self, frames: FrameBatch, *, segment_bytes: int, opened_before_ns: int) -> bool:
        """Whether the open segment is not the one for these frames."""
        segment = self.segment
        if segment is None:
            return True
        if segment.stats.rows == 0:
            # Made for a batch that a full disk did not take. It is named after that batch's first frame.
            return segment.name != layout.SegmentName(frames.stream_id, frames.epoch, frames.first_seq)
        is_full = segment.end + frames.packed_bytes > segment_bytes
        is_old = self.opened_ns <= opened_before_ns
        return is_full or is_old or segment.name.epoch != frames.epoch

    @property
    def position(self) -> tuple[int, int] | None:
        """Where recording goes on: epoch, and the last sequence that is a row or in a gap."""
        if self._epoch is None or (last_seq := self.book(self._epoch).last_seq) is None:
            return None
        return self._epoch, last_seq

    def declare(self, gap: Gap) -> None:
        if self._epoch is not None and gap.epoch < self._epoch:
            self._declare_past(gap)
            return
        try:
            self.book(gap.epoch).declare(gap.first_seq, gap.count, gap.reason)
        except ValueError as error:
            raise InvalidFrames(
                f"stream {self.stream_id}, epoch {gap.epoch}: {error}", path=self.root
            ) from None

    def _declare_past(self, gap: Gap) -> None:
        """A gap behind the end of an epoch that is over: its last frames were heard of too late."""
        last_seq = self._ends.get(gap.epoch)
        if last_seq is None or gap.first_seq <= last_seq or gap.count < 1:
            raise InvalidFrames(
                f"stream {self.stream_id}, epoch {gap.epoch}: a gap from {gap.first_seq} on does not follow "
                f"what is accounted for",
                path=self.root,
            )
        self._ends[gap.epoch] = gap.last_seq

    def check(self, frames: FrameBatch) -> GapTracker:
        """The book that the frames belong to; raises UnfitFrames if they cannot be next."""
        if problem := frames.problem():
            raise InvalidFrames(f"stream {self.stream_id}: {problem}", path=self.root)
        book = self.book(frames.epoch)
        if problem := book.problem(frames.seq):
            raise InvalidFrames(f"stream {self.stream_id}, epoch {frames.epoch}: {problem}", path=self.root)
        return book

    def open_segment(self, frames: FrameBatch, now_ns: int) -> SegmentWriter:
        name = layout.SegmentName(self.stream_id, frames.epoch, frames.first_seq)
        segment = SegmentWriter(self.root, name)
        try:
            # After the file: until then a directory newer than the manifest tells of it. Not durably, for the
            # same reason, and because a sync would hold up the frames.
            manifest_store.append(self.root, manifest.record(Kind.OPEN, name), durably=False)
        except BaseException:
            segment.path.unlink(missing_ok=True)
            segment.abandon()
            raise
        self.segment, self.opened_ns = segment, now_ns
        return segment

    def write(self, frames: FrameBatch, book: GapTracker) -> list[Gap]:
        """Writes to the open segment; gives the gaps that come to light with these frames."""
        assert self.segment is not None, "the caller has opened one"
        self.segment.write(frames)
        return book.settle(frames.seq)

    def release(self) -> None:
        self._lock.release()
