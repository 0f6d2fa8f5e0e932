"""How a pipeline grows: 1, 10, 100 streams; 1, 10, 100 hours of small frames. Not in real time.

`python -m benchmarks.pipeline_growth` writes recordings whose times are spread over hours, takes them to gold
with Spark, and prints what a row costs, and how much is remembered between micro-batches.
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
    """One recording, taken to gold."""

    streams: int
    hours: float
    payload_bytes: int
    rows: int
    seconds: float = 0.0
    core_s: float = 0.0
    """Of cores, with all that Spark does itself."""
    batch_s: list[float] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)
    state_bytes: int = 0
    files: int = 0
    table_bytes: int = 0

    @property
    def row_us(self) -> float:
        """Of one core and all rows, with what a query costs to start."""
        return self.core_s / self.rows * 1e6

    def batch_us(self, share: slice) -> float | None:
        """What a row costs in some of the whole micro-batches."""
        chosen = self.batch_s[:-1][share] or self.batch_s
        return float(np.median(chosen)) / min(self.rows, _rows_a_batch(self)) * 1e6


def _rows_a_batch(one: Growth) -> int:
    return -(-one.rows // len(one.batch_s)) if len(one.batch_s) < 2 else MAX_ROWS


MAX_ROWS = 20_000


def write_hours(root: Path, streams: int, hours: float, hz: float, payload: int) -> int:
    """Frames at even times, as if they had been recorded for hours."""
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


def take(spark: Any, home: Path, streams: int, hours: float, hz: float, payload: int) -> Growth:
    """Writes the recording, takes it to gold, measures, and removes both."""
    root, out = home / "recording", home / "tables"
    found = Growth(streams, hours, payload, write_hours(root, streams, hours, hz, payload))
    settings, engine = _begun(root, out, streams)
    tasks, spent = SparkTasks(spark), dict.fromkeys(STAGES, 0.0)

    def one(df: Any, batch: int) -> None:
        begun = core_seconds()
        engine.take(df, batch, tasks)
        found.batch_s.append(core_seconds() - begun)
        _spend(spent, engine)

    begun, begun_core = time.perf_counter(), core_seconds()
    query = bronze.source(spark, settings).writeStream.foreachBatch(one).trigger(availableNow=True)
    query.option("checkpointLocation", str(Layout(out).checkpoint)).start().awaitTermination()
    engine.close(tasks)
    found.seconds, found.stage_s = time.perf_counter() - begun, spent
    found.core_s = core_seconds() - begun_core
    _measure(found, engine, out)
    shutil.rmtree(root)
    shutil.rmtree(out)
    return found


def core_seconds() -> float:
    """What this process and all below it have taken of the cores: Spark's JVM, its daemon, its workers. It
    hardly depends on what else runs."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = place.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(place.parent.name)
        parents[pid], ticks[pid] = int(words[1]), sum(int(one) for one in words[11:15])
    own = {os.getpid()}
    while more := {pid for pid, above in parents.items() if above in own} - own:
        own |= more
    return sum(ticks[pid] for pid in own) / os.sysconf("SC_CLK_TCK")


def _begun(root: Path, out: Path, streams: int) -> tuple[definition.PipelineSettings, Engine]:
    terms: dict[str, Any] = {
        "recordings": [str(root)], "out": str(out), "max_rows": MAX_ROWS, "quality": {"interval": "60s"},
    }  # fmt: skip
    if streams > 1:
        pair = [_FIRST_STREAM, _FIRST_STREAM + 1]
        terms["alignments"] = [{"name": "pair", "streams": pair, "wait": "60s"}]
    settings = definition.parse({"pipeline": terms})
    settings.out.mkdir(mode=0o700)
    return settings, Engine(settings, pipeline_id=marker.begin(settings).pipeline_id)


def _spend(spent: dict[str, float], engine: Engine) -> None:
    for stage in STAGES:
        if (commit := engine.last(stage)) is not None:
            spent[stage] += commit.seconds


def take_here(home: Path, streams: int, hours: float, hz: float, payload: int) -> Growth:
    """The same work without Spark, in this process: seconds are those of its one core."""
    root, out = home / "recording", home / "tables"
    found = Growth(streams, hours, payload, write_hours(root, streams, hours, hz, payload))
    settings, engine = _begun(root, out, streams)
    spent = dict.fromkeys(STAGES, 0.0)
    count, each = found.rows // streams, max(MAX_ROWS // streams, 1)
    begun = time.process_time()
    for batch, first in enumerate(range(0, count, each)):
        started = time.process_time()
        rows = _rows(root, streams, first, min(first + each, count))
        engine.run(
            partial(bronze.files_of, rows, settings.payload, settings.target_file_bytes), batch, LocalTasks()
        )
        found.batch_s.append(time.process_time() - started)
        _spend(spent, engine)
    engine.close(LocalTasks())
    found.seconds = found.core_s = time.process_time() - begun
    found.stage_s = spent
    _measure(found, engine, out)
    shutil.rmtree(root)
    shutil.rmtree(out)
    return found


def _rows(root: Path, streams: int, first: int, last: int) -> Iterator[Any]:
    """What a micro-batch of Spark's source would have: the same stretch of every stream."""
    import pyarrow as pa

    from tensorpool.spark.options import READ, Options, spark_schema
    from tensorpool.spark.reader import FrameReader

    def places(seq: int) -> str:
        ids = range(_FIRST_STREAM, _FIRST_STREAM + streams)
        return json.dumps({str(stream): {"epoch": "1", "seq": str(seq)} for stream in ids})

    given = {"startingOffsets": places(first), "endingOffsets": places(last)}
    options = Options({"path": str(root), "includeGaps": "true", **given}, READ)
    reader = FrameReader(options, spark_schema(options))
    for part in reader.partitions():
        for batch in reader.read(part):
            yield batch.append_column("recording", pa.repeat(str(root), len(batch)))


def _measure(found: Growth, engine: Engine, out: Path) -> None:
    commits = [engine.last(stage) for stage in STAGES]
    rows = commits[0].totals["frames"] if commits[0] is not None else 0
    assert rows == found.rows, f"{rows} rows of {found.rows} are in bronze"
    states = sum(len(json.dumps(one.state)) for one in commits if one is not None)
    kept = [path for path in (out / "_state").rglob("*") if path.is_file()]
    found.state_bytes = states + sum(path.stat().st_size for path in kept)
    tables = [path for stage in ("bronze", "silver", "gold") for path in (out / stage).rglob("*.parquet")]
    found.files, found.table_bytes = len(tables), sum(path.stat().st_size for path in tables)


HEAD = (
    "streams", "hours", "rows", "seconds", "core s", "µs a row", "first batches", "last batches", "state KiB",
    "files", "table B a row",
)  # fmt: skip


def cells(one: Growth) -> list[str]:
    half = max(len(one.batch_s) // 2, 1)
    first, last = one.batch_us(slice(1, half)), one.batch_us(slice(half, None))
    return [
        f"{one.streams}", f"{one.hours:g}", f"{one.rows:,}", f"{one.seconds:.1f}", f"{one.core_s:.1f}",
        f"{one.row_us:.0f}",
        f"{first:.0f}", f"{last:.0f}", f"{one.state_bytes / 1024:.1f}", f"{one.files:,}",
        f"{one.table_bytes / one.rows:.0f}",
    ]  # fmt: skip


def stages(one: Growth) -> str:
    """What each stage took of it."""
    size = one.rows * one.payload_bytes / 1e6
    return ", ".join(
        f"{name} {spent:.1f} s ({spent / one.rows * 1e6:.0f} µs a row, {size / spent:,.0f} MB/s)"
        for name, spent in one.stage_s.items()
        if spent
    )


@click.command()
@click.option("--hz", default=2.0, show_default=True, help="Frames a second of each stream.")
@click.option("--streams", default="1,10,100", show_default=True, help="With one hour each.")
@click.option("--hours", default="1,10,100", show_default=True, help="Of one stream.")
@click.option("--payload", default=64, show_default=True, help="Bytes of a frame; a multiple of 64.")
@click.option("--also", multiple=True, help="STREAMSxHOURS, as in 100x10. Repeatable.")
@click.option("--here", is_flag=True, help="Without Spark: the seconds of one core, whatever else runs.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def main(
    hz: float, streams: str, hours: str, payload: int, also: tuple[str, ...], here: bool, as_json: bool
) -> None:
    """Growth figures of a pipeline, as a table in Markdown."""
    wanted = [(int(one), 1.0) for one in streams.split(",") if one]
    wanted += [(1, float(one)) for one in hours.split(",") if one and (1, float(one)) not in wanted]
    wanted += [(int(one.partition("x")[0]), float(one.partition("x")[2])) for one in also]
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tensorpool-bench-growth-") as directory:
        home = Path(directory)
        spark = None if here else session(home)
        one = partial(take_here, home) if here else partial(take, spark, home)
        try:
            # The first query pays for what all others share.
            one(1, 0.1, hz, 64)
            if not as_json:
                click.echo(f"| {' | '.join(HEAD)} |\n|{'---:|' * len(HEAD)}")
            for number, duration in wanted:
                found = one(number, duration, hz, payload)
                click.echo(json.dumps(asdict(found)) if as_json else f"| {' | '.join(cells(found))} |")
                sys.stdout.flush()
                click.echo(f"stages: {stages(found)}", err=True)
        finally:
            if spark is not None:
                spark.stop()


if __name__ == "__main__":
    main()
