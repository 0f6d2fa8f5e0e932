"""Adapters between the engine's functions and Spark's DataFrames: schemas, groups of rows, gaps, metadata.

None of them reads the schema of a DataFrame, which Spark does not allow while a pipeline is defined.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...recording import Recording
from ..metadata import AnchorReader, RecordingTables, StreamMetadata, merge_metadata, messages_of
from ..schemas import Table
from ..sequence_runs import SequenceRuns, runs_of
from ..validation import GapTimes, MissingRun, edges_of, missing_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ALL_TIME = (-(1 << 62), 1 << 62)


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema."""
    return from_arrow_schema(schema)


def declared(df: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of the schema, in its order, for `mapInArrow` and `applyInArrow`.

    On Spark Connect both ask the server for the columns, which is not allowed while a pipeline is defined. A
    DataFrame with a cached schema does not ask.
    """
    chosen = df.select(*schema.names)
    if "_cached_schema" in vars(chosen):
        vars(chosen)["_cached_schema"] = spark_schema(schema)
    return chosen


def names(table: Table) -> list[str]:
    """The names of all columns, as a reader of the engine's table sees them."""
    return list(table.whole.names)


def date_of(column: str) -> str:
    """An expression for the UTC day of nanoseconds, in any time zone of the session."""
    return f"date_from_unix_date(cast({column} div 86400000000000 as int))"


def in_schema(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of a schema, in its order; null where the rows have no such column."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    present = set(table.schema.names)
    arrays = []
    for field in schema:
        if field.name in present:
            column = table[field.name].combine_chunks().cast(field.type)
            arrays.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        else:
            arrays.append(pa.nulls(len(table), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- groups


def groups(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of each key. Batches are sorted by the integer columns `keys`."""
    held: list[pa.RecordBatch] = []
    last: tuple[int, ...] | None = None
    for batch in batches:
        if not len(batch):
            continue
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in keys]
        changes = np.zeros(len(batch) - 1, np.bool_)
        for column in columns:
            changes |= np.diff(column) != 0
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(batch)]
        for start, stop in itertools.pairwise(edges):
            key = tuple(int(column[start]) for column in columns)
            if held and key != last:
                yield pa.Table.from_batches(held)
                held = []
            held.append(batch.slice(start, stop - start))
            last = key
    if held:
        yield pa.Table.from_batches(held)


# --- metadata and anchors


def metadata_rows(root: str, wanted: tuple[int, ...], schema: pa.Schema) -> pa.RecordBatch:
    """The table `metadata` of a recording, with the path of the recording."""
    with Recording(root) as recording:
        rows = recording.table("metadata").combine_chunks()
    if wanted:
        rows = rows.filter(pa.array(np.isin(rows["stream_id"].to_numpy(), wanted)))
    rows = rows.append_column("recording", pa.repeat(root, len(rows)))
    columns = [rows[field.name].combine_chunks().cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=1)
def metadata_of(roots: tuple[str, ...]) -> StreamMetadata:
    """The metadata of each stream by version, of all recordings. Cached for the next batch of a task."""
    merged: StreamMetadata = {}
    for root in roots:
        with Recording(root) as recording:
            merged = merge_metadata(merged, messages_of(recording.table("metadata")))
    return merged


@lru_cache(maxsize=1)
def anchors_of(roots: tuple[str, ...]) -> dict[str, list[list[int]]]:
    """All clock anchors of each recording. Cached for the next batch of a task."""
    anchors = {}
    for root in roots:
        tables = RecordingTables(root)
        tables.refresh()
        reader = AnchorReader(tables)
        reader.refresh()
        anchors[root] = reader.between(*_ALL_TIME)
        tables.close()
    return anchors


# --- gaps


GAPS: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("stream_id", "epoch", "seq", "receive_time_ns")),
        ("is_sound", pa.bool_()),
        ("gap_count", pa.int64()),
        ("gap_reason", pa.string()),
        ("recording", pa.string()),
        ("latest_ns", pa.int64()),
    ]
)
"""The columns of gaps and frames in one table. A frame has no `gap_count`."""


def explained(gaps: pa.Table, frames: pa.Table, schema: pa.Schema) -> pa.Table:
    """The missing sequences of one epoch. `frames` are its frames; those with `is_sound` are in silver."""
    if not len(gaps):
        return schema.empty_table()
    seqs, received = frames["seq"].to_numpy(), frames["receive_time_ns"].to_numpy()
    sound = frames["is_sound"].to_numpy(zero_copy_only=False)
    known = SequenceRuns(runs_of(seqs[sound]), max_runs=1 << 30)
    stream, epoch = (gaps[name][0].as_py() for name in ("stream_id", "epoch"))
    times = GapTimes(edges_of(epoch, seqs[~sound], received[~sound]))
    rows: list[MissingRun] = []
    for gap in sorted(gaps.to_pylist(), key=lambda item: (item["seq"], item["recording"])):
        for first, last in known.missing(gap["seq"], gap["gap_count"]):
            at = times.between(first, last)
            received_ns = gap["latest_ns"] if at is None else at
            rows.append(MissingRun(stream, epoch, first, last - first + 1, gap["gap_reason"], received_ns))
            known.add([(first, last)])
    return missing_table(rows).select(schema.names).cast(schema)
