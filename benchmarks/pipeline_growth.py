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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tensorpool import recording
from tensorpool.pipeline import definition, marker
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.layout import BRONZE, STAGES
from tensorpool.pipeline.tasks import LocalTasks, SparkTasks, Tasks
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


def measure_growth(
    tasks: Tasks,
    clock: Callable[[], float],
    directory: Path,
    streams: int,
    hours: float,
    hz: float,
    payload: int,
) -> Growth:
    """Writes a recording, processes it to gold, and removes both. `clock` counts processor time."""
    root, out = directory / "recording", directory / "tables"
    growth = Growth(streams, hours, payload, write_hours(root, streams, hours, hz, payload))
    engine, spent = _start_engine(root, out, streams), dict.fromkeys(STAGES, 0.0)
    begun, begun_core = time.perf_counter(), clock()
    while True:
        started = clock()
        if not engine.run_batch(tasks):
            break
        growth.batch_s.append(clock() - started)
        last = engine.log.last()
        assert last is not None, "a micro-batch was decided"
        for stage, record in last.stages.items():
            spent[stage] += record.seconds
    engine.close()
    engine.close_sources()
    growth.seconds, growth.stage_s = time.perf_counter() - begun, spent
    growth.core_s = clock() - begun_core
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


def _start_engine(root: Path, out: Path, streams: int) -> Engine:
    table: dict[str, Any] = {
        "recordings": [str(root)], "out": str(out), "max_rows": MAX_ROWS, "quality": {"interval": "60s"},
    }  # fmt: skip
    if streams > 1:
        pair = [_FIRST_STREAM, _FIRST_STREAM + 1]
        table["alignments"] = [{"name": "pair", "streams": pair, "wait": "60s"}]
    settings = definition.parse({"pipeline": table})
    return Engine(settings, pipeline_id=marker.begin(settings, tables_of(settings)).pipeline_id)


def _measure(growth: Growth, engine: Engine, out: Path) -> None:
    last = engine.log.last()
    rows = 0 if last is None else last.stages[BRONZE].totals.frames
    assert rows == growth.rows, f"{rows} rows of {growth.rows} are in bronze"
    state_files = [path for path in (out / "_state").rglob("*") if path.is_file()]
    growth.state_bytes = 0 if last is None else len(json.dumps(asdict(last.memory)))
    growth.state_bytes += sum(path.stat().st_size for path in state_files)
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
        if spark is None:
            measure = partial(measure_growth, LocalTasks(), time.process_time, directory)
        else:
            measure = partial(measure_growth, SparkTasks(spark), cpu_seconds, directory)
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
