"""Recordings of known frames, and pipelines over them without Spark: the same stages, the same commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tensorpool import recording
from tensorpool.pipeline import bronze, marker
from tensorpool.pipeline.definition import PipelineSettings, parse
from tensorpool.pipeline.engine import Engine
from tensorpool.pipeline.tasks import LocalTasks
from tests.unit.spark.conftest import batch_reader

T0 = 1_700_000_000_000_000_000
PERIOD_NS = 10_000_000


def frame(seq: int, shape: tuple[int, ...] = (4, 8)) -> Any:
    return np.full(shape, seq % 60_000, np.uint16)


def record(
    root: Path,
    seqs: Iterable[int],
    *,
    stream_id: int = 10,
    epoch: int = 1,
    shape: tuple[int, ...] = (4, 8),
    shift_ns: int = 0,
    trace: int = 0,
) -> None:
    """A frame every ten milliseconds; goes on behind what is there."""
    with recording.RecordingWriter(root) as writer:
        for seq in seqs:
            writer.append(
                frame(seq, shape),
                stream_id=stream_id,
                epoch=epoch,
                seq=seq,
                timestamp_ns=PERIOD_NS * seq + shift_ns,
                receive_time_ns=T0 + PERIOD_NS * seq + shift_ns,
                trace_id=trace + seq if trace else None,
            )


def define(root: Path, out: Path, **more: Any) -> PipelineSettings:
    roots = more.pop("recordings", [str(root)])
    return parse({"pipeline": {"recordings": roots, "out": str(out), "max_rows": 1000, **more}})


class Stages:
    """An engine whose micro-batches are handed to it."""

    def __init__(self, settings: PipelineSettings, tasks: Any = None, **functions: Any) -> None:
        self.settings = settings
        settings.out.mkdir(exist_ok=True)
        self.engine = Engine(
            settings, pipeline_id=marker.begin(settings).pipeline_id, callables=functions or None
        )
        self.engine.recover()
        self.tasks = tasks or LocalTasks()
        self._next = 0

    def take(self, rows: Sequence[pa.RecordBatch], batch: int | None = None) -> None:
        number = self._next if batch is None else batch
        self._next = number + 1

        def write(staging: str) -> Any:
            target = self.settings.target_file_bytes
            return bronze.files_of(iter(rows), self.settings.payload, target, staging)

        self.engine.run(write, number, self.tasks)

    def take_all(self, *, pieces: int = 1) -> None:
        """Everything, in some micro-batches, streams side by side."""
        for rows in cut(self.settings, pieces):
            self.take(rows)

    def close(self) -> None:
        self.engine.close(self.tasks)


def cut(settings: PipelineSettings, pieces: int) -> Iterator[list[pa.RecordBatch]]:
    """What the recordings have, as some micro-batches."""
    whole = [batch for root in settings.recordings for batch in rows_of(Path(root))]
    for number in range(pieces):
        parts = [_part(batch, number, pieces) for batch in whole]
        yield [one for one in parts if len(one)]


def _part(batch: pa.RecordBatch, number: int, pieces: int) -> pa.RecordBatch:
    low, high = len(batch) * number // pieces, len(batch) * (number + 1) // pieces
    return batch.slice(low, high - low)


def rows_of(root: Path) -> Iterator[pa.RecordBatch]:
    """What Spark's source would give."""
    reader = batch_reader(root, includeGaps="true", failOnDataLoss="false")
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield batch.append_column("recording", pa.repeat(str(root), len(batch)))


def table(settings: PipelineSettings, name: str) -> list[dict[str, Any]]:
    """A table as any reader finds it: a directory of Parquet files."""
    place = settings.out / name
    if not place.is_dir():
        return []
    rows: list[dict[str, Any]] = []
    for path in sorted(place.rglob("*.parquet")):
        partition = dict(part.split("=") for part in path.relative_to(place).parts[:-1])
        more = {name: int(value) if name == "stream_id" else value for name, value in partition.items()}
        with pq.ParquetFile(path) as file:
            rows += [{**row, **more} for row in file.read(use_threads=False).to_pylist()]
    return rows


def keys(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return sorted((row["stream_id"], row["epoch"], row["seq"]) for row in rows)


class Killed(BaseException):
    """The process ends here."""


def dies_at(step: int) -> Callable[[Any], Any]:
    """Wraps functions so that all of them together are called so often, and then the process ends."""
    left = step

    def dies(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise Killed
            return function(*arguments)

        return call

    return dies
