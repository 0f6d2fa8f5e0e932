"""A recording opened for reading, also while it is written, and a dataset of its frames for torch."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import FrameNotRecorded
from ..preview import TimelineGap, TimelineRow, timeline_svg
from . import manifest
from .arrow_format import TABLES
from .frame import Cursor, RecordedFrame
from .gaps import UNEXPLAINED, Gap, RecordingLedger, classify_missing, find_holes
from .layout import SegmentName, check_root
from .manifest import RecordKind, Records
from .manifest_store import load_index
from .rows import OpenSegment, SegmentCache
from .selection import FrameFilter, Frames
from .storage import StorageUri, is_uri, local_path, open_remote
from .tables import read_all_gaps, read_table

Time = int | datetime
"""Nanoseconds since 1970 (UTC), or a datetime with a time zone."""
REMOVED: Final = "removed"
"""The reason of gaps that retention made."""
_MAX_SHOWN: Final = 20
"""Streams, and epochs of each, that a notebook shows."""
_MAX_SHOWN_GAPS: Final = 500
T = TypeVar("T")


class _SequenceRange(NamedTuple):
    """The sequences of one segment: `rows` of them from `first` to `last`, with `holes` between."""

    first: int
    last: int
    rows: int
    holes: list[tuple[int, int]]


def open(root: str | os.PathLike[str]) -> Recording:
    """Opens a recording for reading, in the same time for any size. A writer may be running.

    `root` is a directory, or a URI that pyarrow or fsspec knows: `s3://bucket/recording`.
    """
    return Recording(root)


class Recording:
    """The content of a recording at the time of the last `refresh`. Not thread-safe.

    Each method takes a stream by its id or by its name.

    Frames are read-only views of mapped files. They stay valid while they are referenced, even after their
    segment was removed. Of a remote recording they are views of memory into which ranges were read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.remote = open_remote(root)
        """Where the files are, if they are not local."""
        self.root = self.remote.root if self.remote is not None else (local_path(root) or Path(root))
        """The directory; of a remote recording that of the copies of its small files."""
        check_root(self.root)
        self._cache = SegmentCache(self.root, self.remote)
        self._index = load_index(self.root)
        self._names: dict[int, str] | None = None

    def refresh(self) -> None:
        """Reads which segments were written, sealed and removed meanwhile."""
        self._cache.metadata.invalidate()
        self._names = None
        if self.remote is not None:
            self.remote.refresh()
        self._index = load_index(self.root, self._index)

    def close(self) -> None:
        """Closes the files. Frames stay valid, and the recording can be used again."""
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

    def __repr__(self) -> str:
        streams = ", ".join(map(self.label, self.streams[:4])) + (", …" if len(self.streams) > 4 else "")
        return f"<Recording {self.location} streams=[{streams}] segments={len(self.segments)}>"

    def _repr_html_(self) -> str:
        """A timeline of rows and gaps by stream and epoch, for notebooks."""
        rows = []
        for stream_id in self.streams[:_MAX_SHOWN]:
            for epoch in self.epochs(stream_id)[:_MAX_SHOWN]:
                ledger, gaps = self._ledger_and_gaps(stream_id, epoch)
                label = f"{self.label(stream_id)}, epoch {epoch}: {ledger.rows:,} rows of {ledger.span:,}"
                shown = [TimelineGap(gap.first_seq, gap.count, gap.reason) for gap in gaps[:_MAX_SHOWN_GAPS]]
                rows.append(TimelineRow(label, ledger.first_seq, ledger.span, shown))
        more = len(self.streams) - _MAX_SHOWN
        note = f"<p>{more:,} more streams</p>" if more > 0 else ""
        return f"<p><b>{escape(str(self.location))}</b></p>{timeline_svg(rows)}{note}"

    @property
    def location(self) -> Path | StorageUri:
        """The path or the URI that the recording was opened by."""
        return self.root if self.remote is None else self.remote.uri

    # --- streams, epochs, frames

    @property
    def segments(self) -> Records:
        """The manifest records, by stream, epoch and first sequence. Open segments have no totals."""
        return self._index.segments

    def segments_of(self, stream: int | str) -> Records:
        """The manifest records of a stream; empty if none of this id was recorded."""
        return self._index.segments_of(self.find_stream(stream))

    @property
    def streams(self) -> tuple[int, ...]:
        """Ids of the recorded streams."""
        # The records are sorted: one binary search per stream, however many segments it has.
        stream_ids, column, at = [], self._index.segments["stream_id"], 0
        while at < len(column):
            stream_ids.append(int(column[at]))
            at = bisect_right(column, column[at], at)
        return tuple(stream_ids)

    @property
    def names(self) -> dict[int, str]:
        """The names of streams that had one when they were recorded, by stream id."""
        if self._names is None:
            self._names = self._cache.metadata.source_names()
        return self._names

    def label(self, stream_id: int) -> str:
        """Id and name of a stream, as text for people."""
        name = self.names.get(stream_id)
        return f"{stream_id} ({name})" if name else str(stream_id)

    def find_stream(self, stream: int | str) -> int:
        """The id of a recorded stream that is given by its id or its name.

        Raises FrameNotRecorded for a name that no recorded stream has, or that several have.
        """
        if not isinstance(stream, str):
            return stream
        ids = [stream_id for stream_id, name in self.names.items() if name == stream]
        if len(ids) == 1:
            return ids[0]
        known = ", ".join(map(self.label, self.streams)) or "none"
        reason = f"{len(ids)} streams are named {stream!r}" if ids else f"no stream is named {stream!r}"
        raise FrameNotRecorded(f"{reason} in {self.location}; recorded streams: {known}", path=self.location)

    def epochs(self, stream: int | str) -> tuple[int, ...]:
        """Recorded epochs of a stream."""
        return tuple(np.unique(self.segments_of(stream)["epoch"]).tolist())

    def frames(
        self,
        stream: int | str,
        *,
        epoch: int | None = None,
        seq: tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
        after: Cursor | None = None,
        skip_damage: bool = False,
    ) -> Frames:
        """Frames of a stream (its id or its name), in order of epoch and sequence.

        `to_arrow()`, `to_pandas()` and `stack()` of the result give all of them at once.

        `seq` and `time` are (first, last), both included, None for no bound; `time` is the time of receipt.
        `after` leaves out frames up to and including a cursor. Damage raises CorruptRecording where reading
        reaches it; with `skip_damage` the damaged frames are left out.
        """
        stream_id = self.find_stream(stream)
        first_seq, last_seq = _bounds(seq)
        times = (None, None) if time is None else (_nanoseconds(time[0]), _nanoseconds(time[1]))
        frame_filter = FrameFilter((first_seq, last_seq), _bounds(times), skip_damage, after)
        records = self._prune(self._recorded_segments(stream_id, epoch), frame_filter)
        return Frames(self._cache, records, frame_filter)

    def frame(self, stream: int | str, seq: int, *, epoch: int | None = None) -> RecordedFrame:
        """The frame with this sequence, of the newest epoch that has it."""
        stream_id = self.find_stream(stream)
        for candidate in [epoch] if epoch is not None else reversed(self.epochs(stream_id)):
            for frame in self.frames(stream_id, epoch=candidate, seq=(seq, seq)):
                return frame
        raise FrameNotRecorded(f"stream {stream_id} has no frame {seq} in this recording", path=self.location)

    def _recorded_segments(self, stream_id: int, epoch: int | None = None) -> Records:
        records = self._index.segments_of(stream_id, epoch)
        if not len(records) and stream_id not in self.streams:
            known = ", ".join(map(self.label, self.streams)) or "none"
            raise FrameNotRecorded(
                f"stream {stream_id} is not in {self.location}; recorded streams: {known}", path=self.location
            )
        return records

    @staticmethod
    def _prune(records: Records, frame_filter: FrameFilter) -> Records:
        """The records without sealed segments that cannot have a matching frame."""
        if frame_filter.is_all:
            return records
        is_open = records["kind"] != RecordKind.SEALED
        keep = np.ones(len(records), bool)
        for first, last, (low, high) in (
            ("first_seq", "last_seq", frame_filter.seq),
            ("first_time_ns", "last_time_ns", frame_filter.time_ns),
        ):
            if low != -inf:
                keep &= is_open | (records[last] >= max(low, np.iinfo(records[last].dtype).min))
            if high != inf:
                keep &= records[first] <= high if first == "first_seq" else is_open | (records[first] <= high)
        if frame_filter.after is not None:
            after = frame_filter.after
            keep &= (records["epoch"] > after.epoch) | (
                (records["epoch"] == after.epoch) & (is_open | (records["last_seq"] > after.seq))
            )
        # Copying ten thousand records takes longer than filtering them.
        return records if keep.all() else records[keep]

    # --- following a recording that grows

    def earliest(self, stream: int | str) -> Cursor | None:
        """Cursor of the first frame; None if there is none."""
        for frame in self.frames(stream):
            return frame.cursor
        return None

    def latest(self, stream: int | str) -> Cursor | None:
        """Cursor of the last frame that is completely written; None if there is none."""
        stream_id = self.find_stream(stream)
        for record in self._index.segments_of(stream_id)[::-1]:
            if record["kind"] == RecordKind.SEALED:
                if record["rows"]:
                    return Cursor(stream_id, int(record["epoch"]), int(record["last_seq"]))
                continue
            batches = self._cache.open(manifest.segment_name(record)).file.scan.batches
            if batches:
                return Cursor(stream_id, int(record["epoch"]), batches[-1].last_seq)
        return None

    def after(self, cursor: Cursor, *, until: Cursor | None = None) -> Frames:
        """The frames behind a cursor, up to another cursor (included) or to the present end.

        `lost_since` returns the frames that retention removed behind the cursor.
        """
        frame_filter = FrameFilter(after=cursor, until=until)
        return Frames(self._cache, self._filtered(cursor.stream_id, frame_filter), frame_filter)

    def _filtered(self, stream_id: int, frame_filter: FrameFilter) -> Records:
        records, until = self._index.segments_of(stream_id), frame_filter.until
        if until is not None:
            records = records[
                (records["epoch"] < until.epoch)
                | ((records["epoch"] == until.epoch) & (records["first_seq"] <= until.seq))
            ]
        return self._prune(records, frame_filter)

    def by_segment(
        self,
        stream: int | str,
        *,
        after: Cursor | None = None,
        until: Cursor | None = None,
        time: tuple[int | None, int | None] = (None, None),
        skip_damage: bool = False,
    ) -> list[tuple[SegmentName, Frames]]:
        """The frames between two cursors by segment, so that an unreadable segment does not affect others."""
        frame_filter = FrameFilter(time_ns=_bounds(time), skip_damage=skip_damage, after=after, until=until)
        records = self._filtered(self.find_stream(stream), frame_filter)
        return [
            (manifest.segment_name(records[at]), Frames(self._cache, records[at : at + 1], frame_filter))
            for at in range(len(records))
        ]

    def segment(self, name: SegmentName) -> OpenSegment:
        """A segment, with all batches that are complete now."""
        return self._cache.open(name)

    def removed_until(self, stream: int | str, epoch: int) -> int:
        """The last sequence of an epoch that retention removed; -1 if there is none."""
        return self._index.trimmed.get((self.find_stream(stream), epoch), -1)

    def lost_since(self, cursor: Cursor) -> list[Gap]:
        """The frames behind a cursor that retention removed before they were read, as gaps."""
        gaps = []
        for (stream_id, epoch), last_seq in sorted(self._index.trimmed.items()):
            first = cursor.seq + 1 if epoch == cursor.epoch else 0
            if stream_id == cursor.stream_id and epoch >= cursor.epoch and first <= last_seq:
                gaps.append(Gap(stream_id, epoch, first, last_seq - first + 1, REMOVED))
        return gaps

    # --- tables and ledgers

    def table(self, name: str) -> pa.Table:
        """All rows of a table: gaps, anchors, marks, metadata, qos, announces or events."""
        if self.remote is not None:
            self.remote.require_tables(*([name] if name in TABLES else []))
        return read_table(self.root, name)

    def declared_gaps(self) -> list[Gap]:
        """The gaps of all streams that writers declared or noticed, without what retention removed."""
        gaps = []
        for gap in self._written_gaps():
            removed = self._index.trimmed.get((gap.stream_id, gap.epoch), -1)
            if gap.first_seq > removed:
                gaps.append(gap)
            elif gap.last_seq > removed:
                count = gap.last_seq - removed
                gaps.append(Gap(gap.stream_id, gap.epoch, removed + 1, count, gap.reason))
        return gaps

    def _written_gaps(self) -> list[Gap]:
        """The rows of the table of gaps, as far as they are about frames that the recording can have."""
        if self.remote is None:
            return read_all_gaps(self.root)
        self.remote.require_tables("gaps")
        # Its tables are ahead of its segments: what lies before a later gap may be in a segment that is open.
        open_from = {(part.stream_id, part.epoch): part.first_seq for part in self.remote.list.open_from}
        return [
            gap
            for gap in read_all_gaps(self.root)
            if gap.first_seq < open_from.get((gap.stream_id, gap.epoch), gap.first_seq + 1)
        ]

    def ledgers(self) -> list[RecordingLedger]:
        """The ledgers of all streams and epochs, also of those that have gaps and no frames."""
        declared = {gap.stream_id for gap in self.declared_gaps()}
        return [
            ledger for stream_id in sorted({*self.streams, *declared}) for ledger in self.ledger(stream_id)
        ]

    def gaps(self, stream: int | str, *, epoch: int | None = None) -> list[Gap]:
        """The sequences missing between the first and the last known one of each epoch, with reasons."""
        stream_id = self.find_stream(stream)
        gaps: list[Gap] = []
        for known_epoch in self._epochs(stream_id, epoch):
            _, missing = self._ledger_and_gaps(stream_id, known_epoch)
            gaps += missing
        return gaps

    def ledger(self, stream: int | str, *, epoch: int | None = None) -> list[RecordingLedger]:
        """The ledger of each epoch: span = rows + gaps."""
        stream_id = self.find_stream(stream)
        return [
            self._ledger_and_gaps(stream_id, known_epoch)[0] for known_epoch in self._epochs(stream_id, epoch)
        ]

    def _epochs(self, stream_id: int, epoch: int | None) -> tuple[int, ...]:
        if epoch is not None:
            self._recorded_segments(stream_id)
            return (epoch,)
        declared = {gap.epoch for gap in self.declared_gaps() if gap.stream_id == stream_id}
        if not declared:
            self._recorded_segments(stream_id)
        # An epoch of which retention removed every frame is over, with the gaps behind its last one.
        removed = {of for stream, of in self._index.trimmed if stream == stream_id}
        return tuple(sorted({*self.epochs(stream_id), *(declared - removed)}))

    def _ledger_and_gaps(self, stream_id: int, epoch: int) -> tuple[RecordingLedger, list[Gap]]:
        removed = self._index.trimmed.get((stream_id, epoch), -1)
        declared = [
            gap
            for gap in self._written_gaps()
            if (gap.stream_id, gap.epoch) == (stream_id, epoch) and gap.last_seq > removed
        ]
        rows, missing = 0, []
        first: int | None = None
        last: int | None = None
        for start, end, count, holes in self._sequence_ranges(self._index.segments_of(stream_id, epoch)):
            rows += count
            if last is not None and start > last + 1:
                missing.append((last + 1, start - 1))
            missing += holes
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

    def _sequence_ranges(self, records: Records) -> Iterator[_SequenceRange]:
        """The sequences of each segment. Sealed segments without holes are not opened."""
        for record in records:
            first, last, rows = (int(record[name]) for name in ("first_seq", "last_seq", "rows"))
            if record["kind"] == RecordKind.SEALED and (rows == 0 or last - first + 1 == rows):
                if rows:
                    yield _SequenceRange(first, last, rows, [])
                continue
            segment = self._cache.open(manifest.segment_name(record))
            segment.file.scan_more(resume=True)
            seqs = [segment.block(number).seq for number in range(len(segment.file.scan.batches))]
            if seqs:
                joined = np.concatenate(seqs)
                yield _SequenceRange(int(joined[0]), int(joined[-1]), len(joined), find_holes(joined))


def _bounds(pair: tuple[int | None, int | None] | None) -> tuple[float, float]:
    first, last = pair if pair is not None else (None, None)
    return -inf if first is None else first, inf if last is None else last


def _nanoseconds(time: Time | None) -> int | None:
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone; use datetime(…, tzinfo=UTC)")
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _copy_array(frame: RecordedFrame) -> npt.NDArray[Any]:
    # Torch needs writable memory, and a view of the file is read-only.
    return np.array(frame.array)


class _Selection(TypedDict):
    epoch: int | None
    seq: tuple[int | None, int | None] | None
    time: tuple[Time | None, Time | None] | None


class FrameDataset(Generic[T]):
    """Frames of one stream by number, for `torch.utils.data.DataLoader`. Does not import torch.

    `transform` makes an item of a frame; by default a copy of its array. Pickled for a worker process, it
    carries the path and the selection, and the worker opens the files itself. The frames are fixed when the
    dataset is created: later frames of a live recording are not in it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        stream: int | str,
        *,
        epoch: int | None = None,
        seq: tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
        transform: Callable[[RecordedFrame], T] | None = None,
    ) -> None:
        self._root = str(root) if is_uri(root) else Path(root)
        self._selection: _Selection = {"epoch": epoch, "seq": seq, "time": time}
        self._stream = stream
        self._transform: Callable[[RecordedFrame], Any] = transform or _copy_array
        self._frames: Frames | None = None
        self._length = len(self._open())

    def _open(self) -> Frames:
        if self._frames is None:
            self._frames = Recording(self._root).frames(self._stream, **self._selection)
        return self._frames

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> T:
        if not -self._length <= index < self._length:
            raise IndexError(f"frame {index} of {self._length}")
        item: T = self._transform(self._open()[index % self._length])
        return item

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_frames": None}
