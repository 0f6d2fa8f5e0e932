"""A recording opened for reading: which streams, epochs and frames it has, also while it is written.

A recording as a map-style dataset: what `torch.utils.data.DataLoader` asks for, without needing torch.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import FrameNotRecorded
from . import manifest
from .frame import Cursor, RecordedFrame
from .gaps import UNEXPLAINED, Gap, RecordingLedger, classify_missing, find_holes
from .layout import SegmentName, check_root
from .manifest import Kind, Records
from .manifest_store import load_index
from .rows import OpenSegment, SegmentCache
from .selection import Choice, Frames
from .tables import read_gaps, read_table

Time = int | datetime
"""Nanoseconds since 1970 (UTC), or a datetime with a time zone."""


def open(root: str | os.PathLike[str]) -> Recording:
    """Opens a recording for reading. Its size does not matter; a writer may be at work meanwhile."""
    return Recording(root)


class Recording:
    """What is recorded in a directory, as of the last `refresh`. Not for two threads at once.

    Frames are read-only views of mapped files: they stay valid as long as someone holds them, also when
    the segment is removed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        check_root(self.root)
        self._cache = SegmentCache(self.root)
        self._index = load_index(self.root)

    def refresh(self) -> None:
        """Takes note of what was written, sealed and removed since."""
        self._cache.descriptions.forget()
        self._index = load_index(self.root, self._index)

    def close(self) -> None:
        """Lets go of the files. Frames that were handed out stay valid, and it can be used again."""
        self._cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- what there is

    @property
    def segments(self) -> Records:
        """The manifest's records, by stream, epoch and first sequence. Open segments have no totals."""
        return self._index.segments

    def segments_of(self, stream_id: int) -> Records:
        """The records of a stream; none if it is not there."""
        return self._index.of(stream_id)

    @property
    def streams(self) -> tuple[int, ...]:
        # Sorted already: from one to the next, however many segments each has.
        found, column, at = [], self._index.segments["stream_id"], 0
        while at < len(column):
            found.append(int(column[at]))
            at = bisect_right(column, column[at], at)
        return tuple(found)

    def epochs(self, stream_id: int) -> tuple[int, ...]:
        return tuple(np.unique(self._index.of(stream_id)["epoch"]).tolist())

    def frames(
        self,
        stream_id: int,
        *,
        epoch: int | None = None,
        seq: tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
        after: Cursor | None = None,
        skip_damage: bool = False,
    ) -> Frames:
        """Frames of a stream, in the order of epoch and sequence. `seq` and `time` are (first, last), both
        included, None for no bound; `time` is that of their receipt. `after` leaves out what comes before a
        place, and the frame there.

        Damage raises CorruptRecording where it is met; with `skip_damage` what can be read is read.
        """
        first_seq, last_seq = _bounds(seq)
        times = (None, None) if time is None else (_nanoseconds(time[0]), _nanoseconds(time[1]))
        choice = Choice((first_seq, last_seq), _bounds(times), skip_damage, after)
        return Frames(self._cache, self._pruned(self._of(stream_id, epoch), choice), choice)

    def frame(self, stream_id: int, seq: int, *, epoch: int | None = None) -> RecordedFrame:
        """The frame with this sequence, of the newest epoch that has it."""
        for one in [epoch] if epoch is not None else reversed(self.epochs(stream_id)):
            for frame in self.frames(stream_id, epoch=one, seq=(seq, seq)):
                return frame
        raise FrameNotRecorded(f"stream {stream_id} has no frame {seq} in this recording", path=self.root)

    def _of(self, stream_id: int, epoch: int | None = None) -> Records:
        found = self._index.of(stream_id, epoch)
        if not len(found) and stream_id not in self.streams:
            known = ", ".join(map(str, self.streams)) or "none"
            raise FrameNotRecorded(
                f"stream {stream_id} is not in {self.root}; recorded are: {known}", path=self.root
            )
        return found

    @staticmethod
    def _pruned(records: Records, choice: Choice) -> Records:
        """Without the sealed segments that cannot hold a chosen frame."""
        if choice.is_all:
            return records
        is_open = records["kind"] != Kind.SEALED
        keep = np.ones(len(records), bool)
        for first, last, (low, high) in (
            ("first_seq", "last_seq", choice.seq),
            ("first_time_ns", "last_time_ns", choice.time_ns),
        ):
            if low != -inf:
                keep &= is_open | (records[last] >= max(low, np.iinfo(records[last].dtype).min))
            if high != inf:
                keep &= records[first] <= high if first == "first_seq" else is_open | (records[first] <= high)
        if choice.after is not None:
            after = choice.after
            keep &= (records["epoch"] > after.epoch) | (
                (records["epoch"] == after.epoch) & (is_open | (records["last_seq"] > after.seq))
            )
        # Ten thousand records take longer to copy than to judge.
        return records if keep.all() else records[keep]

    # --- following a recording that grows

    def earliest(self, stream_id: int) -> Cursor | None:
        """The first frame that is there."""
        for frame in self.frames(stream_id):
            return frame.cursor
        return None

    def latest(self, stream_id: int) -> Cursor | None:
        """The last frame that is complete by now."""
        for record in self._index.of(stream_id)[::-1]:
            if record["kind"] == Kind.SEALED:
                if record["rows"]:
                    return Cursor(stream_id, int(record["epoch"]), int(record["last_seq"]))
                continue
            batches = self._cache.open(manifest.name_of(record)).file.scan.batches
            if batches:
                return Cursor(stream_id, int(record["epoch"]), batches[-1].last_seq)
        return None

    def after(self, cursor: Cursor, *, until: Cursor | None = None) -> Frames:
        """The frames behind a cursor, up to another one (included), or as far as they go now.

        `lost_since` says whether some between were removed meanwhile.
        """
        choice = Choice(after=cursor, until=until)
        return Frames(self._cache, self._chosen(cursor.stream_id, choice), choice)

    def _chosen(self, stream_id: int, choice: Choice) -> Records:
        records, until = self._index.of(stream_id), choice.until
        if until is not None:
            records = records[
                (records["epoch"] < until.epoch)
                | ((records["epoch"] == until.epoch) & (records["first_seq"] <= until.seq))
            ]
        return self._pruned(records, choice)

    def by_segment(
        self,
        stream_id: int,
        *,
        after: Cursor | None = None,
        until: Cursor | None = None,
        time: tuple[int | None, int | None] = (None, None),
        skip_damage: bool = False,
    ) -> list[tuple[SegmentName, Frames]]:
        """The frames between two cursors, a segment at a time: one that cannot be read stops no other."""
        choice = Choice(time_ns=_bounds(time), skip_damage=skip_damage, after=after, until=until)
        records = self._chosen(stream_id, choice)
        return [
            (manifest.name_of(records[at]), Frames(self._cache, records[at : at + 1], choice))
            for at in range(len(records))
        ]

    def segment(self, name: SegmentName) -> OpenSegment:
        """A segment's file, with all batches that are complete by now."""
        return self._cache.open(name)

    def removed_until(self, stream_id: int, epoch: int) -> int:
        """The last sequence of an epoch that retention removed; -1 if it removed none."""
        return self._index.trimmed.get((stream_id, epoch), -1)

    def lost_since(self, cursor: Cursor) -> list[Gap]:
        """What retention removed behind a cursor: a reader that was away too long cannot have it any more."""
        found = []
        for (stream_id, epoch), last_seq in sorted(self._index.trimmed.items()):
            first = cursor.seq + 1 if epoch == cursor.epoch else 0
            if stream_id == cursor.stream_id and epoch >= cursor.epoch and first <= last_seq:
                found.append(Gap(stream_id, epoch, first, last_seq - first + 1, "removed"))
        return found

    # --- accounts

    def table(self, name: str) -> pa.Table:
        """All rows of a table: gaps, anchors, marks, metadata, qos or announces."""
        return read_table(self.root, name)

    def gaps(self, stream_id: int, *, epoch: int | None = None) -> list[Gap]:
        """What is missing between the first and the last known sequence of each epoch, and why."""
        return [gap for one in self._epochs(stream_id, epoch) for gap in self._account(stream_id, one)[1]]

    def ledger(self, stream_id: int, *, epoch: int | None = None) -> list[RecordingLedger]:
        """Each epoch's account: span = rows + gaps."""
        return [self._account(stream_id, one)[0] for one in self._epochs(stream_id, epoch)]

    def _epochs(self, stream_id: int, epoch: int | None) -> tuple[int, ...]:
        self._of(stream_id)
        return self.epochs(stream_id) if epoch is None else (epoch,)

    def _account(self, stream_id: int, epoch: int) -> tuple[RecordingLedger, list[Gap]]:
        removed = self._index.trimmed.get((stream_id, epoch), -1)
        declared = [gap for gap in read_gaps(self.root, stream_id, epoch) if gap.last_seq > removed]
        rows, missing = 0, []
        first: int | None = None
        last: int | None = None
        for start, end, count, inner in self._stretches(self._index.of(stream_id, epoch)):
            rows += count
            if last is not None and start > last + 1:
                missing.append((last + 1, start - 1))
            missing += inner
            first = start if first is None else first
            last = end
        ends = [gap.last_seq for gap in declared]
        starts = [max(gap.first_seq, removed + 1) for gap in declared]
        low = min([*starts, *([first] if first is not None else [])], default=0)
        high = max([*ends, *([last] if last is not None else [])], default=-1)
        if first is None or last is None:
            missing = [(low, high)] if low <= high else []
        else:
            before = [(low, first - 1)] if low < first else []
            behind = [(last + 1, high)] if high > last else []
            missing = [*before, *missing, *behind]
        gaps = [
            Gap(stream_id, epoch, start, end - start + 1, reason)
            for start, end, reason in classify_missing(missing, declared, UNEXPLAINED)
        ]
        by_reason: dict[str, int] = {}
        for gap in gaps:
            by_reason[gap.reason] = by_reason.get(gap.reason, 0) + gap.count
        return RecordingLedger(stream_id, epoch, low, high, rows, by_reason), gaps

    def _stretches(self, records: Records) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
        """(first, last, rows, holes) of each segment. Those without holes are not looked at."""
        for record in records:
            first, last, rows = (int(record[name]) for name in ("first_seq", "last_seq", "rows"))
            if record["kind"] == Kind.SEALED and (rows == 0 or last - first + 1 == rows):
                if rows:
                    yield first, last, rows, []
                continue
            segment = self._cache.open(manifest.name_of(record))
            segment.file.scan_more(resume=True)
            seqs = [segment.block(number).seq for number in range(len(segment.file.scan.batches))]
            if seqs:
                every = np.concatenate(seqs)
                yield int(every[0]), int(every[-1]), len(every), find_holes(every)


def _bounds(pair: tuple[int | None, int | None] | None) -> tuple[float, float]:
    first, last = pair if pair is not None else (None, None)
    return -inf if first is None else first, inf if last is None else last


def _nanoseconds(time: Time | None) -> int | None:
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError("a time without a zone could be anyone's; say datetime(…, tzinfo=UTC)")
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


T = TypeVar("T")


def _copied(frame: RecordedFrame) -> npt.NDArray[Any]:
    # Tensors of torch have to be writable, and a view of the file is not.
    return np.array(frame.array)


class FrameDataset(Generic[T]):
    """Frames of one stream by number. `transform` makes an item of a frame; by default a copy of its array.

    Goes to worker processes as the path and the choice; each opens the files for itself. Which frames it has
    is settled when it is made: what a live recording gets later is not among them.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        stream_id: int,
        *,
        epoch: int | None = None,
        seq: tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
        transform: Callable[[RecordedFrame], T] | None = None,
    ) -> None:
        self._root = Path(root)
        self._choice: dict[str, Any] = {"epoch": epoch, "seq": seq, "time": time}
        self._stream_id = stream_id
        self._transform: Callable[[RecordedFrame], Any] = transform or _copied
        self._frames: Frames | None = None
        self._length = len(self._open())

    def _open(self) -> Frames:
        if self._frames is None:
            self._frames = Recording(self._root).frames(self._stream_id, **self._choice)
        return self._frames

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> T:
        if not -self._length <= index < self._length:
            raise IndexError(f"frame {index} of {self._length}")
        item: T = self._transform(self._open()[index % self._length])
        return item

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frames": None}
