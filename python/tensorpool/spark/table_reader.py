"""The reader of a pipeline's tables: `spark.read.format("tensorpool").option("table", NAME).load(ROOT)`.

For Spark versions without a connector for Delta. Planned from the table's log: files are chosen by their
statistics, so that a stream and a time open few of them. A query reads one version of the table from its
planning to its end, whatever is added or merged meanwhile.
"""

from __future__ import annotations

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
from ..text import JsonObject
from .options import Options

_ROWS: Final = 65_536
_INLINE_ROWS: Final = 64
_TIME: Final = "receive_time_ns"


@dataclass(frozen=True, slots=True)
class TablePart:
    """Files of a table that one task reads."""

    files: tuple[tuple[str, str | None], ...]
    """The name of each file below the root, and its day."""


def table_schema(options: Options) -> StructType:
    """The columns of a table."""
    return from_arrow_schema(pa.schema(_open(options).schema()))


class TableReader(DataSourceReader):
    """Plans beside Spark's driver and reads in the executors: its attributes are pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        # Opened once: with a long history in the log that is most of the planning.
        self._table = _open(options)
        fields = from_arrow_schema(pa.schema(self._table.schema())).fields
        known = {field.name: field.dataType.simpleString() for field in fields}
        for field in schema.fields:
            if known.get(field.name) != field.dataType.simpleString():
                raise ConfigError(
                    f"table {options['table']} has no column {field.name} of type "
                    f"{field.dataType.simpleString()}; its columns are {', '.join(known)}"
                )
        self._options = options
        self._schema = schema

    def __getstate__(self) -> JsonObject:
        return {**self.__dict__, "_table": None}

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query: small files are read together."""
        table = self._table or _open(self._options)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        name = self._options["table"]
        chosen = sorted(
            (
                (f"{name}/{unquote(action['path'])}", action["size_bytes"], action.get("partition.date"))
                for action in actions
                if self._may_match(action)
            ),
            key=lambda entry: str(entry[0]),
        )
        target = self._options["maxPartitionBytes"] or 64 << 20
        parts: list[list[tuple[str, str | None]]] = []
        filled = target
        for path, size, day in chosen:
            if filled + size > target:
                parts.append([])
                filled = 0
            parts[-1].append((path, None if day is None else str(day)))
            filled += max(size, target // 64)
        return [InputPartition(TablePart(tuple(files))) for files in parts]

    def _may_match(self, action: JsonObject) -> bool:
        """Whether a file can have rows that the options select, by the statistics of the log."""
        low, high = action.get("min.stream_id"), action.get("max.stream_id")
        streams = self._options["streams"]
        if streams and low is not None and high is not None:
            has_stream = any(isinstance(stream, int) and low <= stream <= high for stream in streams)
            if not has_stream:
                return False
        start, end = self._options["startingTimestamp"], self._options["endingTimestamp"]
        first, last = action.get(f"min.{_TIME}"), action.get(f"max.{_TIME}")
        if start is not None and last is not None and last < start:
            return False
        return not (end is not None and first is not None and first >= end)

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


def _open(options: Options) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri = f"{options.path.rstrip('/')}/{options['table']}"
    try:
        return DeltaTable(uri, version=options["version"])
    except (TableNotFoundError, FileNotFoundError):
        raise NotARecording(
            f"{uri} is not a table; tensorpool pipeline status {options.path} shows the pipeline", path=uri
        ) from None
