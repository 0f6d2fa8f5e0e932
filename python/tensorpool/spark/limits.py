"""How a micro-batch's rows and bytes are shared among streams. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class Budget:
    """What one stream may still add to a micro-batch."""

    rows: int = _NO_LIMIT
    bytes: int = _NO_LIMIT
    taken: int = 0

    def fitting(self, sizes: Any) -> int:
        """How many frames fit, given their running sizes. The first frame always does: it has to get on."""
        count = min(self.rows, int(np.searchsorted(sizes, self.bytes, "right")), len(sizes))
        return max(count, 0 if self.taken else 1)

    def take(self, rows: int, size: int) -> None:
        self.rows -= rows
        self.bytes -= size
        self.taken += rows


def shares(
    waiting: Mapping[int, tuple[int, int]], *, max_rows: int | None, max_bytes: int | None, turn: int
) -> dict[int, Budget]:
    """A budget for each stream, in proportion to what waits in it; `waiting` is stream → (rows, bytes).

    Every stream gets one row at least. If there are fewer rows than streams, `turn` says who is first.
    """
    streams = sorted(waiting)
    if max_rows is not None and max_rows < len(streams):
        first = turn % len(streams)
        streams = (streams[first:] + streams[:first])[:max_rows]
    found = {stream: Budget() for stream in streams}
    if max_rows is not None:
        parts = _proportional([waiting[stream][0] for stream in streams], max_rows)
        for stream, rows in zip(streams, parts, strict=True):
            found[stream].rows = rows
    if max_bytes is not None:
        total = sum(waiting[stream][1] for stream in streams)
        for stream in streams:
            found[stream].bytes = max_bytes * waiting[stream][1] // max(total, 1)
    return found


def _proportional(weights: list[int], total: int) -> list[int]:
    """Whole numbers of at least one with this sum, as near to the proportions as they come."""
    spare, whole = total - len(weights), max(sum(weights), 1)
    parts = [1 + spare * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -(spare * weights[i] % whole))
    for number in range(total - sum(parts)):
        parts[order[number % len(order)]] += 1
    return parts
