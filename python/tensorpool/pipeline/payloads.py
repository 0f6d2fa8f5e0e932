"""Payloads of rows, from where they lie into columns, and back as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BATCH_BYTES: Final = 32 << 20


def inlined(rows: pa.RecordBatch, most_bytes: int = _BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows with a column `payload`, some megabytes at a time."""
    most_bytes = min(most_bytes, _BATCH_BYTES)
    from ..spark.tensors.segments import Segments

    segments = Segments()
    sizes = rows["payload_bytes"].to_numpy()
    ends = np.cumsum(sizes)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + most_bytes, "right")), start + 1)
        part = rows.slice(start, stop - start)
        yield part.append_column("payload", _payloads(part, segments))
        start = stop


def _payloads(rows: pa.RecordBatch, segments: Any) -> pa.Array:
    sizes: npt.NDArray[np.int64] = rows["payload_bytes"].to_numpy()
    at: npt.NDArray[np.int64] = rows["payload_offset"].to_numpy()
    names = rows["segment"].to_pylist()
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    if names[0] == names[-1] and len(set(names)) == 1 and (at == at[0] + offsets[:-1]).all():
        # End to end in the file, as Arrow wants them: they are written from where they lie.
        data = pa.py_buffer(segments.read(names[0], int(at[0]), int(offsets[-1])))
    else:
        packed = np.empty(int(offsets[-1]), np.uint8)
        for name, place, start, size in zip(
            names, at.tolist(), offsets[:-1].tolist(), sizes.tolist(), strict=True
        ):
            packed[start : start + size] = np.frombuffer(segments.read(name, place, size), np.uint8)
        data = pa.py_buffer(packed)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), data])


class Payloads:
    """The bytes of rows, one row at a time: mapped where the row says where, or from the row itself."""

    def __init__(self, rows: pa.RecordBatch, segments: Any) -> None:
        self._segments = segments
        self._is_inline = "payload" in rows.schema.names
        self._sizes = rows["payload_bytes"].to_pylist()
        if self._is_inline:
            self._payload = rows["payload"]
        else:
            self._names = rows["segment"].to_pylist()
            self._at = rows["payload_offset"].to_pylist()

    def __getitem__(self, number: int) -> memoryview:
        """Raises FrameNotRecorded where the segment is gone."""
        if self._is_inline:
            return memoryview(self._payload[number].as_buffer())
        found: memoryview = self._segments.read(self._names[number], self._at[number], self._sizes[number])
        return found


__all__ = ["Payloads", "inlined"]
