"""Work that one task does alone, over all rows. Runs in an executor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..schemas import Table
from ..tasks import Item
from .adapters import rows_of, staged


def align_all(
    batches: Iterable[pa.RecordBatch],
    source: Table,
    work: Callable[[Item], dict[str, Any]],
    item: Item,
    wanted: Table,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """All frames of an alignment's streams at once."""
    bare = [name for name in source.schema.names if name not in ("payload", "metadata")]
    narrow = Table(source.name, pa.schema([source.schema.field(name) for name in bare]), source.partitions)
    with tempfile.TemporaryDirectory() as directory:
        files = [[stream, path] for stream, path in staged(batches, narrow, str(Path(directory) / "in"))]
        result = work({**item, "files": files, "staging": str(Path(directory) / "out")})
        yield from rows_of(result["files"], wanted, schema)
