"""Takes a part of a recording into a new one. Payloads go from the mapped file to the new one, uncopied.

Several recordings become one: frames in order, each once, gaps where none of them has a frame.
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
from .inspect import Progress
from .recording import Recording, Time
from .repair import consecutive
from .rows import RowBlock
from .selection import Frames
from .tables import TableWriter
from .writer import RecordingWriter, WriterLimits

CUT: Final = "cut"
"""The reason for sequences that were left out on purpose."""


@dataclass(slots=True)
class CopyResult:
    """What went into the new recording."""

    rows: int = 0
    payload_bytes: int = 0
    streams: set[int] = field(default_factory=set)

    def add(self, frames: FrameBatch) -> None:
        self.rows += len(frames)
        self.payload_bytes += int(frames.payload_bytes.sum())
        self.streams.add(frames.stream_id)


def cut(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    streams: Iterable[int] | None = None,
    seq: tuple[int | None, int | None] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    limits: WriterLimits | None = None,
    progress: Progress | None = None,
) -> CopyResult:
    """Copies the chosen frames, their gaps and the tables into a new recording. Bounds include both ends."""
    recording = Recording(source)
    done = CopyResult()
    total = int(recording.segments["payload_bytes"].sum())
    wanted = list(streams) if streams is not None else list(recording.streams)
    for stream_id in wanted:
        # Says at once, before anything is made, that a stream is not there.
        recording.frames(stream_id)
    with new_recording(target, limits) as writer:
        for stream_id in wanted:
            for epoch in recording.epochs(stream_id):
                account = EpochCopy(writer, done, recording.gaps(stream_id, epoch=epoch), CUT)
                frames = recording.frames(stream_id, epoch=epoch, seq=seq, time=time)
                for block, rows in frames.runs():
                    for start, stop in consecutive(rows):
                        account.write(block.as_frames(start, stop))
                        if progress is not None:
                            progress(min(done.payload_bytes, total), total)
                account.finish(seq[1] if seq is not None else None, is_end=time is None)
        copy_tables([recording], writer.root, done.streams)
    return done


def new_recording(target: str | os.PathLike[str], limits: WriterLimits | None) -> RecordingWriter:
    root = Path(target)
    if root.exists() and any(root.iterdir()):
        raise NotARecording(f"{root} is not empty; name a new directory", path=root)
    return RecordingWriter(root, limits=limits, holder="copy")


class EpochCopy:
    """Writes the frames of one epoch in order, and accounts for what is between them."""

    def __init__(self, writer: RecordingWriter, done: CopyResult, gaps: Sequence[Gap], default: str) -> None:
        self._writer = writer
        self._done = done
        self._gaps = gaps
        self._default = default
        self._last: FrameBatch | None = None

    def write(self, frames: FrameBatch) -> None:
        after = self._last.last_seq if self._last is not None else None
        gaps = [
            Gap(frames.stream_id, frames.epoch, first, last - first + 1, reason)
            for first, last, reason in classify_missing(
                find_holes(frames.seq, after=after), self._gaps, self._default
            )
        ]
        self._writer.write_batch(frames, gaps)
        self._done.add(frames)
        self._last = frames

    def finish(self, last_seq: int | None, *, is_end: bool) -> None:
        """Gaps behind the last frame belong to the copy too, unless it ends somewhere in the middle."""
        if self._last is None or not is_end:
            return
        behind = self._last.last_seq
        for first, last, reason in merge_gaps(self._gaps):
            end = last if last_seq is None else min(last, last_seq)
            if first > behind and first <= end:
                self._writer.gap(
                    stream_id=self._last.stream_id,
                    epoch=self._last.epoch,
                    first_seq=first,
                    count=end - first + 1,
                    reason=reason,
                )


def copy_tables(sources: Sequence[Recording], root: Path, streams: set[int]) -> None:
    """The rows of all tables but the gaps, as far as they concern the streams."""
    for number, source in enumerate(sources):
        # Before the copy's own session, so that what happened first comes first.
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


NOT_RECORDED: Final = "not_recorded"
"""The reason for sequences that lie between what the merged recordings have."""


def merge(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    limits: WriterLimits | None = None,
    progress: Progress | None = None,
) -> CopyResult:
    """Makes one recording of several. A frame that more than one has is taken once, if they agree on it;
    otherwise MergeConflict names it.
    """
    recordings = [Recording(source) for source in sources]
    done = CopyResult()
    total = sum(int(one.segments["payload_bytes"].sum()) for one in recordings)
    with new_recording(target, limits) as writer:
        for stream_id in sorted({stream for one in recordings for stream in one.streams}):
            have = [one for one in recordings if stream_id in one.streams]
            for epoch in sorted({epoch for one in have for epoch in one.epochs(stream_id)}):
                those = [one for one in have if epoch in one.epochs(stream_id)]
                gaps: list[Gap] = [gap for one in those for gap in one.gaps(stream_id, epoch=epoch)]
                account = EpochCopy(writer, done, gaps, NOT_RECORDED)
                heads = [_Head(one.frames(stream_id, epoch=epoch)) for one in those]
                for block, rows in _in_order(heads):
                    for start, stop in consecutive(rows):
                        account.write(block.as_frames(start, stop))
                        if progress is not None:
                            progress(min(done.payload_bytes, total), total)
                account.finish(None, is_end=True)
        copy_tables(recordings, writer.root, done.streams)
    return done


class _Head:
    """Where one of the recordings stands."""

    def __init__(self, frames: Frames) -> None:
        self._runs = frames.runs()
        self.block: RowBlock | None = None
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self.advance(0)

    def advance(self, count: int) -> None:
        self.rows = self.rows[count:]
        while not len(self.rows):
            found = next(self._runs, None)
            if found is None:
                self.block = None
                return
            self.block, rows = found
            self.rows = np.asarray(rows, np.intp)

    @property
    def seqs(self) -> npt.NDArray[np.uint64]:
        assert self.block is not None, "only asked while there is something"
        return self.block.seq[self.rows]

    @property
    def next_seq(self) -> int:
        return int(self.seqs[0])


def _in_order(heads: list[_Head]) -> Iterator[tuple[RowBlock, npt.NDArray[np.intp]]]:
    """Rows of all, by sequence: of the one that is behind, as many as come before another goes on."""
    while live := [head for head in heads if head.block is not None]:
        first = min(live, key=lambda head: head.next_seq)
        twins = [head for head in live if head is not first and head.next_seq == first.next_seq]
        others = [head.next_seq for head in live if head is not first and head not in twins]
        seqs = first.seqs
        count = int(np.searchsorted(seqs, np.uint64(min(others)))) if others else len(seqs)
        for twin in twins:
            count = min(count, _common(seqs, twin.seqs))
        for twin in twins:
            _agree(first, twin, count)
            twin.advance(count)
        assert first.block is not None, "it is among the live ones"
        yield first.block, first.rows[:count]
        first.advance(count)


def _common(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> int:
    """How many sequences the two have in common from where they stand."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count


def _agree(one: _Head, other: _Head, count: int) -> None:
    assert one.block is not None, "only asked while there is something"
    assert other.block is not None, "only asked while there is something"
    mine, theirs = one.rows[:count], other.rows[:count]
    for name in ("crc32c", "payload_bytes", "dtype", "dims", "timestamp_ns"):
        equal = getattr(one.block, name)[mine] == getattr(other.block, name)[theirs]
        equal = equal.all(axis=1) if equal.ndim > 1 else equal
        if not equal.all():
            seq = int(one.seqs[int(np.argmin(equal))])
            raise MergeConflict(
                f"{one.block.path} and {other.block.path} have different frames under stream "
                f"{one.block.stream_id}, epoch {one.block.epoch}, sequence {seq}; cut one of them first",
                path=other.block.path,
            )
