"""The Spark process whose queries are timed: `python -m benchmarks.spark_process PLAN`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tensorpool import recording
from tensorpool.recording import layout, manifest, manifest_store, segment_file
from tensorpool.recording.segment_writer import SegmentWriter

from .spark import FRAME_BYTES, SMALL_BYTES

STREAM = 10_000
_BATCH_ROWS = 16
_EQUAL_RESULTS = (
    ("scan_s", "parquet_scan_s"),
    ("small_scan_s", "small_parquet_scan_s"),
    ("map_s", "parquet_map_s"),
    ("map_unverified_s", "parquet_map_s"),
    ("max_s", "parquet_max_s"),
)
"""Pairs of queries whose results have to be equal."""


def write_both(root: Path, parquet: Path, frames: int, frame_bytes: int = FRAME_BYTES) -> None:
    """Writes the same bytes as a recording and as uncompressed Parquet."""
    rng = np.random.default_rng(5)
    limits = recording.WriterLimits(segment_bytes=64 << 20)
    schema = pa.schema([("seq", pa.int64()), ("payload", pa.binary())])
    parquet.mkdir()
    with recording.RecordingWriter(root, limits=limits) as writer:
        per_file = 100
        for first in range(0, frames, per_file):
            rows = []
            for seq in range(first, min(first + per_file, frames)):
                array = rng.integers(0, 256, (frame_bytes // 1024, 1024), np.uint8)
                writer.append(array, stream_id=STREAM, epoch=1, seq=seq)
                rows.append({"seq": seq, "payload": array.tobytes()})
            table = pa.Table.from_pylist(rows, schema=schema)
            pq.write_table(
                table, parquet / f"{first:06}.parquet", compression="none", row_group_size=_BATCH_ROWS,
                use_dictionary=False,
            )  # fmt: skip


def session(directory: Path) -> Any:
    """A local Spark session whose files are in this directory."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        # The default of 4,096 rows would put gigabytes into one batch.
        "spark.sql.parquet.columnarReaderBatchSize": str(_BATCH_ROWS),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def total(array: Any) -> int:
    """Sum of all elements."""
    return int(array.sum(dtype=np.uint64))


def maximum(array: Any) -> int:
    """Largest element."""
    return int(array.max())


def unmapped(fn: Callable[[Any], int]) -> Callable[[Any], int]:
    """The same function over segments that no earlier task has mapped."""

    def run(array: Any) -> int:
        segment_file.enable_cache(False)
        segment_file.enable_cache()
        return fn(array)

    return run


def over_parquet(fn: Callable[[Any], int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The same function over a binary column, as code without references would do it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = batch.column("payload")
            values = [fn(np.frombuffer(payload[row].as_buffer(), np.uint8)) for row in range(len(batch))]
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.int64())})

    return run


def timed(work: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Shortest time of each query over some rounds; a first round warms up. Pairs have to agree."""
    best: dict[str, float] = {}
    results: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, query in work.items():
            started = time.perf_counter()
            results[name] = query()
            elapsed = time.perf_counter() - started
            if number:
                best[name] = min(elapsed, best.get(name, elapsed))
    for ours, theirs in _EQUAL_RESULTS:
        if ours in results:
            assert results[ours] == results[theirs], f"{ours} and {theirs} have different results"
    return best


def measure_queries(directory: Path, frames: int, rounds: int) -> dict[str, float]:
    """Times all queries."""
    from pyspark.sql import functions as F

    from tensorpool.spark import tensors

    root, parquet = directory / "recording", directory / "parquet"
    write_both(root, parquet, frames)
    small, small_parquet = directory / "small", directory / "small-parquet"
    write_both(small, small_parquet, frames * FRAME_BYTES // SMALL_BYTES // 4, SMALL_BYTES)
    spark = session(directory)
    # Both are loaded once; each round plans and runs a new query.
    references = spark.read.format("tensorpool").option("path", str(root)).load()
    inline = spark.read.format("tensorpool").options(path=str(root), payload="inline")
    payloads = inline.schema("seq bigint, payload binary").load()
    theirs = spark.read.parquet(str(parquet))
    small_inline = spark.read.format("tensorpool").options(path=str(small), payload="inline")
    small_payloads = small_inline.schema("seq bigint, payload binary").load()
    small_theirs = spark.read.parquet(str(small_parquet))

    def value(frame: Any, column: Any) -> int:
        return int(frame.agg(F.sum(column)).collect()[0][0])

    def mapped(fn: Callable[[Any], int], **options: Any) -> int:
        return value(tensors.map(references, fn, "value bigint", **options), "value")

    def mapped_parquet(fn: Callable[[Any], int]) -> int:
        return value(theirs.mapInArrow(over_parquet(fn), "value bigint"), "value")

    work = {
        "scan_s": lambda: value(payloads, F.length("payload")),
        "parquet_scan_s": lambda: value(theirs, F.length("payload")),
        "small_scan_s": lambda: value(small_payloads, F.length("payload")),
        "small_parquet_scan_s": lambda: value(small_theirs, F.length("payload")),
        "map_s": lambda: mapped(total),
        "map_unverified_s": lambda: mapped(total, verify=False),
        "parquet_map_s": lambda: mapped_parquet(total),
        "max_s": lambda: mapped(maximum),
        "parquet_max_s": lambda: mapped_parquet(maximum),
    }
    # Last, because they unmap the segments of the other queries.
    fresh = {
        "map_fresh_s": lambda: mapped(unmapped(total)),
        "max_fresh_s": lambda: mapped(unmapped(maximum)),
    }
    try:
        return {**timed(work, rounds), **timed(fresh, rounds)}
    finally:
        spark.stop()


def write_segments(root: Path, count: int) -> None:
    """Writes a manifest of `count` segments of one frame each, and the files that planning opens."""
    with recording.RecordingWriter(root, background=False) as writer:
        writer.append(np.zeros(64, np.uint8), stream_id=STREAM, epoch=1, seq=0)
    (first,) = recording.open(root).by_segment(STREAM)
    block, _ = next(first[1].runs())
    listed = np.repeat(recording.open(root).segments, count)
    listed["first_seq"] = listed["last_seq"] = np.arange(count)
    for seq in {*range(count // 2 - 2, min(count // 2 + 10, count)), count - 1} - {0}:
        segment = SegmentWriter(root, layout.SegmentName(STREAM, 1, seq))
        segment.write(replace(block.to_frames(), seq=np.array([seq], np.uint64)))
        segment.seal()
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, manifest.Manifest(1, listed))


def measure_planning(directory: Path, segments: int) -> tuple[float, float]:
    """Milliseconds to plan a micro-batch, and the resident MiB of the planning process."""
    root = directory / f"segments-{segments}"
    write_segments(root, segments)
    results: Queue[tuple[float, float]] = Queue()
    child = Process(target=_plan, args=(str(root), segments, results))
    child.start()
    figures = results.get(timeout=120)
    child.join()
    return figures


def _plan(root: str, segments: int, results: Queue[tuple[float, float]]) -> None:
    from tensorpool.spark.offsets import Position
    from tensorpool.spark.plan import Planner

    planner = Planner(root, None)
    start = {STREAM: Position(1, segments // 2)}
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter()
        planner.refresh()
        end = planner.limited(start, planner.latest(), max_rows=5, max_bytes=None)
        planner.ranges(start, end, max_bytes=None, min_parts=None, ends_with_row=True)
        best = min(best, time.perf_counter() - started)
    status = Path("/proc/self/status").read_text("ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    results.put((best * 1e3, int(resident.split()[1]) / 1024))


def main() -> None:
    """Runs the plan of the command line."""
    plan = json.loads(sys.argv[1])
    directory = Path(plan["directory"])
    planning = {str(segments): measure_planning(directory, segments) for segments in plan["segments"]}
    run: dict[str, Any] = {
        "bytes": plan["frames"] * FRAME_BYTES,
        "planning_ms": {key: value[0] for key, value in planning.items()},
        "resident_mib": {key: value[1] for key, value in planning.items()},
    }
    run |= measure_queries(directory, plan["frames"], plan["rounds"])
    print(json.dumps(run))


if __name__ == "__main__":
    main()
