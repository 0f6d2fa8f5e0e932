"""The tables of a root for SQL: their names in a catalog, the statements that register them, and queries.

Queries run in this process, by the engine that `deltalake` contains: no Spark and no further package. Each
query reads one version of each table, also while a pipeline writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from ..errors import PipelineError
from ..recording.table_store import open_store
from . import marker
from .delta import DeltaTables, require

Using = Literal["delta", "tensorpool"]
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)


def table_name(*parts: str) -> str:
    """The name of a table in a catalog: `silver/aligned/left-right` is `silver_aligned_left_right`."""
    return "_".join(parts).replace("/", "_").replace("-", "_")


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table of a root."""

    table: str
    """Its name below the root, as in `silver/frames`."""
    name: str
    """Its name in SQL, as in `silver_frames`."""
    uri: str
    columns: tuple[str, ...]
    """Names and types, as in `stream_id int64`."""


def list_tables(root: str | os.PathLike[str]) -> list[CatalogTable]:
    """The tables of a root, in order. Raises PipelineError if there is no pipeline."""
    require()
    known, store = marker.read_all(root), open_store(root)
    delta = DeltaTables(store.url)
    found = []
    for name in marker.tables(known):
        table = delta.find(name)
        if table is not None:
            columns = tuple(f"{field.name} {field.type}" for field in pa.schema(table.schema()))
            found.append(CatalogTable(name, table_name(name), _absolute(store.url, name), columns))
    return found


def _absolute(root: str, name: str) -> str:
    return f"{root if '://' in root else os.path.abspath(root)}/{name}"


def create_statements(
    root: str | os.PathLike[str], *, using: Using = "delta", database: str | None = None
) -> Iterator[str]:
    """The statements that register the tables of a root in a catalog of Spark.

    `delta` is for a Spark with the Delta connector; `tensorpool` for any Spark, by this package. `database`:
    the database of the tables, as in `lab` or `catalog.lab`. Raises PipelineError.
    """
    if database is not None and not _NAME.fullmatch(database):
        raise PipelineError(f"{database!r} is not a database; write lab, or catalog.lab")
    url = open_store(root).url
    for table in list_tables(root):
        name = table.name if database is None else f"{database}.{table.name}"
        head = f"CREATE TABLE IF NOT EXISTS {name} USING {using}"
        if using == "delta":
            yield f"{head} LOCATION {_quoted(_for_spark(table.uri))};"
        else:
            location = _quoted(url if "://" in url else os.path.abspath(url))
            yield f"{head} OPTIONS (table {_quoted(table.table)}) LOCATION {location};"


def _for_spark(uri: str) -> str:
    """Spark's connectors call S3 `s3a`."""
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def query(root: str | os.PathLike[str], sql: str) -> Iterator[pa.RecordBatch]:
    """The rows of a SELECT over the tables of a root. Raises PipelineError if the statement is wrong."""
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    delta = DeltaTables(open_store(root).url)
    builder, names = QueryBuilder(), []
    for entry in list_tables(root):
        table = delta.find(entry.table)
        if table is not None:
            builder.register(entry.name, table)
            names.append(entry.name)
    try:
        for batch in builder.execute(sql):
            yield pa.record_batch(batch)
    except (DeltaError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PipelineError(f"{reason}. The tables are {', '.join(names)}") from error
