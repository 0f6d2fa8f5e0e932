"""Bronze: frames and gaps of the recordings, as they are, in tables by stream and day.

Spark's source gives rows by reference. The tasks that get them write the tables' files themselves, frames and
gaps in one pass; payloads, where they are to be inline, go from the mapped segment into the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..recording.arrow_format import TABLES
from ..recording.layout import SEALED, TABLES_DIR
from ..recording.tables import read_batches
from . import schemas
from .definition import PipelineSettings
from .payloads import inlined
from .table_files import StagedFile, TableFileWriter, dates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REF_TASK_BYTES = 4 << 30
"""A task by reference reads no payloads: it may take many."""


def source(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    """What the one streaming query of a pipeline reads: every recording, with its name."""
    from pyspark.sql import functions as of

    from ..spark import register

    register(spark)
    found: DataFrame | None = None
    count = len(settings.recordings)
    for root in settings.recordings:
        reader = (
            spark.readStream.format("tensorpool")
            .option("payload", "ref")
            .option("includeGaps", "true")
            .option("failOnDataLoss", str(settings.fail_on_loss).lower())
            .option("maxRowsPerTrigger", max(settings.max_rows // count, 1))
            .option("maxBytesPerTrigger", max(settings.max_bytes // count, 1))
            .option(
                "maxPartitionBytes",
                settings.target_file_bytes if settings.payload == "inline" else _REF_TASK_BYTES,
            )
        )
        if settings.streams:
            reader = reader.option("streams", ",".join(map(str, settings.streams)))
        one = reader.load(str(root)).withColumn("recording", of.lit(str(root)))
        found = one if found is None else found.unionByName(one)
    assert found is not None, "a definition has at least one recording"
    return found


def write_rows(df: DataFrame, settings: PipelineSettings, staging: str) -> list[StagedFile]:
    """The rows of a micro-batch as staged files."""
    payload, target = settings.payload, settings.target_file_bytes

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = json.dumps([one.to_json() for one in files_of(batches, payload, target, staging)])
        yield pa.RecordBatch.from_pydict({"files": [made]})

    rows = df.mapInArrow(run, "files string").collect()
    return [StagedFile.from_json(one) for row in rows for one in json.loads(row["files"])]


def files_of(
    batches: Iterator[pa.RecordBatch], payload: schemas.Payload, target_bytes: int, staging: str
) -> list[StagedFile]:
    """What one task writes."""
    files = TableFileWriter(staging, target_bytes)
    frames, gaps = schemas.bronze_frames(payload), schemas.bronze_gaps()
    for batch in batches:
        is_gap = pc.is_valid(batch["gap_count"])
        if batch["gap_count"].null_count < len(batch):
            files.add(gaps, batch.filter(is_gap))
        rows = batch.filter(pc.invert(is_gap))
        if not len(rows):
            continue
        dated = rows.append_column("date", dates(rows["receive_time_ns"].to_numpy()))
        if payload == "ref":
            files.add(frames, dated)
            continue
        for part in inlined(dated, target_bytes):
            files.add(frames, part)
    return files.close()


def write_metadata(
    settings: PipelineSettings, state: dict[str, Any], staging: str
) -> tuple[list[StagedFile], dict[str, Any]]:
    """What was said of the streams since the places in `state`, and the places where it ends now."""
    files = TableFileWriter(staging, settings.target_file_bytes)
    table = schemas.bronze_metadata()
    places = dict(state)
    names = TABLES["metadata"].names
    wanted = np.array(settings.streams, np.int64)
    for root in settings.recordings:
        directory = Path(root) / TABLES_DIR / "metadata"
        for path in sorted(directory.glob(f"*{SEALED}")) if directory.is_dir() else ():
            batches, places[str(path)] = read_batches(path, places.get(str(path), 0))
            for batch in batches:
                if set(names) <= set(batch.schema.names):
                    rows = batch.select(names).append_column("recording", pa.repeat(str(root), len(batch)))
                    if len(wanted):
                        rows = rows.filter(pa.array(np.isin(rows["stream_id"].to_numpy(), wanted)))
                    files.add(table, rows)
    return files.close(), places
