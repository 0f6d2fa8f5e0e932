"""`spark.readStream.format("tensorpool")`: a recording that grows, micro-batch by micro-batch.

Offsets, planning and leases live in one process beside Spark's driver; `read` runs in executors, on a pickled
copy that has neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..errors import CorruptRecording
from ..recording.layout import check_root
from . import offsets
from .batch_reader import read_range, told
from .columns import check_schema
from .hold import Hold
from .offsets import START, Offsets
from .options import Options
from .plan import FrameRange, LostRange, Planner
from .retry import retried

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
        self._hold: Hold | None = None
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
            latest = offsets.bounded(latest, self._target)
        end = offsets.furthest(begin, latest)
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
        return [*told(planner.lost(begin, stop), options), *ranges]

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

        return retried(look, timeout_ns=self._options["retryTimeout"], pause=time.sleep, final=final)

    def _keep(self, places: Offsets) -> None:
        ttl_ns = self._options["leaseTimeout"] or _LEASE_NS
        if self._hold is None:
            self._hold = Hold(self._options.path, holder="spark stream", ttl_ns=ttl_ns)
        self._hold.keep(places)
