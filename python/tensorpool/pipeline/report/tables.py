"""The files of a pipeline's tables, read in batches, without Spark and without threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...recording.table_store import TableStore
from ..delta import DeltaTables, require

_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file, with the figures of the table's log."""

    store: TableStore
    name: str
    rows: int
    bytes: int

    def open(self) -> pq.ParquetFile:
        """Opens the file. The caller closes it."""
        # Without read-ahead threads: they use memory, and may outlive the call.
        return pq.ParquetFile(self.store.source(self.name), pre_buffer=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of those of the columns that the file has, in the given order."""
        with self.open() as file:
            there = set(file.schema_arrow.names)
            chosen = [name for name in columns if name in there]
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen, use_threads=False):
                yield batch.select(chosen)


def files_of(store: TableStore, table: str) -> list[TableFile] | None:
    """The current files of a table, in the order of their names; None if the table does not exist."""
    require()
    found = DeltaTables(store.url).find(table)
    if found is None:
        return None
    actions = pa.table(found.get_add_actions(flatten=True)).select(["path", "size_bytes", "num_records"])
    files = []
    for action in sorted(actions.to_pylist(), key=lambda entry: str(entry["path"])):
        name = f"{table}/{unquote(action['path'])}"
        rows = action["num_records"]
        if rows is None:
            with pq.ParquetFile(store.source(name)) as file:
                rows = file.metadata.num_rows
        files.append(TableFile(store, name, int(rows), int(action["size_bytes"])))
    return files


def by_stream(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each stream."""
    streams = rows.column("stream_id")
    values = streams.unique().to_pylist()
    for stream in values:
        yield stream, rows if len(values) == 1 else rows.filter(pc.equal(streams, stream))
