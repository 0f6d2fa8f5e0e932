"""The files of a pipeline's tables, read some rows at a time. No Spark, no threads, no table in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import MissingPackage

_BATCH_ROWS: Final = 65_536
_DELTA_LOG: Final = "_delta_log"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file, and what the names of its directories say."""

    path: Path
    partition: dict[str, str]

    @property
    def stream_id(self) -> int | None:
        return int(self.partition["stream_id"]) if "stream_id" in self.partition else None

    def open(self) -> pq.ParquetFile:
        # Without threads that read ahead: memory stays small, and nothing outlives the call.
        return pq.ParquetFile(self.path, pre_buffer=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The columns that the file has, in the order that was asked for."""
        with self.open() as file:
            there = set(file.schema_arrow.names)
            chosen = [name for name in columns if name in there]
            yield from file.iter_batches(_BATCH_ROWS, columns=chosen, use_threads=False)


def files_of(directory: Path) -> list[TableFile]:
    """The files that are in a table now, in the order of their names. A table that is not there has none."""
    if (directory / _DELTA_LOG).is_dir():
        paths = _delta_files(directory)
    else:
        paths = [path for path in directory.rglob("*.parquet") if not _is_hidden(path.relative_to(directory))]
    return [TableFile(path, _partition(path.relative_to(directory))) for path in sorted(paths)]


def _delta_files(directory: Path) -> list[Path]:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise MissingPackage(
            f"{directory} is a Delta table: pip install 'aeron-tensorpool[delta]'"
        ) from error
    uris = DeltaTable(str(directory)).file_uris()
    return [Path(unquote(uri.removeprefix("file://"))) for uri in uris]


def _is_hidden(path: Path) -> bool:
    return any(part[:1] in "_." for part in path.parts)


def _partition(path: Path) -> dict[str, str]:
    pairs = (part.partition("=") for part in path.parts[:-1])
    return {name: unquote(value) for name, is_pair, value in pairs if is_pair}
