"""`spark.read.format("tensorpool")`: a recording, as it is when the query is planned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..errors import CorruptRecording, NotARecording
from ..recording import Gap
from .blocks import gap_batch
from .columns import arrow_schema, check_schema
from .hold import Hold
from .offsets import START, Offsets
from .options import Options
from .plan import FrameRange, LostRange, Planner
from .retry import retried
from .scan import RangeScan, ScanTerms
from .worker import settle


class FrameReader(DataSourceReader):
    """Plans in the driver, reads in the executors: what is kept here is pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        planned = retried(
            self._plan,
            timeout_ns=self._options["retryTimeout"],
            pause=time.sleep,
            final=(CorruptRecording, NotARecording),
        )
        settle()
        return [InputPartition(one) for one in planned]

    def _plan(self) -> list[FrameRange | LostRange]:
        options = self._options
        planner = Planner(options.path, options["streams"])
        start, end = _places(planner, options)
        if ttl_ns := options["leaseTimeout"]:
            # Nobody is left to renew it: it has to last as long as the query.
            Hold(options.path, holder="spark batch", ttl_ns=ttl_ns).keep(start)
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
        return [*told(lost, options), *ranges]

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


def told(lost: list[Gap], options: Options) -> list[LostRange]:
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
        terms = ScanTerms(
            path=options.path,
            payload=options.payload if "payload" in arrow.names else "none",
            max_batch_bytes=options["maxBatchBytes"],
            include_gaps=options["includeGaps"],
            fail_on_loss=options["failOnDataLoss"],
            time=times(options) if options.use == "read" else (None, None),
        )
        yield from RangeScan(what, terms, arrow).batches()
    settle()
