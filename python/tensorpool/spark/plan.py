"""What a recording has, where a micro-batch ends, and which tasks read it.

Everything comes from the manifest and from at most two segments a stream, those where a micro-batch begins
and ends: planning does not grow with the recording. Runs in Spark's planning process, one thread.

How a micro-batch's rows and bytes are shared among streams. Pure.

Tries again what the disk refused: an exception in Spark's planning ends a query for good.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CorruptRecording, FrameNotRecorded, RecordingError
from ..recording import Cursor, Gap, Recording
from ..recording.manifest import RecordKind, Records, segment_name
from ..recording.rows import RowBlock
from .offsets import START, Offsets, Position

_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class Budget:
    """What one stream may still add to a micro-batch."""

    rows: int = _NO_LIMIT
    bytes: int = _NO_LIMIT
    taken: int = 0

    def fitting(self, sizes: Any) -> int:
        """How many frames fit, given their running sizes. The first frame always does: it has to get on."""
        count = min(self.rows, int(np.searchsorted(sizes, self.bytes, "right")), len(sizes))
        return max(count, 0 if self.taken else 1)

    def take(self, rows: int, size: int) -> None:
        self.rows -= rows
        self.bytes -= size
        self.taken += rows


def shares(
    waiting: Mapping[int, tuple[int, int]], *, max_rows: int | None, max_bytes: int | None, turn: int
) -> dict[int, Budget]:
    """A budget for each stream, in proportion to what waits in it; `waiting` is stream → (rows, bytes).

    Every stream gets one row at least. If there are fewer rows than streams, `turn` says who is first.
    """
    streams = sorted(waiting)
    if max_rows is not None and max_rows < len(streams):
        first = turn % len(streams)
        streams = (streams[first:] + streams[:first])[:max_rows]
    found = {stream: Budget() for stream in streams}
    if max_rows is not None:
        parts = _proportional([waiting[stream][0] for stream in streams], max_rows)
        for stream, rows in zip(streams, parts, strict=True):
            found[stream].rows = rows
    if max_bytes is not None:
        total = sum(waiting[stream][1] for stream in streams)
        for stream in streams:
            found[stream].bytes = max_bytes * waiting[stream][1] // max(total, 1)
    return found


def _proportional(weights: list[int], total: int) -> list[int]:
    """Whole numbers of at least one with this sum, as near to the proportions as they come."""
    spare, whole = total - len(weights), max(sum(weights), 1)
    parts = [1 + spare * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -(spare * weights[i] % whole))
    for number in range(total - sum(parts)):
        parts[order[number % len(order)]] += 1
    return parts


_LOOK_AHEAD: Final = 256
_LEAST_TASK_BYTES: Final = 64 << 20
_MOST_TASK_BYTES: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class FrameRange:
    """What one task reads: the frames of a stream from `start` up to, not including, `end`."""

    stream_id: int
    start: Position
    end: Position
    ends_with_row: bool
    """Whether the frame right before `end` is recorded: if it is not there then, something was lost."""
    part: int = 0
    parts: int = 1
    """The task's share of the rows, where one segment is cut into several tasks."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """What no task can read any more, to be told as gap rows."""

    gaps: tuple[Gap, ...]


class Planner:
    """A recording, looked at from the planning process."""

    def __init__(self, path: str, streams: tuple[int, ...] | None) -> None:
        self.path = path
        self._wanted = streams
        self._recording = Recording(path)
        self._present = self._recording.streams

    def refresh(self) -> None:
        self._recording.refresh()
        # Kept: finding them means looking at every segment's record.
        self._present = self._recording.streams

    def close(self) -> None:
        """Lets go of the files; it can be used again."""
        self._recording.close()

    def streams(self) -> list[int]:
        """The streams that are asked for and there."""
        return [one for one in self._present if self._wanted is None or one in self._wanted]

    def _records(self, stream_id: int) -> Records:
        return self._recording.segments_of(stream_id)

    # --- places

    def earliest(self) -> Offsets:
        return {stream: self._first(stream) for stream in self._named()}

    def _named(self) -> list[int]:
        # A stream that is asked for and has nothing yet begins at its beginning.
        return sorted({*self.streams(), *(self._wanted or ())})

    def _first(self, stream_id: int) -> Position:
        for record in self._records(stream_id):
            if record["kind"] != RecordKind.SEALED or record["rows"]:
                return Position(int(record["epoch"]), int(record["first_seq"]))
        return START

    def latest(self) -> Offsets:
        """Behind the last frame of each stream that is complete by now."""
        found = {}
        for stream in self._named():
            cursor = self._recording.latest(stream) if stream in self._present else None
            found[stream] = START if cursor is None else Position.behind(cursor)
        return found

    def at_time(self, time_ns: int) -> Offsets:
        """The first frame of each stream that was received then or later; behind the last if none was."""
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
        """What can be read of a segment. What cannot is for the tasks to say, or to pass over."""
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
        """At most `end`, and no more rows and bytes behind `start` than allowed; every stream gets on."""
        behind = [stream for stream, place in end.items() if place > start.get(stream, START)]
        # One that waits alone gets everything, however much it is.
        waiting = {
            stream: self._weigh(stream, start.get(stream, START), end[stream]) if len(behind) > 1 else (1, 1)
            for stream in behind
        }
        if not waiting or (max_rows is None and max_bytes is None):
            return end
        budgets = shares(waiting, max_rows=max_rows, max_bytes=max_bytes, turn=_turn(start))
        found = dict(end)
        for stream in waiting:
            begin, budget = start.get(stream, START), budgets.get(stream)
            found[stream] = begin if budget is None else self._advance(stream, begin, end[stream], budget)
        return found

    def _between(self, stream_id: int, start: Position, end: Position) -> Records:
        """The segments that may hold frames of the range."""
        records = self._records(stream_id)
        epoch, first = records["epoch"], records["first_seq"]

        def place(at: int) -> tuple[int, int]:
            return int(epoch[at]), int(first[at])

        every = range(len(records))
        high = bisect_left(every, (end.epoch, end.seq), key=place)
        # The segment that begins at or before the start is the first that can hold something of the range.
        low = max(bisect_right(every, (start.epoch, start.seq), key=place) - 1, 0)
        found: Records = records[low:high]
        if len(found) and found[0]["kind"] == RecordKind.SEALED:
            one = found[0]
            if Position(int(one["epoch"]), int(one["last_seq"])) < start or not one["rows"]:
                found = found[1:]
        return found

    def _weigh(self, stream_id: int, start: Position, end: Position) -> tuple[int, int]:
        """Rows and bytes of the range; what of its first segment was read before is taken off. Of a long
        range only the beginning is weighed: it is far more than a micro-batch takes.
        """
        records = self._between(stream_id, start, end)[:_LOOK_AHEAD]
        if not len(records):
            return 0, 0
        rows, size = self._totals(records)
        skipped_rows, skipped_bytes = 0, 0
        first = records[0]
        if Position(int(first["epoch"]), int(first["first_seq"])) < start:
            for block in self._blocks(first):
                if block.location.first_seq >= start.seq:
                    break
                count = int(np.searchsorted(block.seq, np.uint64(min(start.seq, 2**64 - 1))))
                skipped_rows += count
                skipped_bytes += int(block.payload_bytes[:count].sum())
        return max(int(rows.sum()) - skipped_rows, 1), max(int(size.sum()) - skipped_bytes, 1)

    def _totals(self, records: Records) -> tuple[Any, Any]:
        """Rows and payload bytes of each segment; of open ones as much as is complete."""
        rows, size = records["rows"].astype(np.int64), records["payload_bytes"].astype(np.int64)
        for at in np.flatnonzero(records["kind"] != RecordKind.SEALED).tolist():
            scan = self._recording.segment(segment_name(records[at])).file.scan
            rows[at], size[at] = scan.rows, scan.end
        return rows, size

    def _sizes(self, records: Records, start: Position, end: Position) -> Any:
        """Payload bytes of each segment, of the first and the last only what lies in the range, about."""
        sizes = self._totals(records)[1]
        for at in {0, len(records) - 1}:
            if sizes[at] <= _LEAST_TASK_BYTES:
                continue
            epoch = int(records[at]["epoch"])
            low = start.seq if epoch == start.epoch else 0
            high = end.seq if epoch == end.epoch else 1 << 64
            try:
                scan = self._recording.segment(segment_name(records[at])).file.scan
            except (CorruptRecording, FrameNotRecorded):
                continue
            inside = sum(
                max(min(one.rows, high - one.first_seq) - max(low - one.first_seq, 0), 0)
                for one in scan.batches
                if one.last_seq >= low
            )
            sizes[at] = max(int(sizes[at]) * inside // max(scan.rows, 1), 1)
        return sizes

    def _advance(self, stream_id: int, start: Position, end: Position, budget: Budget) -> Position:
        """The place behind as many frames as the budget allows, and one at least."""
        records = self._between(stream_id, start, end)
        at, place = 0, start
        while at < len(records):
            whole = self._whole_ones(records[at : at + _LOOK_AHEAD], start, end, budget) if at else 0
            if whole:
                at += whole
                place = Position(int(records[at - 1]["epoch"]), int(records[at - 1]["last_seq"]) + 1)
                continue
            for block in self._blocks(records[at]):
                place, is_over = _take(block, start, end, budget, place)
                if is_over:
                    return min(place, end)
            at += 1
        return end

    @staticmethod
    def _whole_ones(records: Records, start: Position, end: Position, budget: Budget) -> int:
        """How many segments from here on fit the budget as a whole; takes them off it."""
        fits = (records["kind"] == RecordKind.SEALED) & (records["rows"] > 0)
        fits &= (records["epoch"] < np.uint64(end.epoch)) | (
            (records["epoch"] == np.uint64(end.epoch))
            & (records["last_seq"] < np.uint64(min(end.seq, 2**64 - 1)))
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
        """What retention removed of the range."""
        found = []
        for stream, stop in end.items():
            begin = start.get(stream, START)
            for gap in self._recording.lost_since(Cursor(stream, begin.epoch, begin.seq - 1)):
                last = gap.last_seq if gap.epoch < stop.epoch else min(gap.last_seq, stop.seq - 1)
                if gap.epoch <= stop.epoch and last >= gap.first_seq:
                    found.append(Gap(stream, gap.epoch, gap.first_seq, last - gap.first_seq + 1, gap.reason))
        return found

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
        """The range as tasks of about `max_bytes` each, and at least `min_parts` of them."""
        chosen = {}
        for stream, place in end.items():
            begin = start.get(stream, START)
            if place > begin and len(records := _in_time(self._between(stream, begin, place), time)):
                chosen[stream] = records, self._sizes(records, begin, place)
        total = sum(int(size.sum()) for _, size in chosen.values())
        aim = max_bytes if max_bytes is not None else task_bytes(total, os.cpu_count() or 1)
        if min_parts is not None:
            aim = max(min(aim, -(-total // min_parts)), 1)
        found = self._cut_all(chosen, start, end, aim, ends_with_row)
        if max_bytes is None and min_parts is None and chosen:
            # Whole segments rarely fill a share: rather a little more in each task than a small one behind.
            most = max(-(-total // aim), len(chosen))
            largest = max(int(size.max()) for _, size in chosen.values())
            for extra in (1, 2):
                if len(found) > most:
                    found = self._cut_all(chosen, start, end, aim + extra * largest // 2, ends_with_row)
        return found

    @staticmethod
    def _cut_all(
        chosen: Mapping[int, tuple[Records, Any]],
        start: Offsets,
        end: Offsets,
        max_bytes: int,
        ends_with_row: bool,
    ) -> list[FrameRange]:
        found: list[FrameRange] = []
        for stream, (records, size) in chosen.items():
            begin = start.get(stream, START)
            found += _cut(stream, records, size.tolist(), begin, end[stream], max_bytes, ends_with_row)
        return found


def task_bytes(total: int, cores: int) -> int:
    """What one task reads if nobody says: a task costs Spark as much as reading some dozens of megabytes, and
    idle cores cost more.
    """
    return min(max(-(-total // cores), _LEAST_TASK_BYTES), _MOST_TASK_BYTES)


def _in_time(records: Records, time: tuple[int | None, int | None]) -> Records:
    keep = np.ones(len(records), bool)
    if time[0] is not None:
        keep &= records["last_time_ns"] >= time[0]
    if time[1] is not None:
        keep &= records["first_time_ns"] <= time[1]
    found: Records = records[keep | (records["kind"] != RecordKind.SEALED)]
    return found


def _cut(
    stream_id: int,
    records: Records,
    sizes: list[int],
    start: Position,
    end: Position,
    max_bytes: int,
    ends_with_row: bool,
) -> list[FrameRange]:
    found: list[FrameRange] = []
    begin, held = start, 0
    for at, size in enumerate(sizes):
        is_last = at == len(sizes) - 1
        following = sizes[at + 1] if not is_last else 0
        held += size
        if not is_last and held + following <= max_bytes:
            continue
        stop, known = (end, ends_with_row) if is_last else _boundary(records, at)
        # Only a segment that stands alone is shared: it was begun anew, since nothing fitted beside it.
        parts = max(-(-held // max_bytes), 1) if held == size else 1
        found += [FrameRange(stream_id, begin, stop, known, part, parts) for part in range(parts)]
        begin, held = stop, 0
    return found


def _boundary(records: Records, at: int) -> tuple[Position, bool]:
    """Between a segment and the next: right behind its last row, if that is known."""
    one, following = records[at], records[at + 1]
    if one["kind"] == RecordKind.SEALED and one["rows"]:
        return Position(int(one["epoch"]), int(one["last_seq"]) + 1), True
    return Position(int(following["epoch"]), int(following["first_seq"])), False


def _take(
    block: RowBlock, start: Position, end: Position, budget: Budget, place: Position
) -> tuple[Position, bool]:
    """The place behind the rows of a batch that the budget allows, and whether that was all it allows."""
    seq, epoch = block.seq, block.epoch
    low = int(np.searchsorted(seq, np.uint64(min(start.seq, 2**64 - 1)))) if epoch == start.epoch else 0
    high = int(np.searchsorted(seq, np.uint64(min(end.seq, 2**64 - 1)))) if epoch == end.epoch else len(seq)
    if low >= high:
        return place, epoch >= end.epoch and high < len(seq)
    sizes = np.cumsum(block.payload_bytes[low:high])
    count = budget.fitting(sizes)
    if count == 0:
        return place, True
    budget.take(count, int(sizes[count - 1]))
    return Position(epoch, int(seq[low + count - 1]) + 1), count < high - low


def _turn(start: Offsets) -> int:
    """A number that changes from batch to batch, the same when a batch is planned again."""
    return sum(place.seq for place in start.values())


T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


def retry(
    work: Callable[[], T],
    *,
    timeout_ns: int,
    pause: Callable[[float], None],
    final: tuple[type[Exception], ...] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """What `work` gives, once it gives something. After `timeout_ns` its last error is raised, and at once if
    it is a `final` one: no use in asking again.
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
        wait = min(2 * wait, _LONGEST_PAUSE_S)
