"""Which rows of a batch an earlier attempt at it has recorded, before it was cut short.

An attempt writes under the stream's lock, so its frames lie right behind where the stream stood before. What
follows them may be someone else's: another query, a recorder. So the bytes decide, and not the count.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..recording import Cursor, Recording

End = tuple[int, int] | None
"""Epoch and sequence of a stream's last frame."""
Mark = tuple[int, int, int, int]
"""Epoch, sequence, bytes and checksum of a frame; the first two are 0 where the sink numbers frames."""


def recorded_rows(
    root: Path, rows: Any, payloads: Any, before: End, end: End, *, has_numbers: bool
) -> npt.NDArray[np.bool_]:
    """Which of a stream's staged rows are in the recording, behind `before`."""
    if end is None or end == before or not len(rows):
        return np.zeros(len(rows), bool)
    marks = [_mark(row, payloads, has_numbers) for row in rows]
    found = _leading(root, int(rows["stream_id"][0]), before, Counter(marks), has_numbers)
    is_in = np.zeros(len(rows), bool)
    for number, mark in enumerate(marks):
        if found[mark]:
            found[mark] -= 1
            is_in[number] = True
    return is_in


def _mark(row: Any, payloads: Any, has_numbers: bool) -> Mark:
    at, size = int(row["at"]), int(row["payload_bytes"])
    crc = _native.crc32c(payloads[int(row["task"])][at : at + size])
    return (int(row["epoch"]), int(row["seq"]), size, crc) if has_numbers else (0, 0, size, crc)


def _leading(
    root: Path, stream_id: int, before: End, wanted: Counter[Mark], has_numbers: bool
) -> Counter[Mark]:
    """The frames behind `before` that are wanted, up to the first that is not."""
    found: Counter[Mark] = Counter()
    after = None if before is None else Cursor(stream_id, *before)
    for _, frames in Recording(root).by_segment(stream_id, after=after):
        for block, rows in frames.runs():
            for row in rows:
                place = (block.epoch, int(block.seq[row])) if has_numbers else (0, 0)
                mark = (*place, int(block.payload_bytes[row]), int(block.crc32c[row]))
                if found[mark] >= wanted[mark]:
                    return found
                found[mark] += 1
    return found
