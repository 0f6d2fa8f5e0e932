"""Copies of recordings: a part of one (`cut`), or several merged into one (`merge`).

Payloads are written to the new files directly from the mapped old ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import MergeConflict, NotARecording
from .arrow_format import TABLES
from .batch import FrameBatch
from .gaps import Gap, classify_missing, find_holes, merge_gaps
from .recording import Recording, Time
from .repair import consecutive_runs
from .rows import RowBlock
from .selection import Frames
from .tables import TableWriter
from .verify import Progress
from .writer import RecordingWriter, WriterLimits

CUT: Final = "cut"
"""The reason of gaps that a cut makes."""
NOT_RECORDED: Final = "not_recorded"
"""The reason of gaps between the merged recordings."""


@dataclass(slots=True)
class CopyResult:
    """Totals of the new recording."""

    rows: int = 0
    payload_bytes: int = 0
    streams: set[int] = field(default_factory=set)

    def add(self, frames: FrameBatch) -> None:
        """Counts frames that were written."""
        self.rows += len(frames)
        self.payload_bytes += int(frames.payload_bytes.sum())
        self.streams.add(frames.stream_id)


def cut(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    streams: Iterable[int | str] | None = None,
    seq: tuple[int | None, int | None] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    limits: WriterLimits | None = None,
    progress: Progress | None = None,
) -> CopyResult:
    """Copies selected frames, their gaps and the tables into a new recording. Bounds include both ends."""
    recording = Recording(source)
    result = CopyResult()
    total = int(recording.segments["payload_bytes"].sum())
    chosen = recording.streams if streams is None else streams
    stream_ids = [recording.find_stream(stream) for stream in chosen]
    for stream_id in stream_ids:
        # Raises FrameNotRecorded for an unknown stream before the target is created.
        recording.frames(stream_id)
    with new_recording(target, limits) as writer:
        for stream_id in stream_ids:
            for epoch in recording.epochs(stream_id):
                epoch_copy = EpochCopy(writer, result, recording.gaps(stream_id, epoch=epoch), CUT)
                frames = recording.frames(stream_id, epoch=epoch, seq=seq, time=time)
                for block, rows in frames.runs():
                    for start, stop in consecutive_runs(rows):
                        epoch_copy.write(block.to_frames(start, stop))
                        if progress is not None:
                            progress(min(result.payload_bytes, total), total)
                epoch_copy.finish(seq[1] if seq is not None else None, is_end=time is None)
        copy_tables([recording], writer.root, result.streams)
    return result


def new_recording(target: str | os.PathLike[str], limits: WriterLimits | None) -> RecordingWriter:
    """A writer for a directory that is new or empty."""
    root = Path(target)
    if root.exists() and any(root.iterdir()):
        raise NotARecording(f"{root} is not empty; name a new directory", path=root)
    return RecordingWriter(root, limits=limits, holder="copy")


class EpochCopy:
    """Writes the frames of one epoch in order, with the gaps between them."""

    def __init__(
        self, writer: RecordingWriter, result: CopyResult, gaps: Sequence[Gap], default_reason: str
    ) -> None:
        self._writer = writer
        self._result = result
        self._gaps = gaps
        self._default_reason = default_reason
        self._last: FrameBatch | None = None

    def write(self, frames: FrameBatch) -> None:
        """Writes frames and the gaps before and between them."""
        after = self._last.last_seq if self._last is not None else None
        gaps = [
            Gap(frames.stream_id, frames.epoch, first, last - first + 1, reason)
            for first, last, reason in classify_missing(
                find_holes(frames.seq, after=after), self._gaps, self._default_reason
            )
        ]
        self._writer.write_batch(frames, gaps)
        self._result.add(frames)
        self._last = frames

    def finish(self, last_seq: int | None, *, is_end: bool) -> None:
        """Writes the gaps behind the last frame, up to `last_seq`, if the copy includes the epoch's end."""
        if self._last is None or not is_end:
            return
        for first, last, reason in merge_gaps(self._gaps):
            end = last if last_seq is None else min(last, last_seq)
            if self._last.last_seq < first <= end:
                self._writer.gap(
                    stream_id=self._last.stream_id,
                    epoch=self._last.epoch,
                    first_seq=first,
                    count=end - first + 1,
                    reason=reason,
                )


def copy_tables(sources: Sequence[Recording], root: Path, streams: set[int]) -> None:
    """Copies the rows of the given streams in all tables except the gaps."""
    for number, source in enumerate(sources):
        # A session name that sorts before the copy's own: tables are read in order of session.
        tables = TableWriter(root, f"{0:020}-{number}")
        try:
            for table in TABLES:
                if table == "gaps":
                    continue
                for row in source.table(table).to_pylist():
                    if row.get("stream_id") is None or row["stream_id"] in streams:
                        tables.add(table, row)
        finally:
            tables.close()


def merge(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    limits: WriterLimits | None = None,
    progress: Progress | None = None,
) -> CopyResult:
    """Merges recordings. A frame that several of them have is written once; MergeConflict if they differ."""
    recordings = [Recording(source) for source in sources]
    result = CopyResult()
    total = sum(int(recording.segments["payload_bytes"].sum()) for recording in recordings)
    with new_recording(target, limits) as writer:
        for stream_id in sorted({stream for recording in recordings for stream in recording.streams}):
            with_stream = [recording for recording in recordings if stream_id in recording.streams]
            for epoch in sorted(
                {epoch for recording in with_stream for epoch in recording.epochs(stream_id)}
            ):
                with_epoch = [recording for recording in with_stream if epoch in recording.epochs(stream_id)]
                gaps = [gap for recording in with_epoch for gap in recording.gaps(stream_id, epoch=epoch)]
                epoch_copy = EpochCopy(writer, result, gaps, NOT_RECORDED)
                readers = [_MergeReader(recording.frames(stream_id, epoch=epoch)) for recording in with_epoch]
                for block, rows in _merged_rows(readers):
                    for start, stop in consecutive_runs(rows):
                        epoch_copy.write(block.to_frames(start, stop))
                        if progress is not None:
                            progress(min(result.payload_bytes, total), total)
                epoch_copy.finish(None, is_end=True)
        copy_tables(recordings, writer.root, result.streams)
    return result


class _MergeReader:
    """Position in one of the merged recordings; `block` is None at its end."""

    def __init__(self, frames: Frames) -> None:
        self._runs = frames.runs()
        self.block: RowBlock | None = None
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self.advance(0)

    def advance(self, count: int) -> None:
        """Skips rows, and continues with the next batch where needed."""
        self.rows = self.rows[count:]
        while not len(self.rows):
            run = next(self._runs, None)
            if run is None:
                self.block = None
                return
            self.block, rows = run
            self.rows = np.asarray(rows, np.intp)

    @property
    def seqs(self) -> npt.NDArray[np.uint64]:
        """Sequences of the remaining rows of the present batch."""
        assert self.block is not None, "only used before the end"
        return self.block.seq[self.rows]

    @property
    def next_seq(self) -> int:
        """The next sequence."""
        return int(self.seqs[0])


def _merged_rows(readers: list[_MergeReader]) -> Iterator[tuple[RowBlock, npt.NDArray[np.intp]]]:
    """The rows of all readers in order of sequence, each sequence once."""
    while active := [reader for reader in readers if reader.block is not None]:
        first = min(active, key=lambda reader: reader.next_seq)
        twins = [reader for reader in active if reader is not first and reader.next_seq == first.next_seq]
        others = [reader.next_seq for reader in active if reader is not first and reader not in twins]
        seqs = first.seqs
        # Up to the next sequence of another reader.
        count = int(np.searchsorted(seqs, np.uint64(min(others)))) if others else len(seqs)
        for twin in twins:
            count = min(count, _common_length(seqs, twin.seqs))
        for twin in twins:
            _check_equal(first, twin, count)
            twin.advance(count)
        assert first.block is not None, "it is one of the active readers"
        yield first.block, first.rows[:count]
        first.advance(count)


def _common_length(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> int:
    """Length of the common prefix of two arrays of sequences."""
    count = min(len(first), len(second))
    differ = np.flatnonzero(first[:count] != second[:count])
    return int(differ[0]) if len(differ) else count


def _check_equal(first: _MergeReader, second: _MergeReader, count: int) -> None:
    """Raises MergeConflict if the next `count` frames of two readers differ."""
    assert first.block is not None, "only used before the end"
    assert second.block is not None, "only used before the end"
    first_rows, second_rows = first.rows[:count], second.rows[:count]
    for name in ("crc32c", "payload_bytes", "dtype", "dims", "timestamp_ns"):
        equal = getattr(first.block, name)[first_rows] == getattr(second.block, name)[second_rows]
        equal = equal.all(axis=1) if equal.ndim > 1 else equal
        if not equal.all():
            seq = int(first.seqs[int(np.argmin(equal))])
            raise MergeConflict(
                f"{first.block.path} and {second.block.path} have different frames under stream "
                f"{first.block.stream_id}, epoch {first.block.epoch}, sequence {seq}; cut one of them first",
                path=second.block.path,
            )
