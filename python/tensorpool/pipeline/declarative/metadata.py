"""What recordings have beside frames: words about streams, and anchors of clocks. Runs in executors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...recording import Recording
from ..latency import AnchorReader
from ..metadata import Notes, merge_metadata

_ALL_TIME = (-(1 << 62), 1 << 62)


def metadata_rows(root: str, wanted: tuple[int, ...], schema: pa.Schema) -> pa.RecordBatch:
    """A recording's table `metadata`, with the recording's name."""
    with Recording(root) as found:
        rows = found.table("metadata").combine_chunks()
    if wanted:
        rows = rows.filter(pa.array(np.isin(rows["stream_id"].to_numpy(), wanted)))
    rows = rows.append_column("recording", pa.repeat(root, len(rows)))
    columns = [rows[field.name].combine_chunks().cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=1)
def metadata_of(roots: tuple[str, ...]) -> Notes:
    """What was said of each stream by version, over all recordings. Kept for the next batch of a task."""
    found: Notes = {}
    for root in roots:
        with Recording(root) as one:
            found = merge_metadata(found, one.table("metadata").to_pylist())
    return found


@lru_cache(maxsize=1)
def anchors_of(roots: tuple[str, ...]) -> dict[str, list[list[int]]]:
    return {root: AnchorReader(Path(root)).between(*_ALL_TIME) for root in roots}
