"""Cost of a pipeline by size: 1, 10, 100 streams; 1, 10, 100 hours of small frames. Not in real time.

`python -m benchmarks.pipeline_growth` writes recordings whose timestamps span hours, processes them to gold
with Spark, and prints the cost of a row and the size of the state between micro-batches.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tensorpool import recording
from tensorpool.pipeline import bronze, definition, marker
from tensorpool.pipeline.engine import STAGES, Engine
from tensorpool.pipeline.layout import Layout
from tensorpool.pipeline.tasks import LocalTasks, SparkTasks
from tensorpool.recording.tensors import number_of

from .spark_process import session

_FIRST_STREAM = 10_000
_START_NS = 1_772_366_400_000_000_000
_BATCH_ROWS = 4_096
_BATCH_BYTES = 64 << 20


@dataclass(slots=True)
class Growth:
    """Figures of one recording, processed to gold."""

    streams: int
    hours: float
    payload_bytes: int
    rows: int
    seconds: float = 0.0
    core_s: float = 0.0
    """Processor time, Spark's included."""
    batch_s: list[float] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)
    state_bytes: int = 0
    files: int = 0
    table_bytes: int = 0

    @property
    def row_us(self) -> float:
        """Processor time of a row in microseconds, the start of the query included."""
        return self.core_s / self.rows * 1e6

    def batch_us(self, share: slice) -> float | None:
        """Processor time of a row in microseconds, over some of the complete micro-batches."""
        chosen = self.batch_s[:-1][share] or self.batch_s
        return float(np.median(chosen)) / min(self.rows, _rows_per_batch(self)) * 1e6


def _rows_per_batch(growth: Growth) -> int:
    return -(-growth.rows // len(growth.batch_s)) if len(growth.batch_s) < 2 else MAX_ROWS


MAX_ROWS = 20_000


def write_hours(root: Path, streams: int, hours: float, hz: float, payload: int) -> int:
    """Writes frames with even timestamps, as if they had been recorded for hours; returns the rows."""
    count = round(hours * 3_600 * hz)
    batch = max(min(_BATCH_ROWS, _BATCH_BYTES // payload), 1)
    with recording.RecordingWriter(root, background=False) as writer:
        for stream in range(streams):
            for first in range(0, count, batch):
                rows = min(batch, count - first)
                writer.write_batch(_frames(_FIRST_STREAM + stream, first, rows, hz, payload))
    return count * streams


def _frames(stream: int, first: int, count: int, hz: float, payload: int) -> recording.FrameBatch:
    seq = np.arange(first, first + count, dtype=np.uint64)
    received = _START_NS + (seq * np.uint64(round(1e9 / hz))).astype(np.int64)
    arena = (np.arange(count * payload, dtype=np.uint32) + first).astype(np.uint8)
    dims, strides = np.zeros((count, 8), np.int32), np.zeros((count, 8), np.int64)
    dims[:, :2], strides[:, :2] = (payload // 8, 8), (8, 1)
    return recording.FrameBatch(
        stream_id=stream, epoch=1, arena=arena, seq=seq, timestamp_ns=received.astype(np.uint64),
        publish_timestamp_ns=np.full(count, recording.NO_TIMESTAMP, np.uint64), receive_time_ns=received,
        meta_version=np.ones(count, np.uint32), trace_id=np.zeros(count, np.uint64),
        dtype=np.full(count, number_of("uint8"), np.int16), major_order=np.ones(count, np.int16),
        ndims=np.full(count, 2, np.uint8), dims=dims, strides=strides,
        payload_offset=np.arange(count, dtype=np.uint64) * np.uint64(payload),
        payload_bytes=np.full(count, payload, np.uint64),
    )  # fmt: skip


def measure_with_spark(
    spark: Any, directory: Path, streams: int, hours: float, hz: float, payload: int
) -> Growth:
    """Writes a recording, processes it to gold with Spark, and removes both."""
    root, out = directory / "recording", directory / "tables"
    growth = Growth(streams, hours, payload, write_hours(root, streams, hours, hz, payload))
    settings, engine = _start_engine(root, out, streams)
    tasks, spent = SparkTasks(spark), dict.fromkeys(STAGES, 0.0)

    def take_batch(df: Any, batch: int) -> None:
        begun = cpu_seconds()
        engine.take(df, batch, tasks)
        growth.batch_s.append(cpu_seconds() - begun)
        _add_stage_times(spent, engine)

    begun, begun_core = time.perf_counter(), cpu_seconds()
    query = bronze.source(spark, settings).writeStream.foreachBatch(take_batch).trigger(availableNow=True)
    query.option("checkpointLocation", str(Layout(out).checkpoint)).start().awaitTermination()
    engine.close(tasks)
    growth.seconds, growth.stage_s = time.perf_counter() - begun, spent
    growth.core_s = cpu_seconds() - begun_core
    _measure(growth, engine, out)
    shutil.rmtree(root)
    shutil.rmtree(out)
    return growth


def cpu_seconds() -> float:
    """Processor time of this process and all its descendants: Spark's JVM, daemon and workers. It hardly
    depends on other processes."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(int(ticks_field) for ticks_field in fields[11:15])
    own = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= children
    return sum(ticks[pid] for pid in own) / os.sysconf("SC_CLK_TCK")


def _start_engine(root: Path, out: Path, streams: int) -> tuple[definition.PipelineSettings, Engine]:
    table: dict[str, Any] = {
        "recordings": [str(root)], "out": str(out), "max_rows": MAX_ROWS, "quality": {"interval": "60s"},
    }  # fmt: skip
    if streams > 1:
        pair = [_FIRST_STREAM, _FIRST_STREAM + 1]
        table["alignments"] = [{"name": "pair", "streams": pair, "wait": "60s"}]
    settings = definition.parse({"pipeline": table})
    settings.out.mkdir(mode=0o700)
    return settings, Engine(settings, pipeline_id=marker.begin(settings).pipeline_id)


def _add_stage_times(spent: dict[str, float], engine: Engine) -> None:
    for stage in STAGES:
        if (commit := engine.last(stage)) is not None:
            spent[stage] += commit.seconds


def measure_in_process(directory: Path, streams: int, hours: float, hz: float, payload: int) -> Growth:
    """The same without Spark, in this process: seconds are processor time of one core."""
    root, out = directory / "recording", directory / "tables"
    growth = Growth(streams, hours, payload, write_hours(root, streams, hours, hz, payload))
    settings, engine = _start_engine(root, out, streams)
    spent = dict.fromkeys(STAGES, 0.0)
    count, each = growth.rows // streams, max(MAX_ROWS // streams, 1)
    begun = time.process_time()
    for batch, first in enumerate(range(0, count, each)):
        started = time.process_time()
        rows = _rows(root, streams, first, min(first + each, count))
        engine.run(
            partial(bronze.files_of, rows, settings.payload, settings.target_file_bytes), batch, LocalTasks()
        )
        growth.batch_s.append(time.process_time() - started)
        _add_stage_times(spent, engine)
    engine.close(LocalTasks())
    growth.seconds = growth.core_s = time.process_time() - begun
    growth.stage_s = spent
    _measure(growth, engine, out)
    shutil.rmtree(root)
    shutil.rmtree(out)
    return growth


def _rows(root: Path, streams: int, first: int, last: int) -> Iterator[Any]:
    """Rows of a micro-batch of Spark's source: the same range of every stream."""
    import pyarrow as pa

    from tensorpool.spark.options import READ, Options, spark_schema
    from tensorpool.spark.reader import FrameReader

    def offsets(seq: int) -> str:
        ids = range(_FIRST_STREAM, _FIRST_STREAM + streams)
        return json.dumps({str(stream): {"epoch": "1", "seq": str(seq)} for stream in ids})

    bounds = {"startingOffsets": offsets(first), "endingOffsets": offsets(last)}
    options = Options({"path": str(root), "includeGaps": "true", **bounds}, READ)
    reader = FrameReader(options, spark_schema(options))
    for part in reader.partitions():
        for batch in reader.read(part):
            yield batch.append_column("recording", pa.repeat(str(root), len(batch)))


def _measure(growth: Growth, engine: Engine, out: Path) -> None:
    commits = [engine.last(stage) for stage in STAGES]
    rows = commits[0].totals["frames"] if commits[0] is not None else 0
    assert rows == growth.rows, f"{rows} rows of {growth.rows} are in bronze"
    states = sum(len(json.dumps(commit.state)) for commit in commits if commit is not None)
    state_files = [path for path in (out / "_state").rglob("*") if path.is_file()]
    growth.state_bytes = states + sum(path.stat().st_size for path in state_files)
    tables = [path for stage in ("bronze", "silver", "gold") for path in (out / stage).rglob("*.parquet")]
    growth.files, growth.table_bytes = len(tables), sum(path.stat().st_size for path in tables)


HEAD = (
    "streams", "hours", "rows", "seconds", "core s", "µs a row", "first batches", "last batches", "state KiB",
    "files", "table B a row",
)  # fmt: skip


def table_cells(growth: Growth) -> list[str]:
    """Cells of a row of the table."""
    half = max(len(growth.batch_s) // 2, 1)
    first, last = growth.batch_us(slice(1, half)), growth.batch_us(slice(half, None))
    return [
        f"{growth.streams}", f"{growth.hours:g}", f"{growth.rows:,}", f"{growth.seconds:.1f}",
        f"{growth.core_s:.1f}", f"{growth.row_us:.0f}",
        f"{first:.0f}", f"{last:.0f}", f"{growth.state_bytes / 1024:.1f}", f"{growth.files:,}",
        f"{growth.table_bytes / growth.rows:.0f}",
    ]  # fmt: skip


def stage_times(growth: Growth) -> str:
    """Seconds of each stage, as text."""
    size = growth.rows * growth.payload_bytes / (1 << 20)
    return ", ".join(
        f"{name} {spent:.1f} s ({spent / growth.rows * 1e6:.0f} µs a row, {size / spent:,.0f} MiB/s)"
        for name, spent in growth.stage_s.items()
        if spent
    )


@click.command()
@click.option("--hz", default=2.0, show_default=True, help="Frames per second of each stream.")
@click.option(
    "--streams", default="1,10,100", show_default=True, help="Numbers of streams, each with one hour."
)
@click.option("--hours", default="1,10,100", show_default=True, help="Durations of one stream, in hours.")
@click.option("--payload", default=64, show_default=True, help="Bytes of a frame, a multiple of 64.")
@click.option("--also", multiple=True, help="Also measure STREAMSxHOURS, such as 100x10. Repeatable.")
@click.option("--here", is_flag=True, help="Measure without Spark: processor time of one core.")
@click.option("--json", "json_out", is_flag=True, help="Print JSON.")
def main(
    hz: float, streams: str, hours: str, payload: int, also: tuple[str, ...], here: bool, json_out: bool
) -> None:
    """Print the cost of a pipeline by size as a Markdown table."""
    sizes = [(int(count), 1.0) for count in streams.split(",") if count]
    sizes += [(1, float(span)) for span in hours.split(",") if span and (1, float(span)) not in sizes]
    sizes += [(int(size.partition("x")[0]), float(size.partition("x")[2])) for size in also]
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tensorpool-bench-growth-") as name:
        directory = Path(name)
        spark = None if here else session(directory)
        measure = (
            partial(measure_in_process, directory) if here else partial(measure_with_spark, spark, directory)
        )
        try:
            # The first query includes the start-up cost of Spark.
            measure(1, 0.1, hz, 64)
            if not json_out:
                click.echo(f"| {' | '.join(HEAD)} |\n|{'---:|' * len(HEAD)}")
            for number, duration in sizes:
                growth = measure(number, duration, hz, payload)
                click.echo(
                    json.dumps(asdict(growth)) if json_out else f"| {' | '.join(table_cells(growth))} |"
                )
                sys.stdout.flush()
                click.echo(f"stages: {stage_times(growth)}", err=True)
        finally:
            if spark is not None:
                spark.stop()


if __name__ == "__main__":
    main()
