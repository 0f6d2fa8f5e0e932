"""The reader of a pipeline's tables: `spark.read.format("tensorpool").option("table", NAME).load(ROOT)`.

For Spark versions without a connector for Delta. Planned from the table's log: files are chosen by their
statistics, so that a stream and a time open few of them. A query reads one version of the table from its
planning to its end, whatever is added or merged meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import ConfigError, NotARecording
from .options import Options

_ROWS: Final = 65_536
_INLINE_ROWS: Final = 64
_TIME: Final = "receive_time_ns"
_LOG: Final = "_delta_log"
_MAX_PASSED_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class TablePart:
    """Files of a table that one task reads."""

    files: tuple[tuple[str, str | None], ...]
    """The name of each file below the root, and its day."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of a table that can have rows of a query."""

    path: str
    """Below the root."""
    bytes: int
    day: str | None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a query needs of a table's log: columns, and the files that can have its rows.

    With a long history, opening the log is most of the planning. Spark asks for the columns in one process
    and for the tasks in another one, to which the plan goes along with the data source.
    """

    uri: str
    version: int
    schema: StructType
    files: tuple[PlannedFile, ...] | None
    """None if they are too many to be passed on."""
    selection: tuple[Any, ...]
    """The options that selected them."""

    @classmethod
    def make(cls, options: Options, *, max_files: int | None = None) -> TablePlan:
        """The plan of the table as it is now, or of the version that the options name."""
        table = _open(options)
        chosen = _chosen_files(pa.table(table.get_add_actions(flatten=True)), options)
        is_kept = max_files is None or len(chosen) <= max_files
        schema = from_arrow_schema(pa.schema(table.schema()))
        files = tuple(chosen) if is_kept else None
        return cls(_uri(options), table.version(), schema, files, _selection(options))

    def is_for(self, options: Options) -> bool:
        """Whether it is what `make` would return now: the query is the same, and so is the table."""
        if self.files is None or (self.uri, self.selection) != (_uri(options), _selection(options)):
            return False
        return options["version"] is not None or self._is_latest(options)

    def _is_latest(self, options: Options) -> bool:
        """Whether the log ends with this version: two small reads, whatever its length."""
        from ..recording.table_store import open_store

        log = open_store(_uri(options))
        # Clean-up removes the oldest commits first: while this one is there, the next one would be too.
        return log.get(self._commit(0)) is not None and log.get(self._commit(1)) is None

    def _commit(self, later: int) -> str:
        return f"{_LOG}/{self.version + later:020}.json"


def table_plan(options: Options) -> TablePlan:
    """The plan of a query, small enough to be passed on."""
    return TablePlan.make(options, max_files=_MAX_PASSED_FILES)


class TableReader(DataSourceReader):
    """Plans beside Spark's driver and reads in the executors: its attributes are pickled."""

    def __init__(self, options: Options, schema: StructType, plan: TablePlan | None = None) -> None:
        """`plan`: that of the schema, which is used as long as the table has not changed."""
        current = plan if plan is not None and plan.is_for(options) else TablePlan.make(options)
        known = {field.name: field.dataType.simpleString() for field in current.schema.fields}
        for field in schema.fields:
            if known.get(field.name) != field.dataType.simpleString():
                raise ConfigError(
                    f"table {options['table']} has no column {field.name} of type "
                    f"{field.dataType.simpleString()}; its columns are {', '.join(known)}"
                )
        self._plan: TablePlan | None = current
        self._options = options
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_plan": None}

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query: small files are read together."""
        plan = self._plan or TablePlan.make(self._options)
        target = self._options["maxPartitionBytes"] or 64 << 20
        parts: list[list[tuple[str, str | None]]] = []
        filled = target
        for file in plan.files or ():
            if filled + file.bytes > target:
                parts.append([])
                filled = 0
            parts[-1].append((file.path, file.day))
            filled += max(file.bytes, target // 64)
        return [InputPartition(TablePart(tuple(files))) for files in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Of a plan without files Spark makes one task, without a value."""
        from ..recording.table_store import open_store

        if partition.value is None:
            return
        store = open_store(self._options.path)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for name, day in partition.value.files:
            with pq.ParquetFile(store.source(name)) as file:
                present = file.schema_arrow.names
                wanted = [column for column in schema.names if column in present]
                filters = [column for column in ("stream_id", _TIME) if column in present]
                rows = _INLINE_ROWS if "payload" in wanted else _ROWS
                columns = list(dict.fromkeys([*wanted, *filters]))
                for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                    selected = self._select(batch)
                    if len(selected):
                        yield _in_schema(selected, schema, day)

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        streams = self._options["streams"]
        start, end = self._options["startingTimestamp"], self._options["endingTimestamp"]
        if streams and "stream_id" in names:
            ids = [stream for stream in streams if isinstance(stream, int)]
            batch = batch.filter(pc.is_in(batch["stream_id"], pa.array(ids, pa.int64())))
        if start is not None and _TIME in names:
            batch = batch.filter(pc.greater_equal(batch[_TIME], start))
        if end is not None and _TIME in names:
            batch = batch.filter(pc.less(batch[_TIME], end))
        return batch


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema, day: str | None) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name in batch.schema.names:
            arrays.append(batch[field.name].cast(field.type))
        elif field.name == "date" and day is not None:
            arrays.append(pa.repeat(day, len(batch)).cast(pa.date32()).cast(field.type))
        else:
            arrays.append(pa.nulls(len(batch), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chosen_files(actions: pa.Table, options: Options) -> list[PlannedFile]:
    """The files that can have rows which the options select, by the statistics of the log."""
    columns = set(actions.column_names)
    keep = pa.repeat(True, len(actions))

    def need(fits: Any) -> None:
        # A file without statistics may have any rows.
        nonlocal keep
        keep = pc.and_(keep, pc.fill_null(fits, True))

    streams = options["streams"]
    if streams and {"min.stream_id", "max.stream_id"} <= columns:
        low, high = actions["min.stream_id"], actions["max.stream_id"]
        fits = [
            pc.and_(pc.less_equal(low, stream), pc.greater_equal(high, stream))
            for stream in streams
            if isinstance(stream, int)
        ]
        need(functools.reduce(pc.or_, fits, pa.repeat(False, len(actions))))
    start, end = options["startingTimestamp"], options["endingTimestamp"]
    if start is not None and f"max.{_TIME}" in columns:
        need(pc.greater_equal(actions[f"max.{_TIME}"], start))
    if end is not None and f"min.{_TIME}" in columns:
        need(pc.less(actions[f"min.{_TIME}"], end))
    wanted = [name for name in ("path", "size_bytes", "partition.date") if name in columns]
    files = [
        PlannedFile(
            f"{options['table']}/{unquote(row['path'])}",
            row["size_bytes"],
            None if row.get("partition.date") is None else str(row["partition.date"]),
        )
        for row in actions.select(wanted).filter(keep).to_pylist()
    ]
    return sorted(files, key=lambda file: file.path)


def _selection(options: Options) -> tuple[Any, ...]:
    streams = options["streams"]
    given = (options[name] for name in ("startingTimestamp", "endingTimestamp", "version"))
    return (None if streams is None else tuple(streams), *given)


def _uri(options: Options) -> str:
    return f"{options.path.rstrip('/')}/{options['table']}"


def _open(options: Options) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri = _uri(options)
    try:
        return DeltaTable(uri, version=options["version"])
    except (TableNotFoundError, FileNotFoundError):
        raise NotARecording(
            f"{uri} is not a table; tensorpool pipeline status {options.path} shows the pipeline", path=uri
        ) from None
