"""Bronze to gold as functions from DataFrames to DataFrames, for Spark's Declarative Pipelines.

They are what the engine does, over everything there is instead of batch by batch: the work itself is that of
the engine's tasks. None of them looks at a DataFrame's schema, which Spark does not allow while it puts a
pipeline together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from ..align_task import align_files
from ..columns import parse_columns
from ..definition import AlignmentSettings, FunctionSettings, PipelineSettings
from ..function_task import statistics_of, table_work
from ..silver_task import validate_files
from ..validation import rules_for
from .adapters import by_file, by_stream
from .columns import date_of, declared, names, spark_schema
from .gaps import GAPS, explained
from .groups import groups
from .metadata import anchors_of, metadata_of, metadata_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Rows of one sequence are validated together, so that a duplicate is known; so many neighbours with them.
_TOGETHER: Final = 4_096
# A task remembers its own part only, and forgets it at its end.
_ALL_RUNS: Final = 1 << 30
_TARGET_BYTES: Final = 256 << 20


def source(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    """Every recording as one stream of rows, frames and gaps."""
    from pyspark.sql import functions as of

    def one(root: Any) -> DataFrame:
        reader = (
            spark.readStream.format("tensorpool")
            .option("payload", settings.payload)
            .option("includeGaps", "true")
            .option("failOnDataLoss", str(settings.fail_on_loss).lower())
            .option("maxRowsPerTrigger", settings.max_rows)
            .option("maxBytesPerTrigger", settings.max_bytes)
        )
        if settings.streams:
            reader = reader.option("streams", ",".join(map(str, settings.streams)))
        return reader.load(str(root)).withColumn("recording", of.lit(str(root)))

    return reduce(lambda left, right: left.unionByName(right), map(one, settings.recordings))


def bronze_frames(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    dated = rows.where("gap_count is null").selectExpr("*", f"{date_of('receive_time_ns')} as date")
    return dated.select(*names(schemas.bronze_frames(settings.payload)))


def bronze_gaps(rows: DataFrame) -> DataFrame:
    return rows.where("gap_count is not null").select(*names(schemas.bronze_gaps()))


def bronze_metadata(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    """What was said of the streams: read where the recordings are, when the table is made."""
    table = schemas.bronze_metadata()
    roots, wanted = [str(root) for root in settings.recordings], settings.streams

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield metadata_rows(roots[number], wanted, table.whole)

    numbers = spark.range(0, len(roots), 1, len(roots))
    return declared(numbers, pa.schema([("id", pa.int64())])).mapInArrow(read, spark_schema(table.whole))


# --- silver


def validated(frames: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Every frame once more, with the reason and the detail if it is turned away."""
    bronze = schemas.bronze_frames(settings.payload)
    good, bad = schemas.silver_frames(settings.payload), schemas.silver_rejects(settings.payload)
    schema = pa.schema([*good.whole, bad.schema.field("reason"), bad.schema.field("detail")])
    roots = tuple(str(root) for root in settings.recordings)

    def item(stream: int, paths: list[str], staging: str) -> dict[str, Any]:
        return {
            "stream_id": stream, "files": paths, "staging": staging, "target_bytes": _TARGET_BYTES,
            "payload": settings.payload, "verify": settings.silver.verify, "max_runs": _ALL_RUNS, "seen": {},
            "rules": [rule.to_json() for rule in rules_for(stream, settings.rules)],
            "notes": metadata_of(roots).get(str(stream), {}), "anchors": anchors_of(roots),
        }  # fmt: skip

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return by_stream(batches, roots, bronze, validate_files, item, (good, bad), schema)

    together = frames.selectExpr("*", f"seq div {_TOGETHER} as _together")
    ordered = together.repartition("stream_id", "epoch", "_together").sortWithinPartitions(
        "stream_id", "epoch", "seq"
    )
    return declared(ordered, bronze.whole).mapInArrow(run, spark_schema(schema))


def silver_frames(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    return rows.where("reason is null").select(*names(schemas.silver_frames(settings.payload)))


def silver_rejects(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    return rows.where("reason is not null").select(*names(schemas.silver_rejects(settings.payload)))


def silver_gaps(gaps: DataFrame, frames: DataFrame, accepted: DataFrame) -> DataFrame:
    """What no recording has. The time is that of the frames around it, of bronze; `accepted` are silver's."""
    from pyspark.sql import functions as of

    key = ["stream_id", "epoch"]
    last = frames.agg(of.max("receive_time_ns").alias("latest_ns"))
    schema = schemas.silver_gaps().whole
    parts = [
        _with(gaps.crossJoin(last), receive_time_ns="bigint", is_sound="boolean"),
        _with(frames.selectExpr("*", "false as is_sound"), gap_count="bigint", latest_ns="bigint"),
        _with(accepted.selectExpr("*", "true as is_sound"), gap_count="bigint", latest_ns="bigint"),
    ]
    both = reduce(lambda left, right: left.unionByName(right), parts)
    ordered = both.repartition(*key).sortWithinPartitions(*key)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in groups(batches, key):
            is_gap = pc.is_valid(rows["gap_count"])
            yield from explained(rows.filter(is_gap), rows.filter(pc.invert(is_gap)), schema).to_batches()

    return declared(ordered, GAPS).mapInArrow(run, spark_schema(schema))


def _with(rows: DataFrame, **missing: str) -> DataFrame:
    """The columns of `GAPS`; those that are not there are null."""
    reasons = {"gap_reason": "string"} if "gap_count" in missing else {}
    nulls = {**missing, **reasons}
    return rows.selectExpr(
        *(f"cast(null as {nulls[name]}) as {name}" if name in nulls else name for name in GAPS.names)
    )


def aligned(frames: DataFrame, one: AlignmentSettings, payload: schemas.Payload) -> DataFrame:
    return _alignment(frames, one, payload, schemas.aligned(one.name))


def unaligned(frames: DataFrame, one: AlignmentSettings, payload: schemas.Payload) -> DataFrame:
    return _alignment(frames, one, payload, schemas.unaligned(one.name))


def _alignment(
    frames: DataFrame, one: AlignmentSettings, payload: schemas.Payload, wanted: schemas.Table
) -> DataFrame:
    """One task sees all frames of the streams: which of two is nearer is known only when both are."""
    from .alone import align_all

    silver = schemas.silver_frames(payload)
    bare = pa.schema([field for field in silver.whole if field.name not in ("payload", "metadata")])
    chosen = declared(_of_streams(frames, one.streams).coalesce(1), bare)
    item = {
        "name": one.name, "streams": list(one.streams), "by": one.by, "tolerance": one.tolerance,
        "wait_ns": one.wait_ns, "max_pending": one.max_pending, "closing": True, "carry": [], "state": {},
        "target_bytes": _TARGET_BYTES,
    }  # fmt: skip
    schema = wanted.whole

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return align_all(batches, silver, align_files, item, wanted, schema)

    return chosen.mapInArrow(run, spark_schema(schema))


# --- gold


def statistics(frames: DataFrame, settings: PipelineSettings) -> DataFrame:
    asked = settings.statistics
    return _tensors(frames, settings, schemas.statistics(), statistics_of, asked.streams, asked.every, {})


def function(frames: DataFrame, settings: PipelineSettings, one: FunctionSettings, place: str) -> DataFrame:
    """What a function of the definition gives. `place` is a directory that its module may lie in."""
    if one.columns is None:
        raise ValueError(
            f"function {one.name} gives tensors, which a declarative pipeline has no table for: use "
            "`tensorpool pipeline run`, or give it columns"
        )
    table = schemas.function(one.name, parse_columns(one.columns))
    work = table_work(None, one.name, one.columns)
    more = {"function": one.function, "place": place}
    return _tensors(frames, settings, table, work, one.streams, one.every, more)


def _tensors(
    frames: DataFrame,
    settings: PipelineSettings,
    table: schemas.Table,
    work: Any,
    streams: tuple[int, ...],
    every: int,
    more: dict[str, Any],
) -> DataFrame:
    silver = schemas.silver_frames(settings.payload)
    schema = table.whole

    def item(stream: int, path: str, staging: str) -> dict[str, Any]:
        files = [[stream, path]]
        return {"every": every, "staging": staging, "target_bytes": _TARGET_BYTES, "files": files, **more}

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return by_file(batches, silver, work, item, (table,), schema)

    return declared(_of_streams(frames, streams), silver.whole).mapInArrow(run, spark_schema(schema))


def _of_streams(frames: DataFrame, streams: tuple[int, ...]) -> DataFrame:
    return frames.where(f"stream_id in ({', '.join(map(str, streams))})") if streams else frames
