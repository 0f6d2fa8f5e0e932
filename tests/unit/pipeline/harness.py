"""Recordings of known frames, and an engine over them without Spark, with the same stages and commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.pipeline import marker
from tensorpool.pipeline.definition import PipelineSettings, parse
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.tasks import LocalTasks

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
    """Records a frame every ten milliseconds; appends to an existing recording."""
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
    """An engine that gets its micro-batches from the test, without Spark."""

    def __init__(self, settings: PipelineSettings, tasks: Any = None, **functions: Any) -> None:
        self.settings = settings
        names = tables_of(settings)
        self.engine = Engine(
            settings, pipeline_id=marker.begin(settings, names).pipeline_id, callables=functions or None
        )
        self.engine.recover()
        self.tasks = tasks or LocalTasks()

    def take(self) -> bool:
        """The next micro-batch, of at most `max_rows` of the definition."""
        return self.engine.run_batch(self.tasks)

    def take_all(self) -> int:
        """All rows that are recorded now; returns the number of micro-batches."""
        count = 0
        try:
            while self.take():
                count += 1
        finally:
            self.engine.close_sources()
        return count

    def close(self) -> None:
        self.engine.close()


def table(settings: PipelineSettings, name: str) -> list[dict[str, Any]]:
    """The rows of a table; those of `gold/quality` with the open intervals."""
    names = [name, "gold/quality_open"] if name == "gold/quality" else [name]
    rows: list[dict[str, Any]] = []
    for each in names:
        uri = f"{settings.out}/{each}"
        if DeltaTable.is_deltatable(uri):
            found = DeltaTable(uri)
            for file in sorted(found.file_uris()):
                with pq.ParquetFile(file) as opened:
                    rows += opened.read(use_threads=False).to_pylist()
    return rows


def tables(settings: PipelineSettings) -> list[str]:
    """The names of the tables that exist."""
    return [name for name in tables_of(settings) if DeltaTable.is_deltatable(f"{settings.out}/{name}")]


def keys(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return sorted((row["stream_id"], row["epoch"], row["seq"]) for row in rows)


class Killed(BaseException):
    """Stands for a kill of the process."""


def dies_at(step: int) -> Callable[[Any], Any]:
    """Wraps functions that raise Killed after `step` calls of all of them together."""
    left = step

    def dies(function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise Killed
            return function(*arguments, **more)

        return call

    return dies
