"""Compaction, the part that runs in executors: files of one partition into fewer."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from .schemas import VERSION_KEY, Table
from .table_files import StagedFile, TableFileWriter

_ROWS: Final = 16_384
_INLINE_ROWS: Final = 64


def merge_files(item: dict[str, Any]) -> dict[str, Any]:
    """The work of one task. Rows stay in the order of the files; files of another schema or version stay
    apart."""
    written: list[StagedFile] = []
    files: TableFileWriter | None = None
    before: Table | None = None
    for path in item["files"]:
        with pq.ParquetFile(path) as file:
            table = _table(item["table"], file.schema_arrow)
            if files is None or table != before:
                written += [] if files is None else files.close()
                files, before = TableFileWriter(item["staging"], item["target_bytes"]), table
            is_inline = "payload" in table.schema.names
            for batch in file.iter_batches(_INLINE_ROWS if is_inline else _ROWS, use_threads=False):
                files.add(table, batch)
    written += [] if files is None else files.close()
    return {"files": [one.to_json() for one in written]}


def _table(name: str, schema: pa.Schema) -> Table:
    """As the file has it: a table's definition may have changed since."""
    version = (schema.metadata or {}).get(VERSION_KEY)
    return Table(name, schema.remove_metadata(), of_version=None if version is None else int(version))
