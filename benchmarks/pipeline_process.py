"""The Spark process whose ingest is timed: `python -m benchmarks.pipeline_process PLAN`."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.pipeline import definition, layout, run

from .spark import FRAME_BYTES
from .spark_process import session

STREAMS = (10_000, 10_001)
_FILE_BYTES = 64 << 20


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
    finally:
        spark.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
