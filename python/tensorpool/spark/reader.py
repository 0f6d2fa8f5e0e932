"""Readers of recordings: `spark.read` at the time of planning, `spark.readStream` in micro-batches.

Offsets, planning and leases are in one Python process beside Spark's driver. `read` runs in executors, on a
pickled copy that has none of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..errors import CorruptRecording, FrameNotRecorded, NotARecording
from ..recording import Gap, Recording
from ..recording.retention import LeaseKeeper
from ..recording.storage import is_uri
from . import offsets
from .offsets import START, Offsets, OffsetsJson
from .options import EARLIEST, LATEST, READ, Options, RequestedPosition, arrow_schema, check_schema
from .plan import Backlog, FrameRange, LostRange, Planner, retry
from .scan import RangeScan, ScanOptions, gap_batch, tune_worker

T = TypeVar("T")
_STREAM_LEASE_NS: Final = 600_000_000_000


class FrameReader(DataSourceReader):
    """Plans beside Spark's driver and reads in the executors: its attributes are pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query."""
        planned = retry(
            self._plan,
            timeout_ns=self._options["retryTimeout"],
            pause=time.sleep,
            final=(CorruptRecording, NotARecording, FrameNotRecorded),
        )
        tune_worker()
        return [InputPartition(frame_range) for frame_range in planned]

    def _plan(self) -> list[FrameRange | LostRange]:
        options = self._options
        planner = Planner(options.path, options["streams"], with_gaps=options["includeGaps"])
        planner.check_names()
        start, end = _batch_offsets(planner, options)
        if (ttl_ns := options["leaseTimeout"]) and not is_uri(options.path):
            # Spark ends this process after planning: the lease must last as long as the query.
            lease = LeaseKeeper(options.path, holder="spark batch", ttl_ns=ttl_ns)
            lease.hold(offsets.to_cursors(start))
            lease.start()
            planner.refresh()
        lost = planner.lost(start, end) if options.is_given("startingOffsets") else []
        ranges = planner.ranges(
            start,
            end,
            max_bytes=options["maxPartitionBytes"],
            min_parts=options["minPartitions"],
            ends_with_row=not options.is_given("endingOffsets"),
            time=time_bounds(options),
        )
        return [*lost_ranges(lost, options), *ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_range(partition.value, self._options, self._schema)


def _batch_offsets(planner: Planner, options: Options) -> tuple[Offsets, Offsets]:
    """Start and end of a batch read, for every stream that is read.

    A stream that `startingOffsets` or `endingOffsets` does not name is read whole; option `streams` excludes
    streams.
    """
    named = {EARLIEST: planner.earliest(), LATEST: planner.latest()}

    def resolve(requested: str | dict[int, RequestedPosition], default: str) -> Offsets:
        if isinstance(requested, str):
            return named[requested]
        return _resolve({stream: requested.get(stream, default) for stream in named[default]}, named)

    return resolve(options["startingOffsets"], EARLIEST), resolve(options["endingOffsets"], LATEST)


def _resolve(requested: dict[int, RequestedPosition], named: dict[str, Offsets]) -> Offsets:
    """Positions of requests by stream, with `earliest` and `latest` replaced."""
    return {
        stream: named[position].get(stream, START) if isinstance(position, str) else position
        for stream, position in requested.items()
    }


def time_bounds(options: Options) -> tuple[int | None, int | None]:
    """First and last nanosecond of a batch read, both included."""
    end = options["endingTimestamp"]
    return options["startingTimestamp"], None if end is None else end - 1


def lost_ranges(lost: list[Gap], options: Options) -> list[LostRange]:
    """Frames that retention removed, as an error or as gap rows."""
    if not lost:
        return []
    if options["failOnDataLoss"]:
        gap = lost[0]
        raise CorruptRecording(
            f"stream {gap.stream_id}, epoch {gap.epoch}: retention removed frames {gap.first_seq} to "
            f"{gap.last_seq} before they were read. To continue without them: option failOnDataLoss=false "
            "(with includeGaps=true they become gap rows)",
            path=options.path,
        )
    return [LostRange(tuple(lost))] if options["includeGaps"] else []


def read_range(
    frame_range: FrameRange | LostRange | None, options: Options, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Of a plan without ranges Spark makes one task, without a range."""
    if frame_range is None:
        return
    arrow = arrow_schema(schema)
    if isinstance(frame_range, LostRange):
        yield gap_batch(frame_range.gaps, arrow)
    else:
        scan_options = ScanOptions(
            path=options.path,
            payload=options.payload if "payload" in arrow.names else "none",
            max_batch_bytes=options["maxBatchBytes"],
            include_gaps=options["includeGaps"],
            fail_on_loss=options["failOnDataLoss"],
            time=time_bounds(options) if options.use == READ else (None, None),
        )
        yield from RangeScan(frame_range, scan_options, arrow).batches()
    tune_worker()


class FrameStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Frames in order of epoch and sequence. An offset has the first unread frame of each stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        # A wrong path fails now; if the path disappears later, planning retries.
        with Recording(options.path):
            pass
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._lease: LeaseKeeper | None = None
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_schema": self._schema}

    # --- offsets

    def initialOffset(self) -> OffsetsJson:
        """Start of a new query."""
        start = self._plan(self._initial)
        self._hold_lease(start)
        return offsets.to_json(start)

    def _initial(self, planner: Planner) -> Offsets:
        if (since := self._options["startingTimestamp"]) is not None:
            return planner.at_time(since)
        requested = self._options["startingOffsets"]
        named = {EARLIEST: planner.earliest(), LATEST: planner.latest()}
        if isinstance(requested, str):
            return named[requested]
        return {**named[EARLIEST], **_resolve(requested, named)}

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """End of the next micro-batch."""
        begin = offsets.from_json(start)
        if self._lease is None:
            self._hold_lease(begin)
        end = self._plan(lambda planner: self._end_of_batch(planner, begin, limit))
        return offsets.to_json(end)

    def _end_of_batch(self, planner: Planner, begin: Offsets, limit: ReadLimit) -> Offsets:
        latest = planner.latest()
        if self._target is not None:
            # Later frames and new streams are left to the next run.
            latest = offsets.limit_to(latest, self._target)
        end = offsets.latest_of(begin, latest)
        if isinstance(limit, ReadAllAvailable):
            return end
        options = self._options
        return planner.limited(
            begin, end, max_rows=options["maxRowsPerTrigger"], max_bytes=options["maxBytesPerTrigger"]
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Whether micro-batches are limited."""
        rows, size = self._options["maxRowsPerTrigger"], self._options["maxBytesPerTrigger"]
        # Spark has no limit by rows and bytes together. `latestOffset` uses the options, so any will do.
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of a run with Trigger.AvailableNow."""
        self._target = self._plan(lambda planner: planner.latest())

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The end without limits, for Spark's progress."""
        return offsets.to_json(self._plan(lambda planner: planner.latest()))

    # --- tasks

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        begin, stop = offsets.from_json(start), offsets.from_json(end)
        if self._lease is None:
            self._hold_lease(begin)
        planned = self._plan(lambda planner: self._tasks(planner, begin, stop), final=(CorruptRecording,))
        return [InputPartition(frame_range) for frame_range in planned]

    def _tasks(self, planner: Planner, begin: Offsets, stop: Offsets) -> list[FrameRange | LostRange]:
        options = self._options
        ranges = planner.ranges(
            begin,
            stop,
            max_bytes=options["maxPartitionBytes"],
            min_parts=options["minPartitions"],
            ends_with_row=True,
        )
        return [*lost_ranges(planner.lost(begin, stop), options), *ranges]

    def ranges(
        self, start: OffsetsJson, end: OffsetsJson, *, task_bytes: int
    ) -> list[FrameRange | LostRange]:
        """The range in parts of about `task_bytes`, for a caller that runs tasks of its own."""
        begin, stop = offsets.from_json(start), offsets.from_json(end)

        def plan(planner: Planner) -> list[FrameRange | LostRange]:
            lost = lost_ranges(planner.lost(begin, stop), self._options)
            parts = planner.ranges(begin, stop, max_bytes=task_bytes, min_parts=None, ends_with_row=True)
            return [*lost, *parts]

        return self._plan(plan, final=(CorruptRecording,))

    def backlogs(self, start: OffsetsJson, end: OffsetsJson | None = None) -> dict[int, Backlog]:
        """Unread rows and bytes of each stream, up to `end` or to the latest frame."""
        begin = offsets.from_json(start)
        stop = None if end is None else offsets.from_json(end)
        return self._plan(lambda planner: planner.backlogs(begin, planner.latest() if stop is None else stop))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_range(partition.value, self._options, self._schema)

    def commit(self, end: OffsetsJson) -> None:
        """Frees the frames before `end` for retention."""
        self._hold_lease(offsets.from_json(end))

    def stop(self) -> None:
        """Releases the lease and closes the files."""
        if self._lease is not None:
            self._lease.release()
        if self._planner is not None:
            self._planner.close()

    # --- the process beside Spark's driver

    def _plan(self, work: Callable[[Planner], T], *, final: tuple[type[Exception], ...] = ()) -> T:
        """The result of `work` with an up-to-date planner. Disk errors are retried."""

        def attempt() -> T:
            if self._planner is None:
                options = self._options
                with_gaps = options["includeGaps"]
                self._planner = Planner(options.path, options["streams"], with_gaps=with_gaps)
            else:
                self._planner.refresh()
            return work(self._planner)

        return retry(attempt, timeout_ns=self._options["retryTimeout"], pause=time.sleep, final=final)

    def _hold_lease(self, unread: Offsets) -> None:
        if is_uri(self._options.path):
            # No retention removes what is in a store.
            return
        if self._lease is None:
            ttl_ns = self._options["leaseTimeout"] or _STREAM_LEASE_NS
            self._lease = LeaseKeeper(self._options.path, holder="spark stream", ttl_ns=ttl_ns)
        self._lease.hold(offsets.to_cursors(unread))
        self._lease.start()
