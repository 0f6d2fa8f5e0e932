"""Frames on their way to disk: columns of numbers, and payloads that lie in one arena.

This is what a recorder's native loop hands over. Nothing here copies a payload byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from . import layout
from .dtypes import ITEM_BYTES, MAX_DIMS, NAMES, ORDERS
from .view import tensors_fit

NO_TIMESTAMP: Final = (1 << 64) - 1
"""`publish_timestamp_ns` of a frame that carries none, as on the wire."""
NO_TRACE: Final = 0

_COLUMNS: Final[dict[str, tuple[type[np.generic], int]]] = {
    "seq": (np.uint64, 1),
    "timestamp_ns": (np.uint64, 1),
    "publish_timestamp_ns": (np.uint64, 1),
    "receive_time_ns": (np.int64, 1),
    "meta_version": (np.uint32, 1),
    "trace_id": (np.uint64, 1),
    "dtype": (np.int16, 1),
    "major_order": (np.int16, 1),
    "ndims": (np.uint8, 1),
    "dims": (np.int32, 2),
    "strides": (np.int64, 2),
    "payload_offset": (np.uint64, 1),
    "payload_bytes": (np.uint64, 1),
}


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Frames of one stream and epoch, in the order of their sequences.

    Payloads are packed: the first begins anywhere at a multiple of 64 in `arena`, each next one at the next
    multiple of 64 after the end of the one before. The bytes in between are written to the file as they
    are: keep them zero. `dims` and `strides` have eight columns, of which `ndims` count; strides are in
    bytes, none is 0 for "inferred". Without `crc32c` the checksums are computed when written.
    """

    stream_id: int
    epoch: int
    arena: Any
    """Anything with the buffer protocol, in one run."""
    seq: npt.NDArray[np.uint64]
    timestamp_ns: npt.NDArray[np.uint64]
    publish_timestamp_ns: npt.NDArray[np.uint64]
    receive_time_ns: npt.NDArray[np.int64]
    meta_version: npt.NDArray[np.uint32]
    trace_id: npt.NDArray[np.uint64]
    dtype: npt.NDArray[np.int16]
    major_order: npt.NDArray[np.int16]
    ndims: npt.NDArray[np.uint8]
    dims: npt.NDArray[np.int32]
    strides: npt.NDArray[np.int64]
    payload_offset: npt.NDArray[np.uint64]
    payload_bytes: npt.NDArray[np.uint64]
    crc32c: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def first_seq(self) -> int:
        return int(self.seq[0])

    @property
    def last_seq(self) -> int:
        return int(self.seq[-1])

    @property
    def arena_start(self) -> int:
        return int(self.payload_offset[0])

    @property
    def packed_bytes(self) -> int:
        """Bytes from the first payload to the end of the last, padding of the last included."""
        return layout.aligned(int(self.payload_offset[-1] + self.payload_bytes[-1])) - self.arena_start

    def payload_view(self) -> memoryview:
        """The bytes of all payloads, where they lie; without the padding of the last."""
        end = int(self.payload_offset[-1] + self.payload_bytes[-1])
        return memoryview(self.arena).cast("B")[self.arena_start : end]

    def checksums(self) -> npt.NDArray[np.uint32]:
        if self.crc32c is not None:
            return self.crc32c
        return _native.crc32c_each(self.arena, self.payload_offset, self.payload_bytes)

    def rows(self, start: int, stop: int) -> FrameBatch:
        """Some of the frames, in the same arena."""
        part: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _COLUMNS}
        return replace(self, **part, crc32c=None if self.crc32c is None else self.crc32c[start:stop])

    def problem(self) -> str | None:
        """What makes these frames impossible to record; None if nothing does."""
        count = len(self.seq)
        for name, (kind, ndim) in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != kind or column.ndim != ndim or len(column) != count:
                return f"column {name} is not {count} rows of {np.dtype(kind)}"
        if self.dims.shape[1] != MAX_DIMS or self.strides.shape[1] != MAX_DIMS:
            return f"dims and strides need {MAX_DIMS} columns"
        if self.crc32c is not None and (self.crc32c.dtype != np.uint32 or self.crc32c.shape != (count,)):
            return f"column crc32c is not {count} rows of uint32"
        if count == 0:
            return None
        if (self.seq[1:] <= self.seq[:-1]).any():
            return "sequences do not grow"
        return self._tensor_problem() or self._arena_problem()

    def _tensor_problem(self) -> str | None:
        known = np.isin(self.dtype, list(NAMES))
        if not known.all():
            return f"element type {self.dtype[~known][0]} is not in the registry"
        if not np.isin(self.major_order, list(ORDERS)).all():
            return "the major order is neither row (1) nor column (2)"
        if (self.ndims == 0).any() or (self.ndims > MAX_DIMS).any():
            return f"a tensor has 1 to {MAX_DIMS} dimensions"
        if not tensors_fit(
            self.dims, self.strides, self.ndims, ITEM_BYTES[self.dtype], self.payload_bytes.astype(np.int64)
        ).all():
            return "a tensor reaches beyond its payload"
        return None

    def _arena_problem(self) -> str | None:
        if (self.payload_bytes > layout.MAX_PAYLOAD_BYTES).any():
            return f"a payload is larger than {layout.MAX_PAYLOAD_BYTES} bytes"
        ends = self.payload_offset + self.payload_bytes
        step = np.uint64(layout.ALIGNMENT)
        following = (ends + (step - np.uint64(1))) // step * step
        if self.arena_start % layout.ALIGNMENT or (self.payload_offset[1:] != following[:-1]).any():
            return "payloads are not packed at multiples of 64 bytes"
        if int(ends[-1]) > memoryview(self.arena).nbytes:
            return "a payload ends outside the arena"
        if self.packed_bytes > layout.MAX_PAYLOAD_BYTES:
            return f"payloads of one batch are more than {layout.MAX_PAYLOAD_BYTES} bytes together"
        return None
