"""Files of tables, written by tasks: Parquet, sized, in a staging directory until a commit names them.

Lives in executors. Nothing of a payload passes through Spark on its way into a file.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..durable import sync_file, write_errors
from .schemas import Table

_GROUP_BYTES: Final = 32 << 20
_GROUP_ROWS: Final = 1 << 17
_DAY_NS: Final = 86_400_000_000_000
_BULKY: Final = frozenset({"payload", "message"})
"""Not worth a dictionary, statistics or compression."""


@dataclass(slots=True)
class StagedFile:
    """One file, and what a commit says of it. `staged` is its place until then."""

    table: str
    staged: str
    partition: dict[str, str]
    rows: int
    bytes: int
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "staged": self.staged,
            "partition": self.partition,
            "rows": self.rows,
            "bytes": self.bytes,
            "facts": self.facts,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        return cls(**found)


def read_file(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pa.Table:
    """A file's rows. Without threads of Arrow's own: Spark gives a task one core, and has one for each."""
    with pq.ParquetFile(path) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


class TableFileWriter:
    """Takes rows of tables and writes them into files, one at a time for each partition.

    Rows have the partition columns too; they say where a row goes and are left out of the file.
    """

    def __init__(self, staging: str, target_bytes: int) -> None:
        self._staging = Path(staging)
        self._target = target_bytes
        self._open: dict[tuple[str, tuple[str, ...]], _File] = {}
        self.written: list[StagedFile] = []

    def add(self, table: Table, rows: pa.RecordBatch | pa.Table) -> None:
        for partition, part in _partitioned(rows, table.partitions):
            key = (table.name, tuple(partition.values()))
            file = self._open.get(key)
            if file is None:
                file = self._open[key] = _File(self._staging, table, partition)
            file.add(part.select(table.schema.names).cast(table.stored))
            if file.is_full(self._target):
                self.written.append(file.close())
                del self._open[key]

    def close(self) -> list[StagedFile]:
        """Ends all files, durably; gives what was written."""
        for file in self._open.values():
            self.written.append(file.close())
        self._open.clear()
        return self.written


class _File:
    """A Parquet file that is being written, a row group at a time."""

    def __init__(self, staging: Path, table: Table, partition: dict[str, str]) -> None:
        self._table = table
        self._partition = partition
        self._path = staging / f"{table.name.replace('/', '-')}-{secrets.token_hex(8)}.parquet"
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._stored = self.rows = 0
        self._facts = _Facts()
        names = [name for name in table.schema.names if name not in _BULKY]
        with write_errors(self._path):
            staging.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Private from the start; Arrow opens what is there.
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._writer = pq.ParquetWriter(
                str(self._path),
                table.stored,
                compression={name: "NONE" if name in _BULKY else "ZSTD" for name in _leaves(table.stored)},
                use_dictionary=[name for name in names if pa.types.is_string(table.schema.field(name).type)],
                write_statistics=[name for name in _leaves(table.stored) if name not in _BULKY],
            )

    def add(self, rows: pa.Table) -> None:
        self._facts.see(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._waiting_rows += len(rows)
        self.rows += len(rows)
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            with write_errors(self._path):
                self._writer.write_table(pa.concat_tables(self._waiting))
                self._stored = self._path.stat().st_size
            self._waiting = []
            self._waiting_bytes = self._waiting_rows = 0

    def is_full(self, target_bytes: int) -> bool:
        """Goes by what is on the disk: compression makes a tenth of what rows take in memory."""
        if self._stored + self._waiting_bytes < target_bytes:
            return False
        self._flush()
        return self._stored >= target_bytes * 3 // 4

    def close(self) -> StagedFile:
        self._flush()
        with write_errors(self._path):
            self._writer.close()
            sync_file(self._path)
        return StagedFile(
            self._table.name,
            str(self._path),
            self._partition,
            self.rows,
            self._path.stat().st_size,
            self._facts.to_json(),
        )


class _Facts:
    """What a planner wants to know of a file without opening it: where its sequences and times begin and
    end."""

    def __init__(self) -> None:
        self._bounds: dict[str, list[int]] = {}
        self._payload_bytes = 0

    def see(self, rows: pa.Table) -> None:
        names = rows.schema.names
        if "payload_bytes" in names and "epoch" in names:
            self._payload_bytes += int(np.nansum(_numbers(rows, "payload_bytes")))
        for name in ("epoch", "seq", "receive_time_ns"):
            if name in names and len(rows):
                values = _numbers(rows, name)
                low, high = int(values.min()), int(values.max())
                before = self._bounds.setdefault(name, [low, high])
                before[0], before[1] = min(before[0], low), max(before[1], high)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(self._bounds)
        if self._payload_bytes:
            found["payload_bytes"] = self._payload_bytes
        return found


def _numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows[name].drop_null().to_numpy()
    return found if len(found) else np.zeros(1, np.int64)


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns as Parquet counts them, by their dotted paths."""
    found: list[str] = []

    def walk(kind: pa.DataType, path: str) -> None:
        if pa.types.is_list(kind):
            walk(kind.value_type, f"{path}.list.element")
        elif pa.types.is_map(kind):
            walk(kind.key_type, f"{path}.key_value.key")
            walk(kind.item_type, f"{path}.key_value.value")
        elif pa.types.is_struct(kind):
            for one in kind:
                walk(one.type, f"{path}.{one.name}")
        else:
            found.append(path)

    for one in schema:
        walk(one.type, one.name)
    return found


def _partitioned(
    rows: pa.RecordBatch | pa.Table, names: tuple[str, ...]
) -> Iterator[tuple[dict[str, str], pa.Table]]:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not len(table):
        return
    if not names:
        yield {}, table
        return
    values = [table[name].unique().to_pylist() for name in names]
    if all(len(one) == 1 for one in values):
        yield {name: str(one[0]) for name, one in zip(names, values, strict=True)}, table
        return
    for key in itertools.product(*values):
        chosen = functools.reduce(
            pc.and_, (pc.equal(table[name], value) for name, value in zip(names, key, strict=True))
        )
        if len(part := table.filter(chosen)):
            yield {name: str(value) for name, value in zip(names, key, strict=True)}, part


def dates(times_ns: npt.NDArray[np.int64]) -> pa.Array:
    """The day of each time, in UTC, as `2026-03-01`."""
    days, where = np.unique(times_ns // _DAY_NS, return_inverse=True)
    texts = [day_of(int(day) * _DAY_NS) for day in days]
    found: pa.Array = pa.array(texts, pa.string()).take(pa.array(where.reshape(-1)))
    return found


def day_of(time_ns: int) -> str:
    """The day of a time, in UTC: days sort as their names do."""
    return datetime.fromtimestamp(time_ns // _DAY_NS * 86_400, UTC).strftime("%Y-%m-%d")


def moments(times_ns: npt.NDArray[np.int64]) -> pa.Array:
    """Nanoseconds as timestamps, to the microsecond."""
    return pa.array(times_ns // 1_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
