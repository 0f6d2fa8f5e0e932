"""A rerun: rows of gold are computed again from silver, after a function or its settings changed.

Frames of a time range are read from `silver/frames`; in each table one transaction replaces the rows of the
range. So a reader sees the old rows or the new ones. A pipeline may run meanwhile: its decisions add files,
and a rerun replaces only files that it has seen. After a kill, a rerun is run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PipelineError
from ..recording.table_store import open_store
from . import layout, marker
from .definition import PipelineSettings
from .delta import DataFile, DeltaTables, StoredFile, pipeline_of
from .engine import Engine, apply_decisions, tables_of
from .functions import Callables, TableFunction, table_functions
from .schemas import PIPELINE
from .table_files import TableFileWriter, read_file
from .tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES: Final = 20
_ROWS: Final = 4_096
_INLINE_ROWS: Final = 64
_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class RerunRange:
    """Receive times from `from_ns` up to, and without, `to_ns`."""

    from_ns: int = -_FOREVER
    """The first receive time, in nanoseconds since 1970."""
    to_ns: int = _FOREVER
    """The first receive time after the range."""

    def overlaps(self, file: StoredFile) -> bool:
        """Whether a file may have a row of the range."""
        low, high = file.times
        return (low is None or low < self.to_ns) and (high is None or high >= self.from_ns)

    def contains(self, file: StoredFile) -> bool:
        """Whether all rows of a file are of the range."""
        low, high = file.times
        return low is not None and high is not None and self.from_ns <= low and high < self.to_ns

    def select(self, rows: pa.RecordBatch | pa.Table, *, inside: bool) -> pa.RecordBatch | pa.Table:
        """The rows of the range, or the others."""
        received = rows["receive_time_ns"].to_numpy()
        is_inside = (received >= self.from_ns) & (received < self.to_ns)
        return rows.filter(pa.array(is_inside == inside))


@dataclass(slots=True)
class RerunResult:
    """What a rerun has done to a table."""

    removed: int = 0
    """Rows of the range before."""
    written: int = 0
    """Rows of the range now."""

    def to_json(self) -> dict[str, int]:
        """The result as JSON values."""
        return {"removed": self.removed, "written": self.written}


@dataclass(slots=True)
class GoldTask:
    """Some files of `silver/frames`, whose frames of the range are computed again."""

    root: str
    number: int
    settings: PipelineSettings
    names: tuple[str, ...]
    paths: list[str]
    range: RerunRange
    place: str | None = None


@dataclass(slots=True)
class _Snapshot:
    """The files of the tables behind one decision."""

    number: int
    silver: list[StoredFile] = field(default_factory=list)
    tables: dict[str, list[StoredFile]] = field(default_factory=dict)


def rerun(
    settings: PipelineSettings,
    span: RerunRange,
    *,
    functions: Sequence[str] = (),
    spark: SparkSession | None = None,
    master: str | None = None,
    remote: str | None = None,
    place: str | None = None,
    callables: Callables | None = None,
) -> dict[str, RerunResult]:
    """Computes tables of gold again for a time range. Returns the numbers of rows by table.

    `functions`: names of functions, and `statistics`; empty for all that have a table. `spark`, `master`,
    `remote`, `place` and `callables` are those of `run`. Raises PipelineError.
    """
    from .run import session_of, short_errors
    from .tasks import SparkTasks

    work = Rerun(settings, span, functions=functions, place=place, callables=callables)
    with session_of(spark, master=master, remote=remote) as session, short_errors():
        return work.run(SparkTasks(session))


class Rerun:
    """The rerun of one definition."""

    def __init__(
        self,
        settings: PipelineSettings,
        span: RerunRange,
        *,
        functions: Sequence[str] = (),
        place: str | None = None,
        callables: Callables | None = None,
    ) -> None:
        if span.from_ns >= span.to_ns:
            raise PipelineError("the range is empty: --to has to be later than --from")
        self._settings = settings
        self._span = span
        self._place = place
        self._callables = dict(callables or {})
        self._names = _chosen(settings, functions)
        begun = marker.begin(settings, tables_of(settings))
        self._engine = Engine(settings, pipeline_id=begun.pipeline_id, place=place, callables=self._callables)
        self._store = open_store(settings.out)
        self._delta = DeltaTables(self._store.url)

    def run(self, tasks: Tasks) -> dict[str, RerunResult]:
        """Replaces the rows of the range in all chosen tables."""
        self._engine.recover()
        results: dict[str, RerunResult] = {}
        for _ in range(_TRIES):
            names = [name for name in self._names if layout.function(name) not in results]
            if not names:
                return results
            results |= self._replace(names, tasks)
        raise PipelineError(
            f"{self._store.url}: files of the range were merged in every attempt; stop `pipeline compact`, "
            "or choose a range that is over"
        )

    def _replace(self, names: Sequence[str], tasks: Tasks) -> dict[str, RerunResult]:
        """Replaces the rows of some tables. Leaves out tables whose files were merged meanwhile."""
        snapshot = self._snapshot([layout.function(name) for name in names])
        chosen = [file.path for file in snapshot.silver if self._span.overlaps(file)]
        per_task = max(-(-len(chosen) // max(2 * tasks.parallelism, 1)), 1)
        items = [
            GoldTask(
                self._store.url, snapshot.number, self._settings, tuple(names), chosen[at : at + per_task],
                self._span, self._place,
            )
            for at in range(0, len(chosen), per_task)
        ]  # fmt: skip
        written = [file for files in tasks.run(gold_work(self._callables), items) for file in files]
        results = {}
        for name in (layout.function(name) for name in names):
            new = [file for file in written if file.table == name]
            old = [file for file in snapshot.tables[name] if self._span.overlaps(file)]
            rest = self._outside(name, old, snapshot.number)
            if self._delta.replace(self._engine.tables[name], old, [*new, *rest]):
                kept = sum(file.rows for file in rest)
                results[name] = RerunResult(
                    sum(file.rows for file in old) - kept, sum(file.rows for file in new)
                )
        return results

    def _snapshot(self, tables: Iterable[str]) -> _Snapshot:
        """The tables as of one decision: gold has the rows of exactly the frames in silver."""
        names = list(tables)
        for attempt in range(_TRIES):
            # Of all pipelines: the next decision of each is only created when this one is in all tables.
            numbers = apply_decisions(self._store.url)
            silver = self._delta.files(layout.SILVER_FRAMES)
            found = {name: self._delta.files(name) for name in names}
            if numbers == apply_decisions(self._store.url):
                return _Snapshot(max(numbers.get(self._settings.name, 0), 0), silver, found)
            time.sleep(0.05 * attempt)
        raise PipelineError(
            f"{self._store.url}: a pipeline decides micro-batches faster than its tables can be read; give "
            "it a longer trigger"
        )

    def _outside(self, name: str, files: Sequence[StoredFile], number: int) -> list[DataFile]:
        """New files with those rows of some files that are not of the range."""
        writer = TableFileWriter(self._store, number, self._settings.target_file_bytes)
        table = self._engine.tables[name]
        for file in files:
            if self._span.contains(file):
                continue
            rows = self._span.select(read_file(self._store, name, file.path), inside=False)
            if len(rows):
                columns = {
                    entry.name: rows[entry.name].cast(entry.type)
                    if entry.name in rows.schema.names
                    else pa.nulls(len(rows), entry.type)
                    for entry in table.stored
                }
                day = pa.scalar(file.date, pa.string()).cast(pa.date32())
                writer.add(table, pa.table({**columns, "date": pa.repeat(day, len(rows))}))
        return writer.close()


def _chosen(settings: PipelineSettings, functions: Sequence[str]) -> list[str]:
    """The names of the tables of gold that are computed from single frames."""
    known = [function.name for function in settings.functions if function.output == "table"]
    known += ["statistics"] if settings.statistics.enabled else []
    for name in functions:
        if name not in known:
            names = ", ".join(known) or "another definition"
            raise PipelineError(f"{name} is not a function with a table of this definition; use {names}")
    if not known:
        raise PipelineError("the definition has no function with a table, and no statistics")
    return list(functions or known)


# --- in executors


def gold_work(callables: Callables) -> partial[list[DataFile]]:
    """The function for `Tasks.run`, with the function objects of a Python definition."""
    return partial(_run, dict(callables))


def _run(callables: Callables, task: GoldTask) -> list[DataFile]:
    from ..spark.tensors.rows import Segments

    segments = Segments()
    functions: list[TableFunction] = [
        function
        for function in table_functions(task.settings, callables, task.place)
        if function.name in task.names
    ]
    writer = TableFileWriter(open_store(task.root), task.number, task.settings.target_file_bytes)
    for batch in _frames(task):
        for function in functions:
            rows = function.rows(batch, segments)
            if rows is not None:
                writer.add(function.table, rows)
    return writer.close()


def _frames(task: GoldTask) -> Iterator[pa.RecordBatch]:
    store = open_store(task.root)
    for path in task.paths:
        with pq.ParquetFile(store.source(f"{layout.SILVER_FRAMES}/{path}")) as file:
            names = [name for name in file.schema_arrow.names if name not in ("metadata", "recording")]
            size = _INLINE_ROWS if "payload" in names else _ROWS
            for batch in file.iter_batches(size, columns=names, use_threads=False):
                rows = task.range.select(batch, inside=True)
                if PIPELINE.name not in names:
                    own = pa.scalar(pipeline_of(path), PIPELINE.type)
                    rows = rows.append_column(PIPELINE, pa.repeat(own, len(rows)))
                if len(rows):
                    yield rows
