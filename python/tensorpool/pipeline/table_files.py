"""Parquet files of tables, which tasks write into the directories of the tables, and the payloads of rows.

A file is part of its table when a decision is applied that names it. Runs in executors. Payloads are written
to files without a copy through Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..durable import write_errors
from ..recording.table_store import TableStore
from .delta import DataFile, bound_of, file_name
from .schemas import PIPELINE, Table

_GROUP_BYTES: Final = 32 << 20
_GROUP_ROWS: Final = 1 << 17
_PAYLOADS_BYTES: Final = 32 << 20
_DAY_NS: Final = 86_400_000_000_000
_BULKY: Final = frozenset({"payload", "message"})
"""Columns without a dictionary, statistics or compression, which would not pay off."""


def read_file(store: TableStore, table: str, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a file. Reads without Arrow's threads: Spark runs one task on each core already."""
    with pq.ParquetFile(store.source(f"{table}/{path}")) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


class TableFileWriter:
    """Writes rows of tables to new files of the tables' directories; each day has one open file.

    Rows contain the column `date`, which selects the file and is not written to it.
    """

    def __init__(
        self, store: TableStore, number: int, target_bytes: int, *, pipeline: str | None = None
    ) -> None:
        """`number` is the number of the decision that is to name the files, `pipeline` its pipeline."""
        self._store = store
        self._pipeline = pipeline
        self._number = number
        self._target = target_bytes
        self._open: dict[tuple[str, int | None], _File] = {}
        self.written: list[DataFile] = []

    def add(self, table: Table, rows: pa.RecordBatch | pa.Table) -> None:
        """Adds rows of a table. Rows without the column `pipeline` are of the writer's own pipeline."""
        if PIPELINE.name not in rows.schema.names:
            rows = rows.append_column(
                PIPELINE, pa.repeat(pa.scalar(self._pipeline, PIPELINE.type), len(rows))
            )
        for day, part in _by_day(rows, is_dated=bool(table.partitions)):
            key = (table.name, day)
            file = self._open.get(key)
            if file is None:
                file = self._open[key] = _File(self._store, self._number, table, day, self._pipeline)
            file.add(part.select(table.stored.names).cast(table.stored))
            if file.is_full(self._target):
                self.written.append(file.close())
                del self._open[key]

    def close(self) -> list[DataFile]:
        """Closes all files; returns everything that was written."""
        for file in self._open.values():
            self.written.append(file.close())
        self._open.clear()
        return self.written


class _File:
    """An open Parquet file, written by row groups."""

    def __init__(
        self, store: TableStore, number: int, table: Table, day: int | None, pipeline: str | None
    ) -> None:
        self._table = table
        self._date = None if day is None else day_of(day * _DAY_NS)
        name = file_name(pipeline, number)
        self._path = name if day is None else f"date={self._date}/{name}"
        self._where = f"{store.url}/{table.name}/{self._path}"
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._stored = self.rows = 0
        self._figures = _Figures(table.stored)
        names = [name for name in table.stored.names if name not in _BULKY]
        with write_errors(Path(self._where)):
            self._file = store.create(f"{table.name}/{self._path}")
            self._writer = pq.ParquetWriter(
                self._file.sink(),
                table.stored,
                compression={name: "NONE" if name in _BULKY else "ZSTD" for name in _leaves(table.stored)},
                use_dictionary=[name for name in names if pa.types.is_string(table.stored.field(name).type)],
                write_statistics=[name for name in _leaves(table.stored) if name not in _BULKY],
            )

    def add(self, rows: pa.Table) -> None:
        self._figures.add(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._waiting_rows += len(rows)
        self.rows += len(rows)
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            with write_errors(Path(self._where)):
                self._writer.write_table(pa.concat_tables(self._waiting))
                self._stored = self._file.size
            self._waiting = []
            self._waiting_bytes = self._waiting_rows = 0

    def is_full(self, target_bytes: int) -> bool:
        """Whether the file has its target size. Rows take about ten times as much in memory."""
        if self._stored + self._waiting_bytes < target_bytes:
            return False
        self._flush()
        return self._stored >= target_bytes * 3 // 4

    def close(self) -> DataFile:
        self._flush()
        with write_errors(Path(self._where)):
            self._writer.close()
            size = self._file.close()
        figures = self._figures
        return DataFile(
            self._table.name,
            self._path,
            self.rows,
            size,
            self._date,
            {
                name: (bound_of(low, is_high=False), bound_of(high, is_high=True))
                for name, (low, high) in figures.bounds.items()
            },
            figures.nulls,
            figures.payload_bytes,
        )


class _Figures:
    """The bounds of a file's columns, for the log of its table."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [field.name for field in schema if _has_bounds(field.type)]
        self.bounds: dict[str, tuple[Any, Any]] = {}
        self.nulls: dict[str, int] = {}
        self.payload_bytes = 0

    def add(self, rows: pa.Table) -> None:
        if "payload_bytes" in rows.schema.names:
            self.payload_bytes += int(pc.sum(rows["payload_bytes"]).as_py() or 0)
        for name in self._names:
            column = rows[name]
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            ends = pc.min_max(column)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is not None:
                known_low, known_high = self.bounds.get(name, (low, high))
                self.bounds[name] = min(known_low, low), max(known_high, high)


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def _leaves(schema: pa.Schema) -> list[str]:
    """The leaf columns of Parquet, as dotted paths."""
    paths: list[str] = []

    def walk(kind: pa.DataType, path: str) -> None:
        if pa.types.is_list(kind):
            walk(kind.value_type, f"{path}.list.element")
        elif pa.types.is_map(kind):
            walk(kind.key_type, f"{path}.key_value.key")
            walk(kind.item_type, f"{path}.key_value.value")
        elif pa.types.is_struct(kind):
            for column in kind:
                walk(column.type, f"{path}.{column.name}")
        else:
            paths.append(path)

    for column in schema:
        walk(column.type, column.name)
    return paths


def _by_day(rows: pa.RecordBatch | pa.Table, *, is_dated: bool) -> Iterator[tuple[int | None, pa.Table]]:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not len(table):
        return
    if not is_dated:
        yield None, table
        return
    days = table["date"].cast(pa.int32())
    values = days.unique().to_pylist()
    for day in values:
        yield day, table if len(values) == 1 else table.filter(pc.equal(days, day))


def dates(times_ns: npt.NDArray[np.int64]) -> pa.Array:
    """The day of each time, in UTC."""
    return pa.array((times_ns // _DAY_NS).astype(np.int32)).cast(pa.date32())


def day_of(time_ns: int) -> str:
    """The UTC day of a time. The texts sort in the order of the days."""
    return datetime.fromtimestamp(time_ns // _DAY_NS * 86_400, UTC).strftime("%Y-%m-%d")


def moments(times_ns: npt.NDArray[np.int64]) -> pa.Array:
    """Nanoseconds as timestamps with microseconds."""
    return pa.array(times_ns // 1_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


# --- payloads


def inlined(rows: pa.RecordBatch, max_bytes: int = _PAYLOADS_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows with a column `payload`, at most `max_bytes` and 32 MiB of payloads at a time."""
    max_bytes = min(max_bytes, _PAYLOADS_BYTES)
    from ..spark.tensors.rows import Segments

    segments = Segments()
    sizes = rows["payload_bytes"].to_numpy()
    ends = np.cumsum(sizes)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + max_bytes, "right")), start + 1)
        part = rows.slice(start, stop - start)
        yield part.append_column("payload", _payloads(part, segments))
        start = stop


def _payloads(rows: pa.RecordBatch, segments: Any) -> pa.Array:
    sizes: npt.NDArray[np.int64] = rows["payload_bytes"].to_numpy()
    at: npt.NDArray[np.int64] = rows["payload_offset"].to_numpy()
    names = rows["segment"].to_pylist()
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    if names[0] == names[-1] and len(set(names)) == 1 and (at == at[0] + offsets[:-1]).all():
        # The payloads are adjacent in the segment, as in an Arrow column: no copy is needed.
        data = pa.py_buffer(segments.read(names[0], int(at[0]), int(offsets[-1])))
    else:
        packed = np.empty(int(offsets[-1]), np.uint8)
        for name, place, start, size in zip(
            names, at.tolist(), offsets[:-1].tolist(), sizes.tolist(), strict=True
        ):
            packed[start : start + size] = np.frombuffer(segments.read(name, place, size), np.uint8)
        data = pa.py_buffer(packed)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), data])


class Payloads:
    """The payloads of a batch, by row number: from the mapped segment, or from the column `payload`."""

    def __init__(self, rows: pa.RecordBatch, segments: Any) -> None:
        self._segments = segments
        self._is_inline = "payload" in rows.schema.names
        self._sizes = rows["payload_bytes"].to_pylist()
        if self._is_inline:
            self._payload = rows["payload"]
        else:
            self._names = rows["segment"].to_pylist()
            self._at = rows["payload_offset"].to_pylist()

    def __getitem__(self, number: int) -> memoryview:
        """The payload of a row. Raises FrameNotRecorded if its segment was removed."""
        if self._is_inline:
            return memoryview(self._payload[number].as_buffer())
        payload: memoryview = self._segments.read(self._names[number], self._at[number], self._sizes[number])
        return payload
