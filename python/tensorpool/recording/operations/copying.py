"""Takes a part of a recording into a new one. Payloads go from the mapped file to the new one, uncopied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...errors import NotARecording
from ..batch import FrameBatch
from ..gaps import Gap, apart, explain, holes
from ..recording import Recording, Time
from ..schema import TABLES
from ..tables import TableWriter
from ..writer import RecordingWriter, WriterLimits
from .repair import consecutive
from .verify import Progress

CUT: Final = "cut"
"""The reason for sequences that were left out on purpose."""


@dataclass(slots=True)
class Copied:
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
) -> Copied:
    """Copies the chosen frames, their gaps and the tables into a new recording. Bounds include both ends."""
    recording = Recording(source)
    done = Copied()
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

    def __init__(self, writer: RecordingWriter, done: Copied, gaps: Sequence[Gap], default: str) -> None:
        self._writer = writer
        self._done = done
        self._gaps = gaps
        self._default = default
        self._last: FrameBatch | None = None

    def write(self, frames: FrameBatch) -> None:
        after = self._last.last_seq if self._last is not None else None
        gaps = [
            Gap(frames.stream_id, frames.epoch, first, last - first + 1, reason)
            for first, last, reason in explain(holes(frames.seq, after=after), self._gaps, self._default)
        ]
        self._writer.write_batch(frames, gaps)
        self._done.add(frames)
        self._last = frames

    def finish(self, last_seq: int | None, *, is_end: bool) -> None:
        """Gaps behind the last frame belong to the copy too, unless it ends somewhere in the middle."""
        if self._last is None or not is_end:
            return
        behind = self._last.last_seq
        for first, last, reason in apart(self._gaps):
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
