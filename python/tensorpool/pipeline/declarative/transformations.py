"""The DataFrames of bronze, silver and gold, for Spark's Declarative Pipelines.

The functions run the engine's tasks over all rows instead of batch by batch. None of them reads the schema of
a DataFrame, which Spark does not allow while a pipeline is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from ..alignment import PENDING, AlignmentState, align_frames
from ..definition import AlignmentSettings, FunctionSettings, PipelineSettings
from ..frame_task import FRAMES
from ..functions import TableFunction, table_function
from ..functions import statistics as statistics_function
from ..metadata import LINKS, parents_of, trace_depths, traced_frames
from ..quality import EVENTS, FRAME, GAP, REJECT, StreamPosition, measure, trace_events
from ..validation import FrameValidator, StreamContext, rules_for
from .adapters import (
    GAPS,
    anchors_of,
    date_of,
    declared,
    explained,
    groups,
    in_schema,
    metadata_of,
    metadata_rows,
    names,
    spark_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Sequences that one task validates. All rows of a sequence are in one task, which recognises duplicates.
_TOGETHER: Final = 4_096
# A task keeps the runs of its own part only, and only until its end: no limit is needed.
_ALL_RUNS: Final = 1 << 30
_INTERVALS: Final = 256
"""Number of intervals of a stream that one call measures."""


def source(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    """The frames and gaps of all recordings, as one streaming DataFrame."""
    from pyspark.sql import functions as of

    def read_recording(root: Any) -> DataFrame:
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

    return reduce(lambda left, right: left.unionByName(right), map(read_recording, settings.recordings))


def bronze_frames(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The rows of `bronze/frames`: every recorded frame, with its day."""
    dated = rows.where("gap_count is null").selectExpr(
        "*",
        f"{date_of('receive_time_ns')} as date",
        "timestamp_micros(receive_time_ns div 1000) as time",
    )
    return dated.select(*names(schemas.bronze_frames(settings.payload)))


def bronze_gaps(rows: DataFrame) -> DataFrame:
    """The rows of `bronze/gaps`: runs of sequences that are missing in a recording."""
    return rows.where("gap_count is not null").select(*names(schemas.bronze_gaps()))


def bronze_metadata(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    """The rows of `bronze/metadata`. Executors read the recordings when Spark computes the table."""
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
    """Every frame with its verdict; a rejected frame has a reason and a detail."""
    bronze = schemas.bronze_frames(settings.payload)
    good, bad = schemas.silver_frames(settings.payload), schemas.silver_rejects(settings.payload)
    schema = pa.schema([*good.whole, bad.schema.field("reason"), bad.schema.field("detail")])
    roots = tuple(str(root) for root in settings.recordings)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from ...spark.tensors.rows import Segments

        segments, validators = Segments(), dict[int, FrameValidator]()
        for batch in batches:
            for stream in batch.column("stream_id").unique().to_pylist():
                if stream not in validators:
                    context = StreamContext(
                        rules_for(stream, settings.rules), {}, metadata_of(roots).get(stream, {})
                    )
                    validators[stream] = FrameValidator(
                        context,
                        segments,
                        anchors_of(roots),
                        verify=settings.silver.verify,
                        max_runs=_ALL_RUNS,
                    )
                own = batch.filter(pc.equal(batch.column("stream_id"), stream))
                for root in roots:
                    rows = own.filter(pc.equal(own.column("recording"), root))
                    if len(rows):
                        for part in validators[stream].check(rows):
                            yield in_schema(part, schema)

    # If two recordings contain a frame, that of the earlier one is accepted.
    order = "array_position(array({}), recording) as _order".format(", ".join(map(_quoted, roots)))
    together = frames.selectExpr("*", f"seq div {_TOGETHER} as _together", order)
    ordered = together.repartition("stream_id", "epoch", "_together").sortWithinPartitions(
        "stream_id", "epoch", "seq", "_order"
    )
    return declared(ordered, bronze.whole).mapInArrow(run, spark_schema(schema))


def silver_frames(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The rows of `silver/frames`: the accepted frames of `validated`."""
    return rows.where("reason is null").select(*names(schemas.silver_frames(settings.payload)))


def silver_rejects(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The rows of `silver/rejects`: the rejected frames of `validated`."""
    return rows.where("reason is not null").select(*names(schemas.silver_rejects(settings.payload)))


def silver_gaps(gaps: DataFrame, frames: DataFrame, accepted: DataFrame) -> DataFrame:
    """The rows of `silver/gaps`: sequences that no recording contains.

    `frames` are those of bronze, which date the gaps; `accepted` are the frames of silver.
    """
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
    """The columns of `GAPS`; `missing` names the columns that are null, with their types."""
    reasons = {"gap_reason": "string"} if "gap_count" in missing else {}
    nulls = {**missing, **reasons}
    return rows.selectExpr(
        *(f"cast(null as {nulls[name]}) as {name}" if name in nulls else name for name in GAPS.names)
    )


def aligned(frames: DataFrame, alignment: AlignmentSettings, payload: schemas.Payload) -> DataFrame:
    """The rows of `silver/aligned/<name>`: sets of frames."""
    return _alignment(frames, alignment, payload, schemas.aligned(alignment.name))


def unaligned(frames: DataFrame, alignment: AlignmentSettings, payload: schemas.Payload) -> DataFrame:
    """The rows of `silver/unaligned/<name>`: frames without a set."""
    return _alignment(frames, alignment, payload, schemas.unaligned(alignment.name))


def _alignment(
    frames: DataFrame, alignment: AlignmentSettings, payload: schemas.Payload, wanted: schemas.Table
) -> DataFrame:
    """The rows of one table of an alignment. One task reads all frames, to find the nearest of them."""
    silver = schemas.silver_frames(payload)
    known = set(silver.whole.names)
    bare = pa.schema([field for field in FRAMES if field.name in known])
    chosen = declared(_of_streams(frames, alignment.streams).coalesce(1), bare)
    schema = wanted.whole

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [in_schema(batch, FRAMES) for batch in batches]
        frames = pa.Table.from_batches(rows, FRAMES)
        found = align_frames(alignment, frames, PENDING.empty_table(), AlignmentState(), closing=True)
        part = found.aligned if wanted.name.startswith("silver/aligned/") else found.unaligned
        if part is not None:
            yield in_schema(part, schema)

    return chosen.mapInArrow(run, spark_schema(schema))


# --- gold


def statistics(frames: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The rows of `gold/statistics`."""
    asked = settings.statistics

    def made() -> TableFunction:
        return statistics_function(asked.streams, asked.every)

    return _tensors(frames, settings, schemas.statistics(), asked.streams, made)


def function(
    frames: DataFrame, settings: PipelineSettings, function_settings: FunctionSettings, place: str
) -> DataFrame:
    """The rows of `gold/<function>`. `place` is a directory that may contain the function's module."""
    if function_settings.columns is None:
        raise ValueError(
            f"function {function_settings.name} returns arrays, which declarative pipelines have no table "
            "for: use `tensorpool pipeline run`, or give it columns"
        )
    table = schemas.function(function_settings.name, schemas.parse_columns(function_settings.columns))

    def made() -> TableFunction:
        return table_function(function_settings, None, place)

    return _tensors(frames, settings, table, function_settings.streams, made)


def _tensors(
    frames: DataFrame,
    settings: PipelineSettings,
    table: schemas.Table,
    streams: tuple[int, ...],
    made: Callable[[], TableFunction],
) -> DataFrame:
    silver = schemas.silver_frames(settings.payload)
    schema = table.whole

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from ...spark.tensors.rows import Segments

        segments, function = Segments(), made()
        for batch in batches:
            rows = function.rows(batch, segments)
            if rows is not None:
                yield in_schema(rows, schema)

    return declared(_of_streams(frames, streams), silver.whole).mapInArrow(run, spark_schema(schema))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _of_streams(frames: DataFrame, streams: tuple[int, ...]) -> DataFrame:
    return frames.where(f"stream_id in ({', '.join(map(str, streams))})") if streams else frames


# --- quality


def quality(
    frames: DataFrame, gaps: DataFrame, rejects: DataFrame, metadata: DataFrame, settings: PipelineSettings
) -> DataFrame:
    """The rows of `gold/quality`."""
    from pyspark.sql import functions as of

    asked = settings.quality
    events = _events(frames, gaps, rejects).unionByName(traces(frames, metadata))
    # The latest receive time of a stream decides which of its intervals are open.
    latest = events.groupBy("stream_id").agg(of.max("at_ns").alias("latest_ns"))
    cut = f"(at_ns div {asked.interval_ns}) div {_INTERVALS}"
    placed = events.join(latest, "stream_id").selectExpr("*", f"{cut} as part")
    schema = schemas.quality().whole
    key = ["stream_id", "part"]
    interval_ns, lateness_ns = asked.interval_ns, asked.lateness_ns

    def measured(rows: pa.Table) -> Iterator[pa.RecordBatch]:
        events = rows.select(EVENTS.names).cast(EVENTS)
        stream, latest_ns = rows["stream_id"][0].as_py(), rows["latest_ns"][0].as_py()
        found = measure(events, {stream: StreamPosition(latest_ns)}, interval_ns, lateness_ns)
        for part in (found.closed, found.still_open):
            if part is not None:
                yield in_schema(part, schema)

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
    """The lineage depths of traced frames. One task computes them: a trace may cross several streams."""
    from pyspark.sql import functions as of

    columns = ["stream_id", "receive_time_ns", "epoch", "seq", "trace_id", "timestamp_ns"]
    nothing = [of.lit(None).cast("bigint").alias(name) for name in columns]
    links = metadata.where(f"kind = '{LINKS}'").select(*nothing, "kind", "message")
    traced = frames.where("trace_id is not null").select(
        *columns, of.lit(None).cast("string").alias("kind"), of.lit(None).cast("binary").alias("message")
    )
    schema = EVENTS

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        all_batches = [*batches]
        if all_batches:
            yield from _depths(pa.Table.from_batches(all_batches)).to_batches()

    given = [*((name, pa.int64()) for name in columns), ("kind", pa.string()), ("message", pa.binary())]
    both = declared(traced.unionByName(links).coalesce(1), pa.schema(given))
    return both.mapInArrow(run, spark_schema(schema))


def _depths(rows: pa.Table) -> pa.Table:
    is_link = pc.is_valid(rows["kind"])
    parents = parents_of(rows.filter(is_link)["message"].to_pylist())
    own = rows.filter(pc.invert(is_link))
    depths, _ = trace_depths(traced_frames(own), parents, {})
    return trace_events(own, depths)
