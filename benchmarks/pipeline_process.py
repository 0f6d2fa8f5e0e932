"""The Spark process whose ingest is timed: `python -m benchmarks.pipeline_process PLAN`."""

from __future__ import annotations

import json
import secrets
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.pipeline import definition, layout, marker, run
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.tasks import SparkTasks

from .spark import FRAME_BYTES
from .spark_process import session

STREAMS = (10_000, 10_001)
_FILE_BYTES = 64 << 20
SMALL_BATCHES, SMALL_ROWS = 12, 200


def write_recording(root: Path, frames: int) -> None:
    """Writes a recording of two streams."""
    rng = np.random.default_rng(5)
    limits = recording.WriterLimits(segment_bytes=_FILE_BYTES)
    with recording.RecordingWriter(root, limits=limits) as writer:
        for number in range(frames):
            array = rng.integers(0, 256, (640, 1024), np.uint8)
            stream = STREAMS[number % len(STREAMS)]
            writer.append(array, stream_id=stream, epoch=1, seq=number // len(STREAMS))


def write_parquet(spark: Any, root: Path, parquet: Path, frames: int) -> Any:
    """Writes the recording's rows with their payloads as uncompressed Parquet; returns the schema."""
    rows = spark.read.format("tensorpool").options(path=str(root), payload="inline").load()
    files = -(-frames * FRAME_BYTES // _FILE_BYTES)
    rows.repartition(files, "seq").write.option("compression", "none").parquet(str(parquet))
    return rows.schema


def ingest(spark: Any, root: Path, directory: Path, payload: str) -> int:
    """Takes the recording into the tables bronze and silver, checksums included; returns the rows."""
    out = directory / f"out-{secrets.token_hex(4)}"
    table = {"recordings": [str(root)], "out": str(out), "payload": payload}
    off: dict[str, Any] = {"quality": {"enabled": False}, "statistics": {"enabled": False}}
    settings = definition.parse({"pipeline": {**table, **off}})
    rows = int(run(settings, spark=spark).stages[layout.BRONZE].totals.frames)
    stored = DeltaTable(f"{out}/{layout.BRONZE_FRAMES}").count()
    assert stored == rows, f"{stored} rows of {rows} are in the table"
    shutil.rmtree(out)
    return rows


def parquet_to_parquet(spark: Any, source: Path, schema: Any, directory: Path) -> int:
    """Runs a streaming query with Spark's Parquet source and sink; returns the rows."""
    out = directory / f"parquet-{secrets.token_hex(4)}"
    query = spark.readStream.schema(schema).parquet(str(source)).writeStream.format("parquet")
    query = query.option("compression", "none").option("checkpointLocation", f"{out}.checkpoint")
    query.trigger(availableNow=True).start(str(out)).awaitTermination()
    rows = [int(pq.ParquetFile(path).metadata.num_rows) for path in out.glob("*.parquet")]
    shutil.rmtree(out)
    return sum(rows)


def small_batches(spark: Any, directory: Path) -> tuple[float, float]:
    """Median seconds of a micro-batch of 200 rows: of the whole pipeline, and of Parquet → Parquet."""
    root, out, parquet = directory / "small", directory / "small-tables", directory / "small-parquet"
    parquet.mkdir()
    schema = pa.schema([("seq", pa.int64()), ("payload", pa.binary())])
    with recording.RecordingWriter(root) as writer:
        for first in range(0, SMALL_BATCHES * SMALL_ROWS, SMALL_ROWS):
            arrays = [np.full((64, 64), seq % 256, np.uint8) for seq in range(first, first + SMALL_ROWS)]
            for seq, array in enumerate(arrays, first):
                writer.append(array, stream_id=STREAMS[0], epoch=1, seq=seq)
            rows = [{"seq": seq, "payload": array.tobytes()} for seq, array in enumerate(arrays, first)]
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), parquet / f"{first:06}.parquet")
    table = {"recordings": [str(root)], "out": str(out), "max_rows": SMALL_ROWS}
    settings = definition.parse({"pipeline": table})
    engine = Engine(settings, pipeline_id=marker.begin(settings, tables_of(settings)).pipeline_id)
    engine.recover()
    ours, tasks = [], SparkTasks(spark)
    while True:
        started = time.perf_counter()
        if not engine.run_batch(tasks):
            break
        ours.append(time.perf_counter() - started)
    engine.close_sources()
    query = spark.readStream.schema("seq bigint, payload binary").option("maxFilesPerTrigger", 1)
    query = query.parquet(str(parquet)).writeStream.format("parquet")
    query = query.option("checkpointLocation", str(directory / "small-checkpoint"))
    started_query = query.trigger(availableNow=True).start(str(directory / "small-copy"))
    started_query.awaitTermination()
    theirs = [progress["durationMs"]["triggerExecution"] / 1e3 for progress in started_query.recentProgress]
    assert len(ours) == len(theirs) == SMALL_BATCHES, f"{len(ours)} and {len(theirs)} micro-batches"
    # The first ones compile queries.
    return statistics.median(ours[2:]), statistics.median(theirs[2:])


def timed(work: dict[str, Callable[[], int]], frames: int, rounds: int) -> dict[str, float]:
    """Shortest time of each function over some rounds; a first round warms up."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, ingest_once in work.items():
            started = time.perf_counter()
            rows = ingest_once()
            elapsed = time.perf_counter() - started
            assert rows == frames, f"{name}: {rows} rows instead of {frames}"
            if number:
                best[name] = min(elapsed, best.get(name, elapsed))
    return best


def main() -> None:
    """Runs the plan of the command line."""
    plan = json.loads(sys.argv[1])
    directory, frames = Path(plan["directory"]), plan["frames"]
    write_recording(directory / "recording", frames)
    spark = session(directory)
    try:
        schema = write_parquet(spark, directory / "recording", directory / "parquet", frames)
        work: dict[str, Callable[[], int]] = {
            "inline_s": lambda: ingest(spark, directory / "recording", directory, "inline"),
            "reference_s": lambda: ingest(spark, directory / "recording", directory, "ref"),
            "parquet_s": lambda: parquet_to_parquet(spark, directory / "parquet", schema, directory),
        }
        figures = {"bytes": frames * FRAME_BYTES, **timed(work, frames, plan["rounds"])}
        figures["batch_s"], figures["parquet_batch_s"] = small_batches(spark, directory)
    finally:
        spark.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
