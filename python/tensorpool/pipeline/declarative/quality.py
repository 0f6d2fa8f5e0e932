"""`gold/quality` of everything at once, as a function from DataFrames to a DataFrame."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from ..definition import PipelineSettings
from ..lineage import trace_depths
from ..metadata import parents_of
from ..quality import EVENTS, FRAME, GAP, REJECT, TRACE
from ..quality_task import CARRY, measure_files
from .adapters import rows_of, staged
from .columns import declared, spark_schema
from .groups import groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOGETHER: Final = 256
"""Intervals of a stream that one call measures."""
_TARGET_BYTES: Final = 256 << 20


def quality(
    frames: DataFrame, gaps: DataFrame, rejects: DataFrame, metadata: DataFrame, settings: PipelineSettings
) -> DataFrame:
    from pyspark.sql import functions as of

    asked = settings.quality
    events = _events(frames, gaps, rejects).unionByName(traces(frames, metadata))
    # An interval is open or not by how far its stream is in all.
    latest = events.groupBy("stream_id").agg(of.max("at_ns").alias("latest_ns"))
    cut = f"(at_ns div {asked.interval_ns}) div {_TOGETHER}"
    placed = events.join(latest, "stream_id").selectExpr("*", f"{cut} as part")
    table = schemas.quality()
    schema = table.whole
    key = ["stream_id", "part"]
    interval_ns, lateness_ns = asked.interval_ns, asked.lateness_ns

    def measured(rows: pa.Table) -> list[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as directory:
            events = rows.select(EVENTS.names).cast(EVENTS)
            ((_, path),) = staged([events], CARRY, str(Path(directory) / "in"))
            stream, latest_ns = rows["stream_id"][0].as_py(), rows["latest_ns"][0].as_py()
            item = {
                "frames": [], "gaps": [], "rejects": [], "traces": None, "carry": [path], "group": 0,
                "groups": 1, "places": {str(stream): [latest_ns, None]}, "interval_ns": interval_ns,
                "lateness_ns": lateness_ns, "staging": str(Path(directory) / "out"),
                "target_bytes": _TARGET_BYTES,
            }  # fmt: skip
            found = measure_files(item)
            return [*rows_of([*found["closed"], *found["open"]], table, schema)]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in groups(batches, key):
            yield from measured(rows)

    known = pa.schema([*EVENTS, ("latest_ns", pa.int64()), ("part", pa.int64())])
    ordered = placed.repartition(*key).sortWithinPartitions(*key)
    return declared(ordered, known).mapInArrow(run, spark_schema(schema))


def _events(frames: DataFrame, gaps: DataFrame, rejects: DataFrame) -> DataFrame:
    none, word = "cast(null as bigint)", "cast(null as string)"
    at = "receive_time_ns as at_ns"
    parts = [
        frames.selectExpr(
            "stream_id", f"cast({FRAME} as tinyint) as kind", at, "epoch", "seq", "payload_bytes as amount",
            "latency_ns", f"{word} as reason",
        ),
        gaps.selectExpr(
            "stream_id", f"cast({GAP} as tinyint) as kind", at, "epoch", "first_seq as seq",
            "count as amount", f"{none} as latency_ns", "reason",
        ),
        rejects.selectExpr(
            "stream_id", f"cast({REJECT} as tinyint) as kind", at, "epoch", "seq",
            "cast(1 as bigint) as amount", f"{none} as latency_ns", "reason",
        ),
    ]  # fmt: skip
    return reduce(lambda left, right: left.unionByName(right), parts)


def traces(frames: DataFrame, metadata: DataFrame) -> DataFrame:
    """How deep each traced frame is. Traces cross streams, so one task looks at all of them."""
    from pyspark.sql import functions as of

    columns = ["stream_id", "receive_time_ns", "epoch", "seq", "trace_id", "timestamp_ns"]
    nothing = [of.lit(None).cast("bigint").alias(name) for name in columns]
    links = metadata.where("kind = 'TraceLinkSet'").select(*nothing, "kind", "message")
    traced = frames.where("trace_id is not null").select(
        *columns, of.lit(None).cast("string").alias("kind"), of.lit(None).cast("binary").alias("message")
    )
    schema = EVENTS

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [*batches]
        if found:
            yield from _depths(pa.Table.from_batches(found)).to_batches()

    given = [*((name, pa.int64()) for name in columns), ("kind", pa.string()), ("message", pa.binary())]
    both = declared(traced.unionByName(links).coalesce(1), pa.schema(given))
    return both.mapInArrow(run, spark_schema(schema))


def _depths(rows: pa.Table) -> pa.Table:
    is_link = pc.is_valid(rows["kind"])
    parents = parents_of(rows.filter(is_link).select(["kind", "message"]).to_pylist())
    own = rows.filter(pc.invert(is_link))
    keys = [own[name].to_pylist() for name in ("trace_id", "stream_id", "timestamp_ns")]
    found, _ = trace_depths(zip(*keys, strict=True), parents, {})
    columns: dict[str, Any] = {
        "stream_id": own["stream_id"],
        "kind": pa.repeat(pa.scalar(TRACE, pa.int8()), len(own)),
        "at_ns": own["receive_time_ns"],
        "epoch": own["epoch"],
        "seq": own["seq"],
        "amount": pa.array(found, pa.int64()),
        "latency_ns": pa.nulls(len(own), pa.int64()),
        "reason": pa.nulls(len(own), pa.string()),
    }
    return pa.table(columns).cast(EVENTS)
