"""Tensors of a DataFrame as torch's, one after the other or in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MissingPackage
from .rows import to_numpy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def to_torch(df: DataFrame, *, batch_size: int | None = None, **where: Any) -> Iterator[Any]:
    """An iterator of torch tensors, copies that may be written to. With `batch_size` they are stacked.

    Rows come by reference, a partition at a time; this process reads the segments. It has to see them.
    """
    try:
        import torch
    except ImportError:
        raise MissingPackage("torch is not installed: pip install torch") from None
    held: list[Any] = []
    for row in df.toLocalIterator():
        if row["payload_bytes"] is None:
            continue
        # Kept until the next one is there: neighbours share the mapping of their file.
        view = to_numpy(row, **where)
        tensor = torch.from_numpy(np.array(view))
        if batch_size is None:
            yield tensor
            continue
        held.append(tensor)
        if len(held) == batch_size:
            yield torch.stack(held)
            held = []
    if held:
        yield torch.stack(held)
