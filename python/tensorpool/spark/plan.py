"""The planner of a recording: positions, limits of a micro-batch, and its division into tasks.

It uses the manifest and at most two segments per stream, those in which a micro-batch begins and ends: the
cost of planning does not grow with the recording. Runs in Spark's planning process, in one thread. Disk
errors are retried, because an exception in planning ends the query.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CorruptRecording, FrameNotRecorded, RecordingError
from ..recording import Cursor, Gap, Recording
from ..recording.manifest import RecordKind, Records, segment_name
from ..recording.rows import RowBlock
from ..recording.storage import archive_of
from .offsets import START, Offsets, Position

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_NO_LIMIT: Final = 1 << 62
_MAX_SEQ: Final = (1 << 64) - 1
_MAX_SEGMENTS_WEIGHED: Final = 256
_MIN_TASK_BYTES: Final = 64 << 20
_MAX_TASK_BYTES: Final = 512 << 20
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0


class Backlog(NamedTuple):
    """Unread rows and payload bytes of a stream."""

    rows: int
    bytes: int


@dataclass(slots=True)
class Budget:
    """Rows and bytes that one stream may still add to a micro-batch."""

    rows: int = _NO_LIMIT
    bytes: int = _NO_LIMIT
    taken: int = 0

    def fitting(self, sizes: Any) -> int:
        """How many frames fit, given their running sizes. The first always fits: every stream advances."""
        count = min(self.rows, int(np.searchsorted(sizes, self.bytes, "right")), len(sizes))
        return max(count, 0 if self.taken else 1)

    def take(self, rows: int, size: int) -> None:
        """Subtracts frames from the budget."""
        self.rows -= rows
        self.bytes -= size
        self.taken += rows


def divide_budget(
    backlogs: Mapping[int, Backlog], *, max_rows: int | None, max_bytes: int | None, rotation: int
) -> dict[int, Budget]:
    """A budget for each stream, in proportion to its backlog.

    Every stream gets at least one row. If there are fewer rows than streams, `rotation` determines the first.
    """
    streams = sorted(backlogs)
    if max_rows is not None and max_rows < len(streams):
        first = rotation % len(streams)
        streams = (streams[first:] + streams[:first])[:max_rows]
    budgets = {stream: Budget() for stream in streams}
    if max_rows is not None:
        parts = _proportional([backlogs[stream].rows for stream in streams], max_rows)
        for stream, rows in zip(streams, parts, strict=True):
            budgets[stream].rows = rows
    if max_bytes is not None:
        total = sum(backlogs[stream].bytes for stream in streams)
        for stream in streams:
            budgets[stream].bytes = max_bytes * backlogs[stream].bytes // max(total, 1)
    return budgets


def _proportional(weights: list[int], total: int) -> list[int]:
    """Whole numbers of at least one with the given sum, closest to the proportions."""
    spare, whole = total - len(weights), max(sum(weights), 1)
    parts = [1 + spare * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -(spare * weights[i] % whole))
    for number in range(total - sum(parts)):
        parts[order[number % len(order)]] += 1
    return parts


@dataclass(frozen=True, slots=True)
class FrameRange:
    """One task: the frames of a stream from `start` up to, not including, `end`."""

    stream_id: int
    start: Position
    end: Position
    ends_with_row: bool
    """Whether the frame right before `end` was recorded: if the task does not find it, frames were lost."""
    part: int = 0
    parts: int = 1
    """The task's share of the rows, if one segment is divided among several tasks."""
    ends_with_gap: bool = False
    """Whether the sequence right before `end` was declared missing: the task reports the gaps up to it."""
    archive: str | None = None
    """The archive of a local recording, for executors that do not have its directory."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """Frames that were removed before they were read, to be reported as gap rows."""

    gaps: tuple[Gap, ...]


class _StreamSegments(NamedTuple):
    """The segments of a stream within a range, and their payload bytes."""

    records: Records
    sizes: Any


class Planner:
    """Plans reads of a recording. `streams` limits it to some streams.

    With gaps, a stream begins with its first row or gap, and ends with its last.
    """

    def __init__(self, path: str, streams: tuple[int | str, ...] | None, *, with_gaps: bool = False) -> None:
        """`streams` are ids or recorded names; None: all."""
        self.path = path
        self._selected = streams
        self._with_gaps = with_gaps
        self._recording = Recording(path)
        self._find_streams()

    def _find_streams(self) -> None:
        self._gaps: dict[int, list[Gap]] = {}
        for gap in self._recording.declared_gaps() if self._with_gaps else ():
            self._gaps.setdefault(gap.stream_id, []).append(gap)
        self._recorded = tuple(sorted({*self._recording.streams, *self._gaps}))

    def refresh(self) -> None:
        """Reads which frames were added and removed."""
        self._recording.refresh()
        self._find_streams()

    def close(self) -> None:
        """Closes the files; the planner can be used again."""
        self._recording.close()

    def streams(self) -> list[int]:
        """The selected streams that are recorded."""
        if self._selected is None:
            return list(self._recorded)
        has_names = any(isinstance(stream, str) for stream in self._selected)
        names = self._recording.names if has_names else {}
        return [
            stream
            for stream in self._recorded
            if stream in self._selected or (stream in names and names[stream] in self._selected)
        ]

    def check_names(self) -> None:
        """Raises FrameNotRecorded for a selected name that no stream of the recording has."""
        for stream in self._selected or ():
            self._recording.find_stream(stream)

    def _records(self, stream_id: int) -> Records:
        return self._recording.segments_of(stream_id)

    # --- positions

    def earliest(self) -> Offsets:
        """The first frame of each stream, or the first gap."""
        return {stream: self._first(stream) for stream in self._all_streams()}

    def _all_streams(self) -> list[int]:
        # Includes selected streams without frames: they start at their beginning.
        selected = (stream for stream in self._selected or () if isinstance(stream, int))
        return sorted({*self.streams(), *selected})

    def _first(self, stream_id: int) -> Position:
        starts = [Position(gap.epoch, gap.first_seq) for gap in self._gaps.get(stream_id, ())]
        for record in self._records(stream_id):
            if record["kind"] != RecordKind.SEALED or record["rows"]:
                starts.append(Position(int(record["epoch"]), int(record["first_seq"])))
                break
        return min(starts, default=START)

    def latest(self) -> Offsets:
        """Behind the last complete frame of each stream, or behind the last gap."""
        ends = {}
        for stream in self._all_streams():
            # A declared gap is final: none of its sequences becomes a row later.
            ends[stream] = max(self._last_row(stream), self._last_gap(stream))
        return ends

    def _last_row(self, stream_id: int) -> Position:
        """Behind the last complete frame."""
        cursor = self._recording.latest(stream_id) if stream_id in self._recorded else None
        return START if cursor is None else Position.behind(cursor)

    def _last_gap(self, stream_id: int) -> Position:
        """Behind the last declared gap."""
        gaps = self._gaps.get(stream_id, ())
        return max((Position(gap.epoch, gap.last_seq + 1) for gap in gaps), default=START)

    def at_time(self, time_ns: int) -> Offsets:
        """The first frame of each stream received at a time or later; behind the last if there is none."""
        latest = self.latest()
        return {stream: self._first_at(stream, time_ns) or latest[stream] for stream in latest}

    def _first_at(self, stream_id: int, time_ns: int) -> Position | None:
        records = self._records(stream_id)
        for record in records[(records["kind"] != RecordKind.SEALED) | (records["last_time_ns"] >= time_ns)]:
            for block in self._blocks(record):
                rows = np.flatnonzero(block.receive_time_ns >= time_ns)
                if len(rows):
                    return Position(int(record["epoch"]), int(block.seq[rows[0]]))
        return None

    def _blocks(self, record: Any) -> Iterator[RowBlock]:
        """The readable batches of a segment. The tasks report the damaged ones, or skip them."""
        try:
            segment = self._recording.segment(segment_name(record))
        except (CorruptRecording, FrameNotRecorded):
            return
        for number in range(len(segment.file.scan.batches)):
            try:
                yield segment.block(number)
            except CorruptRecording:
                continue

    # --- limits

    def limited(
        self, start: Offsets, end: Offsets, *, max_rows: int | None, max_bytes: int | None
    ) -> Offsets:
        """The end of a micro-batch: at most `end`, within the limits; every stream advances."""
        behind = [stream for stream, position in end.items() if position > start.get(stream, START)]
        if not behind or (max_rows is None and max_bytes is None):
            return end
        if len(behind) == 1:
            # The only stream gets the whole budget, whatever its backlog.
            backlogs = {behind[0]: Backlog(1, 1)}
        else:
            backlogs = {
                stream: self._backlog(stream, start.get(stream, START), end[stream]) for stream in behind
            }
        budgets = divide_budget(
            backlogs, max_rows=max_rows, max_bytes=max_bytes, rotation=_rotation_of(start)
        )
        limited = dict(end)
        for stream in behind:
            begin, budget = start.get(stream, START), budgets.get(stream)
            limited[stream] = begin if budget is None else self._advance(stream, begin, end[stream], budget)
        return limited

    def backlogs(self, start: Offsets, end: Offsets) -> dict[int, Backlog]:
        """Rows and bytes of a range by stream, of all its epochs; only of the beginning of a long range."""
        return {
            stream: self._backlog(stream, start.get(stream, START), position)
            for stream, position in end.items()
            if position > start.get(stream, START)
        }

    def _between(self, stream_id: int, start: Position, end: Position) -> Records:
        """The segments that may have frames of the range."""
        records = self._records(stream_id)
        epoch, first = records["epoch"], records["first_seq"]

        def position(at: int) -> tuple[int, int]:
            return int(epoch[at]), int(first[at])

        numbers = range(len(records))
        high = bisect_left(numbers, (end.epoch, end.seq), key=position)
        # The last segment that begins at or before the start is the first that can have frames of the range.
        low = max(bisect_right(numbers, (start.epoch, start.seq), key=position) - 1, 0)
        segments: Records = records[low:high]
        if len(segments) and segments[0]["kind"] == RecordKind.SEALED:
            record = segments[0]
            if Position(int(record["epoch"]), int(record["last_seq"])) < start or not record["rows"]:
                segments = segments[1:]
        return segments

    def _backlog(self, stream_id: int, start: Position, end: Position) -> Backlog:
        """Rows and bytes of the range, without the part of its first segment that was read before.

        Counts only the beginning of a long range: it is far more than a micro-batch takes.
        """
        records = self._between(stream_id, start, end)[:_MAX_SEGMENTS_WEIGHED]
        if not len(records):
            return Backlog(0, 0)
        rows, size = self._totals(records)
        skipped_rows, skipped_bytes = 0, 0
        first = records[0]
        if Position(int(first["epoch"]), int(first["first_seq"])) < start:
            for block in self._blocks(first):
                if block.location.first_seq >= start.seq:
                    break
                count = _row_of(block, start.seq)
                skipped_rows += count
                skipped_bytes += int(block.payload_bytes[:count].sum())
        return Backlog(max(int(rows.sum()) - skipped_rows, 1), max(int(size.sum()) - skipped_bytes, 1))

    def _totals(self, records: Records) -> tuple[Any, Any]:
        """Rows and payload bytes of each segment; of an open one, of its complete batches."""
        rows, size = records["rows"].astype(np.int64), records["payload_bytes"].astype(np.int64)
        for at in np.flatnonzero(records["kind"] != RecordKind.SEALED).tolist():
            scan = self._recording.segment(segment_name(records[at])).file.scan
            rows[at], size[at] = scan.rows, scan.end
        return rows, size

    def _sizes(self, records: Records, start: Position, end: Position) -> Any:
        """Payload bytes of each segment; of the first and the last, the approximate part within the range."""
        _, sizes = self._totals(records)
        for at in {0, len(records) - 1}:
            if sizes[at] <= _MIN_TASK_BYTES:
                continue
            epoch = int(records[at]["epoch"])
            low = start.seq if epoch == start.epoch else 0
            high = end.seq if epoch == end.epoch else 1 << 64
            try:
                scan = self._recording.segment(segment_name(records[at])).file.scan
            except (CorruptRecording, FrameNotRecorded):
                continue
            inside = sum(
                max(min(batch.rows, high - batch.first_seq) - max(low - batch.first_seq, 0), 0)
                for batch in scan.batches
                if batch.last_seq >= low
            )
            sizes[at] = max(int(sizes[at]) * inside // max(scan.rows, 1), 1)
        return sizes

    def _advance(self, stream_id: int, start: Position, end: Position, budget: Budget) -> Position:
        """The position behind as many frames as the budget allows, at least one."""
        records = self._between(stream_id, start, end)
        at, position = 0, start
        while at < len(records):
            whole = self._take_whole(records[at : at + _MAX_SEGMENTS_WEIGHED], end, budget) if at else 0
            if whole:
                at += whole
                position = Position(int(records[at - 1]["epoch"]), int(records[at - 1]["last_seq"]) + 1)
                continue
            for block in self._blocks(records[at]):
                position, is_exhausted = _take_rows(block, start, end, budget, position)
                if is_exhausted:
                    return min(position, end)
            at += 1
        return end

    @staticmethod
    def _take_whole(records: Records, end: Position, budget: Budget) -> int:
        """How many of the first segments fit the budget completely. Subtracts them from it."""
        fits = (records["kind"] == RecordKind.SEALED) & (records["rows"] > 0)
        fits &= (records["epoch"] < np.uint64(end.epoch)) | (
            (records["epoch"] == np.uint64(end.epoch))
            & (records["last_seq"] < np.uint64(min(end.seq, _MAX_SEQ)))
        )
        count = int(np.argmin(fits)) if not fits.all() else len(fits)
        rows, size = np.cumsum(records["rows"][:count]), np.cumsum(records["payload_bytes"][:count])
        count = min(
            int(np.searchsorted(rows, budget.rows, "right")),
            int(np.searchsorted(size, budget.bytes, "right")),
        )
        if count:
            budget.take(int(rows[count - 1]), int(size[count - 1]))
        return count

    # --- tasks

    def lost(self, start: Offsets, end: Offsets) -> list[Gap]:
        """The frames of the range that retention removed."""
        lost = []
        for stream, stop in end.items():
            begin = start.get(stream, START)
            for gap in self._recording.lost_since(Cursor(stream, begin.epoch, begin.seq - 1)):
                last = gap.last_seq if gap.epoch < stop.epoch else min(gap.last_seq, stop.seq - 1)
                if gap.epoch <= stop.epoch and last >= gap.first_seq:
                    lost.append(Gap(stream, gap.epoch, gap.first_seq, last - gap.first_seq + 1, gap.reason))
        return lost

    def ranges(
        self,
        start: Offsets,
        end: Offsets,
        *,
        max_bytes: int | None,
        min_parts: int | None,
        ends_with_row: bool,
        time: tuple[int | None, int | None] = (None, None),
    ) -> list[FrameRange]:
        """The range divided into at least `min_parts` tasks of about `max_bytes` each."""
        segments: dict[int, _StreamSegments] = {}
        without_rows: list[FrameRange] = []
        for stream, position in end.items():
            begin = start.get(stream, START)
            if position > begin and len(records := _in_time(self._between(stream, begin, position), time)):
                segments[stream] = _StreamSegments(records, self._sizes(records, begin, position))
            elif position > begin and self._ends_with_gap(stream, position) and time == (None, None):
                # Gaps alone.
                without_rows.append(FrameRange(stream, begin, position, False, ends_with_gap=True))
        total = sum(int(part.sizes.sum()) for part in segments.values())
        target = max_bytes if max_bytes is not None else task_bytes(total, os.cpu_count() or 1)
        if min_parts is not None:
            target = max(min(target, -(-total // min_parts)), 1)
        ranges = self._divide_all(segments, start, end, target, ends_with_row)
        if max_bytes is None and min_parts is None and segments:
            # Whole segments rarely fill a task exactly: larger tasks are better than an extra small one.
            max_tasks = max(-(-total // target), len(segments))
            largest = max(int(part.sizes.max()) for part in segments.values())
            for extra in (1, 2):
                if len(ranges) > max_tasks:
                    larger = target + extra * largest // 2
                    ranges = self._divide_all(segments, start, end, larger, ends_with_row)
        archive = archive_of(self._recording.root) if self._recording.remote is None else None
        planned = [*ranges, *without_rows]
        return planned if archive is None else [replace(task, archive=str(archive)) for task in planned]

    def _ends_with_gap(self, stream_id: int, end: Position) -> bool:
        """Whether the sequence right before a position was declared missing."""
        return any(
            gap.epoch == end.epoch and gap.first_seq < end.seq <= gap.last_seq + 1
            for gap in self._gaps.get(stream_id, ())
        )

    def _divide_all(
        self,
        segments: Mapping[int, _StreamSegments],
        start: Offsets,
        end: Offsets,
        max_bytes: int,
        ends_with_row: bool,
    ) -> list[FrameRange]:
        ranges: list[FrameRange] = []
        for stream, part in segments.items():
            begin = start.get(stream, START)
            divided = _divide(stream, part, begin, end[stream], max_bytes, ends_with_row)
            if self._ends_with_gap(stream, end[stream]):
                divided = [
                    replace(task, ends_with_row=False, ends_with_gap=True)
                    if task.end == end[stream]
                    else task
                    for task in divided
                ]
            ranges += divided
        return ranges


def task_bytes(total: int, cores: int) -> int:
    """Default size of a task. Starting one costs Spark as much as reading some dozens of megabytes; an idle
    core costs more.
    """
    return min(max(-(-total // cores), _MIN_TASK_BYTES), _MAX_TASK_BYTES)


def _in_time(records: Records, time: tuple[int | None, int | None]) -> Records:
    keep = np.ones(len(records), bool)
    if time[0] is not None:
        keep &= records["last_time_ns"] >= time[0]
    if time[1] is not None:
        keep &= records["first_time_ns"] <= time[1]
    segments: Records = records[keep | (records["kind"] != RecordKind.SEALED)]
    return segments


def _divide(
    stream_id: int,
    segments: _StreamSegments,
    start: Position,
    end: Position,
    max_bytes: int,
    ends_with_row: bool,
) -> list[FrameRange]:
    """The segments of one stream as tasks."""
    records, sizes = segments.records, segments.sizes.tolist()
    ranges: list[FrameRange] = []
    begin, task_size = start, 0
    for at, size in enumerate(sizes):
        is_last = at == len(sizes) - 1
        next_size = sizes[at + 1] if not is_last else 0
        task_size += size
        if not is_last and task_size + next_size <= max_bytes:
            continue
        stop, is_row = (end, ends_with_row) if is_last else _boundary(records, at)
        # Only a task of a single segment is divided: a larger one ended because the next segment did not fit.
        parts = max(-(-task_size // max_bytes), 1) if task_size == size else 1
        ranges += [FrameRange(stream_id, begin, stop, is_row, part, parts) for part in range(parts)]
        begin, task_size = stop, 0
    return ranges


def _boundary(records: Records, at: int) -> tuple[Position, bool]:
    """The position between a segment and the next, and whether a row is right before it."""
    record, following = records[at], records[at + 1]
    if record["kind"] == RecordKind.SEALED and record["rows"]:
        return Position(int(record["epoch"]), int(record["last_seq"]) + 1), True
    return Position(int(following["epoch"]), int(following["first_seq"])), False


def _take_rows(
    block: RowBlock, start: Position, end: Position, budget: Budget, position: Position
) -> tuple[Position, bool]:
    """The position behind the rows of a batch that the budget allows, and whether it is exhausted."""
    seq, epoch = block.seq, block.epoch
    low = _row_of(block, start.seq) if epoch == start.epoch else 0
    high = _row_of(block, end.seq) if epoch == end.epoch else len(seq)
    if low >= high:
        return position, epoch >= end.epoch and high < len(seq)
    sizes = np.cumsum(block.payload_bytes[low:high])
    count = budget.fitting(sizes)
    if count == 0:
        return position, True
    budget.take(count, int(sizes[count - 1]))
    return Position(epoch, int(seq[low + count - 1]) + 1), count < high - low


def _row_of(block: RowBlock, seq: int) -> int:
    """The first row of a batch with this sequence or a later one."""
    return int(np.searchsorted(block.seq, np.uint64(min(seq, _MAX_SEQ))))


def _rotation_of(start: Offsets) -> int:
    """A number that changes from batch to batch, and is the same when a batch is planned again."""
    return sum(position.seq for position in start.values())


def retry(
    work: Callable[[], T],
    *,
    timeout_ns: int,
    pause: Callable[[float], None],
    final: tuple[type[Exception], ...] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """The result of `work`, which is called again after a disk error. After `timeout_ns` its last error is
    raised; a `final` error is raised at once.
    """
    deadline = clock.monotonic_ns() + timeout_ns
    wait = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except final:
            raise
        except (OSError, RecordingError) as error:
            if clock.monotonic_ns() >= deadline:
                raise
            _LOG.warning("planning failed, trying again: %s", error)
        pause(wait)
        wait = min(2 * wait, _MAX_PAUSE_S)
