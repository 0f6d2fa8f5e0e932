"""The engine's own tasks, which take and give files, as functions over Arrow batches. Runs in executors.

So the tables of a declarative project are those that the engine would have made, row by row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..schemas import Table
from ..table_files import StagedFile, TableFileWriter
from ..tasks import Item

_FILE_BYTES = 256 << 20
_ONE_FILE_BYTES = 1 << 60


def staged(rows: Iterable[pa.RecordBatch | pa.Table], table: Table, directory: str) -> list[tuple[int, str]]:
    """The rows as files of a table, each with its stream; 0 for tables that have none."""
    files = TableFileWriter(directory, _FILE_BYTES)
    for batch in rows:
        files.add(table, batch)
    return [(int(one.partition.get("stream_id", 0)), one.staged) for one in files.close()]


def rows_of(files: Iterable[dict[str, Any]], table: Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the files that a task gave for a table, with their partition columns, in the schema."""
    for one in map(StagedFile.from_json, files):
        if one.table != table.name:
            continue
        with pq.ParquetFile(one.staged) as file:
            for batch in file.iter_batches(use_threads=False):
                whole = batch
                for name in table.partitions:
                    value = int(one.partition[name]) if name == "stream_id" else one.partition[name]
                    whole = whole.append_column(name, pa.repeat(value, len(batch)))
                for field in schema:
                    if field.name not in whole.schema.names:
                        whole = whole.append_column(field.name, pa.nulls(len(batch), field.type))
                columns = [whole.column(field.name).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def by_file(
    batches: Iterable[pa.RecordBatch],
    source: Table,
    work: Callable[[Item], dict[str, Any]],
    item: Callable[[int, str, str], Item],
    targets: Iterable[Table],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Does the work on the rows of each stream. `item(stream, path, staging)` says what the task is told."""
    with tempfile.TemporaryDirectory() as directory:
        for stream, path in staged(batches, source, str(Path(directory) / "in")):
            result = work(item(stream, path, str(Path(directory) / "out")))
            for target in targets:
                yield from rows_of(result["files"], target, schema)


def by_stream(
    batches: Iterable[pa.RecordBatch],
    recordings: Sequence[str],
    source: Table,
    work: Callable[[Item], dict[str, Any]],
    item: Callable[[int, list[str], str], Item],
    targets: Iterable[Table],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """The same with all rows of a stream in one call, a file for each recording in the order of these: of two
    that have a frame, the earlier one's is taken."""
    with tempfile.TemporaryDirectory() as directory:
        files = [TableFileWriter(str(Path(directory) / "in"), _ONE_FILE_BYTES) for _ in recordings]
        for batch in batches:
            for name, own in zip(recordings, files, strict=True):
                own.add(source, batch.filter(pc.equal(batch.column("recording"), name)))
        paths: dict[int, list[str]] = {}
        for own in files:
            for one in own.close():
                paths.setdefault(int(one.partition["stream_id"]), []).append(one.staged)
        for stream, given in paths.items():
            result = work(item(stream, given, str(Path(directory) / "out")))
            for target in targets:
                yield from rows_of(result["files"], target, schema)
