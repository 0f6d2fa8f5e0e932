"""Delta tables, through the package `deltalake`: no jar, whatever the version of Spark.

A transaction carries the pipeline's id and the number of its decision. So a decision that is replayed, by the
same process or by another one at the same time, is in a table once: the table's log refuses a second
transaction of the same number.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import quote, unquote

import pyarrow as pa

from ..errors import MissingPackage, PipelineError
from .schemas import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_TRIES: Final = 20
_HOUR_NS: Final = 3_600_000_000_000
_VACUUM_LAG_HOURS: Final = 72
"""With `compact = "days"` files are removed once a day, and the day that a file is due may just be missed."""
LOG: Final = "_delta_log"
_NAMED_FILE: Final = re.compile(r"([^.]+)\.b\d{8,}-[0-9a-f]+\.parquet")


def require() -> None:
    """Raises MissingPackage if the package for Delta tables is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise MissingPackage("tables need a package: pip install 'aeron-tensorpool[delta]'") from error


class DataFileJson(TypedDict):
    """A `DataFile` as JSON."""

    table: str
    path: str
    rows: int
    bytes: int
    date: str | None
    bounds: dict[str, tuple[Any, Any]]
    nulls: dict[str, int]
    payload_bytes: int


@dataclass(slots=True)
class DataFile:
    """A file of a table, as its decision and the log of the table name it."""

    table: str
    path: str
    """Below the directory of the table."""
    rows: int
    bytes: int
    date: str | None
    """The partition, as in `2026-03-01`; None if the table is not partitioned."""
    bounds: dict[str, tuple[Any, Any]]
    """The smallest and the largest value of columns; without it a reader opens the file to find out."""
    nulls: dict[str, int]
    payload_bytes: int = 0

    def to_json(self) -> DataFileJson:
        """The file as JSON."""
        return {
            "table": self.table,
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            "date": self.date,
            "bounds": self.bounds,
            "nulls": self.nulls,
            "payload_bytes": self.payload_bytes,
        }

    @classmethod
    def from_json(cls, values: DataFileJson) -> DataFile:
        """The file of a decision."""
        bounds = {name: (low, high) for name, (low, high) in values["bounds"].items()}
        return cls(
            values["table"],
            values["path"],
            values["rows"],
            values["bytes"],
            values["date"],
            bounds,
            values["nulls"],
            values.get("payload_bytes", 0),
        )

    def statistics(self) -> str:
        """The statistics of the log."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: low for name, (low, _) in self.bounds.items()},
                "maxValues": {name: high for name, (_, high) in self.bounds.items()},
                "nullCount": self.nulls,
            }
        )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table, as its log has it."""

    path: str
    """Below the directory of the table."""
    bytes: int
    rows: int
    date: str | None
    times: tuple[int | None, int | None]
    """The smallest and the largest receive time; None if the log does not have it."""


@dataclass(slots=True)
class CompactionResult:
    """The numbers of a table's merged files, and of the files written instead."""

    before: int = 0
    after: int = 0

    def to_json(self) -> dict[str, int]:
        """The result as JSON values."""
        return {"before": self.before, "after": self.after}


class DeltaTables:
    """The tables below a root. Keeps them open, so that a commit reads only what is new in a log."""

    def __init__(self, root: str, *, retain_ns: int | None = None) -> None:
        """`retain_ns`: how long the tables keep their past; None leaves that as it is."""
        self._root = root.rstrip("/")
        self._properties = {} if retain_ns is None else _retention(retain_ns)
        self._open: dict[str, DeltaTable] = {}

    def uri(self, name: str) -> str:
        """Where a table is."""
        return f"{self._root}/{name}"

    def find(self, name: str) -> DeltaTable | None:
        """The table as it is now; None if it does not exist."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        table = self._open.get(name)
        if table is not None:
            table.update_incremental()
            return table
        try:
            table = DeltaTable(self.uri(name))
        except (TableNotFoundError, FileNotFoundError):
            return None
        self._open[name] = table
        return table

    def prepare(self, table: Table) -> DeltaTable:
        """The table with the columns of the definition; creates it, and adds columns to it.

        Raises PipelineError if a column has another type in the table.
        """
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        found = self.find(table.name)
        if found is None:
            if "://" not in self._root:
                os.makedirs(self.uri(table.name), mode=0o700, exist_ok=True)
            try:
                found = DeltaTable.create(
                    self.uri(table.name),
                    table.shared,
                    mode="ignore",
                    partition_by=list(table.partitions),
                    configuration=self._properties,
                )
            except DeltaError:
                # Another process has created it at the same moment.
                found = DeltaTable(self.uri(table.name))
            self._open[table.name] = found
            found.update_incremental()
        present = {field.name: field for field in pa.schema(found.schema()).remove_metadata()}
        missing = []
        for field in Schema.from_arrow(table.shared).fields:
            column = table.shared.field(field.name)
            if field.name not in present:
                missing.append(field)
            elif not _same(present[field.name].type, column.type):
                raise PipelineError(
                    f"column {field.name} of {self.uri(table.name)} is {present[field.name].type}, and the "
                    f"definition makes it {column.type}: a column keeps its type. Give the new column "
                    "another name, or the function a new name, which is a new table"
                )
        if missing:
            found.alter.add_columns(missing)
            found.update_incremental()
        return found

    def set_retention(self, name: str) -> None:
        """Changes how long a prepared table keeps its past, if it is another time than the given one."""
        from deltalake.exceptions import CommitFailedError

        table = self._open[name]
        if self._properties.items() <= table.metadata().configuration.items():
            return
        # Of two processes that change it at the same moment, one is enough.
        with contextlib.suppress(CommitFailedError):
            table.alter.set_table_properties(self._properties)
        self._open.pop(name, None)

    def commit(
        self,
        table: Table,
        files: Sequence[DataFile],
        *,
        app: str,
        number: int,
        replace: bool,
        pipeline: str | None = None,
    ) -> None:
        """Adds files to a table, or replaces those of the pipeline; not if the decision is in the table."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        for attempt in range(_TRIES):
            try:
                target = self.prepare(table)
                # Both are of one version of the table: the files of a later one could be those of a commit
                # that the check has not seen.
                done, present = target.transaction_version(app), _stored_files(target) if replace else []
                if done is not None and done >= number:
                    return
                now_ms = time.time_ns() // 1_000_000
                actions: list[AddAction | RemoveAction] = [_added(file, now_ms) for file in files]
                actions += [_removed(file, now_ms) for file in present if pipeline_of(file.path) == pipeline]
                target.create_write_transaction(
                    actions,
                    "append",
                    pa.schema(target.schema()),
                    list(table.partitions),
                    commit_properties=CommitProperties(app_transactions=[Transaction(app, number)]),
                )
            except CommitFailedError:
                # Another process changed the table at the same moment, or committed this very decision.
                self._open.pop(table.name, None)
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.02 * attempt)
            else:
                return

    def files(self, name: str) -> list[StoredFile]:
        """The files of a table as it is now; none if it does not exist."""
        table = self.find(name)
        return [] if table is None else _stored_files(table)

    def replace(self, table: Table, old: Sequence[StoredFile], new: Sequence[DataFile]) -> bool:
        """Replaces files of a table in one transaction. False if one of them is no longer in the table."""
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [_removed(file, now_ms) for file in old]
        actions += [_added(file, now_ms) for file in new]
        if not actions:
            return True
        for attempt in range(_TRIES):
            target = self.prepare(table)
            if not {file.path for file in old} <= {file.path for file in self.files(table.name)}:
                return False
            try:
                # Without attempts of the library's own: it would not notice that a file was merged meanwhile.
                target.create_write_transaction(
                    actions,
                    "append",
                    pa.schema(target.schema()),
                    list(table.partitions),
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                self._open.pop(table.name, None)
                time.sleep(0.02 * attempt)
            else:
                return True
        return False

    def compact(
        self, name: str, target_bytes: int, *, before: str | None = None, since: str | None = None
    ) -> CompactionResult:
        """Merges the small files of a table, of the days before and since the given ones."""
        table = self.find(name)
        if table is None:
            return CompactionResult()
        from deltalake.exceptions import CommitFailedError

        filters: list[tuple[str, str, str]] = []
        if "date" in table.metadata().partition_columns:
            filters += [("date", "<", before)] if before is not None else []
            filters += [("date", ">=", since)] if since is not None else []
        try:
            # One merge at a time: merges use memory, which the tasks of Spark need as well.
            metrics = table.optimize.compact(
                partition_filters=filters or None,
                target_size=target_bytes,
                max_concurrent_tasks=1,
            )
        except CommitFailedError:
            # Another process merges the same files. The next time will do.
            self._open.pop(name, None)
            return CompactionResult()
        return CompactionResult(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def vacuum(self, name: str, retain_ns: int, *, unreferenced: bool = False) -> int:
        """Removes merged files after the retention. `unreferenced`: also files that no transaction names.

        The caller has replayed the last decision: its files would be among them.
        """
        table = self.find(name)
        if table is None:
            return 0
        hours = max(-(-retain_ns // _HOUR_NS), 0)
        removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=unreferenced)
        table.create_checkpoint()
        table.cleanup_metadata()
        return len(removed)


def _retention(retain_ns: int) -> dict[str, str]:
    """Properties of a table whose past is kept for some time.

    The library removes older entries of the log, and forgets removed files. It forgets them later than
    `vacuum` removes them: a file that no log names stays for good.
    """
    hours = -(-retain_ns // _HOUR_NS)
    return {
        "delta.logRetentionDuration": f"interval {hours} hours",
        "delta.deletedFileRetentionDuration": f"interval {hours + _VACUUM_LAG_HOURS} hours",
    }


def _added(file: DataFile, now_ms: int) -> AddAction:
    from deltalake.transaction import AddAction

    partition = {} if file.date is None else {"date": file.date}
    return AddAction(file.path, file.bytes, partition, now_ms, True, file.statistics())


def _removed(file: StoredFile, now_ms: int) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    partition: dict[str, str | None] = {} if file.date is None else {"date": file.date}
    return RemoveAction(quote(file.path, safe="/="), True, now_ms, file.bytes, partition)


def file_name(pipeline: str | None, number: int) -> str:
    """A new name for a file of decision `number`; it distinguishes the files of several pipelines."""
    own = f"b{number:08}-{secrets.token_hex(8)}.parquet"
    # The name of a pipeline has no dot.
    return own if pipeline is None else f"{pipeline}.{own}"


def pipeline_of(path: str) -> str | None:
    """The name of the pipeline that has written a file; None for the one without a name."""
    match = _NAMED_FILE.fullmatch(path.rpartition("/")[2])
    return None if match is None else match[1]


def _same(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether two types are one type in a Delta table, whose names of list elements and keys vary."""
    if pa.types.is_list(declared) or pa.types.is_large_list(declared):
        return (pa.types.is_list(stored) or pa.types.is_large_list(stored)) and _same(
            stored.value_type, declared.value_type
        )
    if pa.types.is_map(declared):
        return pa.types.is_map(stored) and _same(stored.item_type, declared.item_type)
    if pa.types.is_struct(declared):
        return pa.types.is_struct(stored) and all(
            stored.get_field_index(field.name) >= 0 and _same(stored.field(field.name).type, field.type)
            for field in declared
        )
    plain = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(plain.get(stored, stored) == declared)


def bound_of(value: Any, *, is_high: bool) -> Any:
    """A value for the statistics of a log: whole milliseconds, outwards, for a time."""
    if isinstance(value, datetime):
        micros = value.microsecond
        value = value.astimezone(UTC).replace(microsecond=0)
        millis = micros // 1_000 + (1 if is_high and micros % 1_000 else 0)
        text = datetime.fromtimestamp(value.timestamp() + millis // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{text}.{millis % 1_000:03}Z"
    return value.isoformat() if isinstance(value, date) else value


def _stored_files(table: DeltaTable) -> list[StoredFile]:
    """The files of the version that the table is at."""
    found = []
    for entry in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        day = entry.get("partition.date")
        times = entry.get("min.receive_time_ns"), entry.get("max.receive_time_ns")
        path, size, rows = unquote(entry["path"]), entry["size_bytes"], entry["num_records"] or 0
        found.append(StoredFile(path, size, rows, None if day is None else str(day), times))
    return sorted(found, key=lambda file: file.path)
