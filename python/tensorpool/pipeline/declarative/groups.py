"""Rows of one key after the other, out of sorted batches. Runs in executors.

Spark's own grouping of Arrow rows wants to know its input when a pipeline is put together: then nobody does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa


def groups(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of each key; batches are sorted by whole numbers in `keys`."""
    held: list[pa.RecordBatch] = []
    last: tuple[int, ...] | None = None
    for batch in batches:
        if not len(batch):
            continue
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in keys]
        changes = np.zeros(len(batch) - 1, np.bool_)
        for column in columns:
            changes |= np.diff(column) != 0
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(batch)]
        for start, stop in itertools.pairwise(edges):
            key = tuple(int(column[start]) for column in columns)
            if held and key != last:
                yield pa.Table.from_batches(held)
                held = []
            held.append(batch.slice(start, stop - start))
            last = key
    if held:
        yield pa.Table.from_batches(held)
