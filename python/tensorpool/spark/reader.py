"""`spark.read.format("tensorpool")`: a recording, as it is when the query is planned.

`spark.readStream.format("tensorpool")`: a recording that grows, micro-batch by micro-batch.

Offsets, planning and leases live in one process beside Spark's driver; `read` runs in executors, on a pickled
copy that has neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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

from ..errors import CorruptRecording, NotARecording
from ..recording import Gap
from ..recording.layout import check_root
from . import offsets
from .lease_hold import RenewingLease
from .offsets import START, Offsets
from .options import Options, arrow_schema, check_schema
from .plan import FrameRange, LostRange, Planner, retry
from .scan import RangeScan, ScanOptions, gap_batch
from .worker import tune_worker


class FrameReader(DataSourceReader):
    """Plans in the driver, reads in the executors: what is kept here is pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        planned = retry(
            self._plan,
            timeout_ns=self._options["retryTimeout"],
            pause=time.sleep,
            final=(CorruptRecording, NotARecording),
        )
        tune_worker()
        return [InputPartition(one) for one in planned]

    def _plan(self) -> list[FrameRange | LostRange]:
        options = self._options
        planner = Planner(options.path, options["streams"])
        start, end = _places(planner, options)
        if ttl_ns := options["leaseTimeout"]:
            # Nobody is left to renew it: it has to last as long as the query.
            RenewingLease(options.path, holder="spark batch", ttl_ns=ttl_ns).keep(start)
            planner.refresh()
        lost = planner.lost(start, end) if options.is_given("startingOffsets") else []
        ranges = planner.ranges(
            start,
            end,
            max_bytes=options["maxPartitionBytes"],
            min_parts=options["minPartitions"],
            ends_with_row=not options.is_given("endingOffsets"),
            time=times(options),
        )
        return [*lost_ranges(lost, options), *ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition.value, self._options, self._schema)


def _places(planner: Planner, options: Options) -> tuple[Offsets, Offsets]:
    """What `startingOffsets` and `endingOffsets` ask for, of every stream that is read.

    One that they do not name is read whole: option `streams` is how others are left out.
    """
    named = {"earliest": planner.earliest(), "latest": planner.latest()}

    def places(asked: Any, otherwise: str) -> Offsets:
        if isinstance(asked, str):
            return named[asked]
        chosen = {stream: asked.get(stream, otherwise) for stream in named[otherwise]}
        return {
            stream: named[place].get(stream, START) if isinstance(place, str) else place
            for stream, place in chosen.items()
        }

    return places(options["startingOffsets"], "earliest"), places(options["endingOffsets"], "latest")


def times(options: Options) -> tuple[int | None, int | None]:
    """First and last nanosecond, both included."""
    end = options["endingTimestamp"]
    return options["startingTimestamp"], None if end is None else end - 1


def lost_ranges(lost: list[Gap], options: Options) -> list[LostRange]:
    """What retention removed, as an error or as gap rows."""
    if not lost:
        return []
    if options["failOnDataLoss"]:
        gap = lost[0]
        raise CorruptRecording(
            f"stream {gap.stream_id}, epoch {gap.epoch}: frames {gap.first_seq} to {gap.last_seq} were "
            f"removed "
            "by retention before they were read. To go on without them: option failOnDataLoss=false "
            "(includeGaps=true makes rows of them)",
            path=options.path,
        )
    return [LostRange(tuple(lost))] if options["includeGaps"] else []


def read_range(what: Any, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    arrow = arrow_schema(schema)
    if isinstance(what, LostRange):
        yield gap_batch(what.gaps, arrow)
    elif isinstance(what, FrameRange):
        terms = ScanOptions(
            path=options.path,
            payload=options.payload if "payload" in arrow.names else "none",
            max_batch_bytes=options["maxBatchBytes"],
            include_gaps=options["includeGaps"],
            fail_on_loss=options["failOnDataLoss"],
            time=times(options) if options.use == "read" else (None, None),
        )
        yield from RangeScan(what, terms, arrow).batches()
    tune_worker()


T = TypeVar("T")
_LEASE_NS = 600_000_000_000


class FrameStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Frames in the order of their epochs and sequences; offsets name the first frame not read yet."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        # A wrong path is said at once; one that goes away later is waited for.
        check_root(Path(options.path))
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._hold: RenewingLease | None = None
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    # --- places

    def initialOffset(self) -> dict[str, Any]:
        found = self._planned(self._initial)
        self._keep(found)
        return offsets.to_json(found)

    def _initial(self, planner: Planner) -> Offsets:
        if (since := self._options["startingTimestamp"]) is not None:
            return planner.at_time(since)
        asked = self._options["startingOffsets"]
        earliest, latest = planner.earliest(), planner.latest()
        if isinstance(asked, str):
            return earliest if asked == "earliest" else latest
        named = {"earliest": earliest, "latest": latest}
        given = {
            stream: named[place].get(stream, START) if isinstance(place, str) else place
            for stream, place in asked.items()
        }
        return {**earliest, **given}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = offsets.from_json(start)
        if self._hold is None:
            self._keep(begin)
        found = self._planned(lambda planner: self._end_of_batch(planner, begin, limit))
        return offsets.to_json(found)

    def _end_of_batch(self, planner: Planner, begin: Offsets, limit: ReadLimit) -> Offsets:
        latest = planner.latest()
        if self._target is not None:
            # What comes later, a new stream for instance, is for the next run.
            latest = offsets.limit_to(latest, self._target)
        end = offsets.latest_of(begin, latest)
        if isinstance(limit, ReadAllAvailable):
            return end
        options = self._options
        return planner.limited(
            begin, end, max_rows=options["maxRowsPerTrigger"], max_bytes=options["maxBytesPerTrigger"]
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options["maxRowsPerTrigger"], self._options["maxBytesPerTrigger"]
        # Spark has no limit of two kinds; `latestOffset` looks at the options, so this only says "some".
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planned(lambda planner: planner.latest())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What could be read if there were no limits: Spark's progress shows it beside what was read."""
        return offsets.to_json(self._planned(lambda planner: planner.latest()))

    # --- tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = offsets.from_json(start), offsets.from_json(end)
        if self._hold is None:
            self._keep(begin)
        planned = self._planned(lambda planner: self._tasks(planner, begin, stop), final=(CorruptRecording,))
        return [InputPartition(one) for one in planned]

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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition.value, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._keep(offsets.from_json(end))

    def stop(self) -> None:
        if self._hold is not None:
            self._hold.release()
        if self._planner is not None:
            self._planner.close()

    # --- the process beside the driver

    def _planned(self, work: Callable[[Planner], T], *, final: tuple[type[Exception], ...] = ()) -> T:
        """What comes of a fresh look at the recording, however often the disk has to be asked."""

        def look() -> T:
            if self._planner is None:
                self._planner = Planner(self._options.path, self._options["streams"])
            else:
                self._planner.refresh()
            return work(self._planner)

        return retry(look, timeout_ns=self._options["retryTimeout"], pause=time.sleep, final=final)

    def _keep(self, places: Offsets) -> None:
        ttl_ns = self._options["leaseTimeout"] or _LEASE_NS
        if self._hold is None:
            self._hold = RenewingLease(self._options.path, holder="spark stream", ttl_ns=ttl_ns)
        self._hold.keep(places)
