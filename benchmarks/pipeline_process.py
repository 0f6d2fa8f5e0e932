"""The Spark whose ingest is timed: `python -m benchmarks.pipeline_process PLAN`, JSON on its last line."""

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

from tensorpool import recording
from tensorpool.pipeline import bronze, definition, layout, schemas
from tensorpool.pipeline.commit import StageLog
from tensorpool.pipeline.layout import Layout

from .spark import FRAME_BYTES
from .spark_process import session

STREAMS = (10_000, 10_001)
_FILE_BYTES = 64 << 20


def write_recording(root: Path, frames: int) -> None:
    rng = np.random.default_rng(5)
    limits = recording.WriterLimits(segment_bytes=_FILE_BYTES)
    with recording.RecordingWriter(root, limits=limits) as writer:
        for number in range(frames):
            array = rng.integers(0, 256, (640, 1024), np.uint8)
            stream = STREAMS[number % len(STREAMS)]
            writer.append(array, stream_id=stream, epoch=1, seq=number // len(STREAMS))


def same_rows(spark: Any, root: Path, parquet: Path, frames: int) -> Any:
    """The recording's rows with their payloads as Parquet, uncompressed; gives their schema."""
    rows = spark.read.format("tensorpool").options(path=str(root), payload="inline").load()
    files = -(-frames * FRAME_BYTES // _FILE_BYTES)
    rows.repartition(files, "seq").write.option("compression", "none").parquet(str(parquet))
    return rows.schema


def ingest(spark: Any, root: Path, home: Path, payload: str) -> int:
    """One streaming query from the recording into the bronze table, to its end; gives the rows."""
    out = home / f"out-{secrets.token_hex(4)}"
    settings = definition.parse(
        {"pipeline": {"recordings": [str(root)], "out": str(out), "payload": payload}}
    )
    places = Layout(out)
    log = StageLog(places, layout.BRONZE, tables=[schemas.bronze_frames(settings.payload)])
    rows = 0

    def take(df: Any, batch: int) -> None:
        nonlocal rows
        staging = places.staging / str(batch)
        staging.mkdir(parents=True)
        written = bronze.write_rows(df, settings, str(staging))
        log.commit(batch, written)
        rows += sum(one.rows for one in written if one.table == layout.BRONZE_FRAMES)

    started = bronze.source(spark, settings).writeStream.foreachBatch(take)
    started.trigger(availableNow=True).option(
        "checkpointLocation", str(places.checkpoint)
    ).start().awaitTermination()
    _check(out / layout.BRONZE_FRAMES, rows)
    shutil.rmtree(out)
    return rows


def parquet_to_parquet(spark: Any, source: Path, schema: Any, home: Path) -> int:
    """The same with what Spark has: its own source and its own sink, plain files."""
    out = home / f"parquet-{secrets.token_hex(4)}"
    made = spark.readStream.schema(schema).parquet(str(source)).writeStream.format("parquet")
    made = made.option("compression", "none").option("checkpointLocation", f"{out}.checkpoint")
    made.trigger(availableNow=True).start(str(out)).awaitTermination()
    rows = [int(pq.ParquetFile(path).metadata.num_rows) for path in out.glob("*.parquet")]
    shutil.rmtree(out)
    return sum(rows)


def _check(table: Path, rows: int) -> None:
    found = sum(pq.ParquetFile(path).metadata.num_rows for path in table.rglob("*.parquet"))
    assert found == rows, f"{found} rows of {rows} are in the table"


def timed(work: dict[str, Callable[[], int]], frames: int, rounds: int) -> dict[str, float]:
    """The shortest of some rounds, each thing in turn; the first round warms up."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, one in work.items():
            started = time.perf_counter()
            rows = one()
            elapsed = time.perf_counter() - started
            assert rows == frames, f"{name}: {rows} rows instead of {frames}"
            if number:
                best[name] = min(elapsed, best.get(name, elapsed))
    return best


def main() -> None:
    plan = json.loads(sys.argv[1])
    home, frames = Path(plan["directory"]), plan["frames"]
    write_recording(home / "recording", frames)
    spark = session(home)
    try:
        schema = same_rows(spark, home / "recording", home / "parquet", frames)
        work: dict[str, Callable[[], int]] = {
            "inline_s": lambda: ingest(spark, home / "recording", home, "inline"),
            "reference_s": lambda: ingest(spark, home / "recording", home, "ref"),
            "parquet_s": lambda: parquet_to_parquet(spark, home / "parquet", schema, home),
        }
        run = {"bytes": frames * FRAME_BYTES, **timed(work, frames, plan["rounds"])}
    finally:
        spark.stop()
    print(json.dumps(run))


if __name__ == "__main__":
    main()
