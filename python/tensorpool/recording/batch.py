"""Batches of frames to be written: number columns, and payloads in one arena. Pure.

`FrameBatch` is what a recorder's native loop hands over; it never copies a payload byte. `BatchBuilder`
collects frames that are appended one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import InvalidFrames
from . import layout
from .tensors import (
    ITEM_BYTES,
    MAX_DIMS,
    NAMES,
    ORDER_NUMBERS,
    ORDERS,
    contiguous_strides,
    number_of,
    tensors_fit,
)

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
    """Frames of one stream and epoch, in order of sequence.

    Payloads are packed: the first begins at any multiple of 64 in `arena`, each following one at the next
    multiple of 64 after the end of its predecessor. The padding between them is written to the file
    unchanged: keep it zero. `dims` and `strides` have eight columns, of which the first `ndims` are used.
    Strides are in bytes and always explicit. Without `crc32c` the checksums are computed when written.
    """

    stream_id: int
    """The stream of all frames."""
    epoch: int
    """The epoch of all frames."""
    arena: Any
    """Any contiguous object with the buffer protocol."""
    seq: npt.NDArray[np.uint64]
    """Sequences, ascending."""
    timestamp_ns: npt.NDArray[np.uint64]
    """When each payload was captured."""
    publish_timestamp_ns: npt.NDArray[np.uint64]
    """When each frame was published; NO_TIMESTAMP if that is not known."""
    receive_time_ns: npt.NDArray[np.int64]
    """When the recorder received each, in nanoseconds since 1970."""
    meta_version: npt.NDArray[np.uint32]
    """The metadata version of each."""
    trace_id: npt.NDArray[np.uint64]
    """The trace of each; NO_TRACE if it has none."""
    dtype: npt.NDArray[np.int16]
    """The number of the element type on the wire."""
    major_order: npt.NDArray[np.int16]
    """The number of the order on the wire: rows or columns first."""
    ndims: npt.NDArray[np.uint8]
    """Dimensions."""
    dims: npt.NDArray[np.int32]
    """Lengths of the dimensions."""
    strides: npt.NDArray[np.int64]
    """Distances between elements of each dimension, in bytes."""
    payload_offset: npt.NDArray[np.uint64]
    """Where each payload begins in `arena`."""
    payload_bytes: npt.NDArray[np.uint64]
    """The length of each payload."""
    crc32c: npt.NDArray[np.uint32] | None = None
    """The checksum of each payload; None: it is computed."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def first_seq(self) -> int:
        """Sequence of the first frame."""
        return int(self.seq[0])

    @property
    def last_seq(self) -> int:
        """Sequence of the last frame."""
        return int(self.seq[-1])

    @property
    def arena_start(self) -> int:
        """Offset of the first payload in the arena."""
        return int(self.payload_offset[0])

    @property
    def packed_bytes(self) -> int:
        """Bytes from the start of the first payload to the end of the last one's padding."""
        return layout.aligned(int(self.payload_offset[-1] + self.payload_bytes[-1])) - self.arena_start

    def payload_view(self) -> memoryview:
        """The part of the arena with all payloads, without the padding of the last one."""
        end = int(self.payload_offset[-1] + self.payload_bytes[-1])
        return memoryview(self.arena).cast("B")[self.arena_start : end]

    def checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32C of each payload."""
        if self.crc32c is not None:
            return self.crc32c
        return _native.crc32c_each(self.arena, self.payload_offset, self.payload_bytes)

    def rows(self, start: int, stop: int) -> FrameBatch:
        """A range of the frames, with the same arena."""
        part = {name: getattr(self, name)[start:stop] for name in _COLUMNS}
        return replace(self, **part, crc32c=None if self.crc32c is None else self.crc32c[start:stop])

    def content_fault(self) -> str | None:
        """Why these frames cannot be recorded; None if they can."""
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
            return "sequences do not increase"
        return self._tensor_fault() or self._arena_fault()

    def _tensor_fault(self) -> str | None:
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
            return "a tensor extends beyond its payload"
        return None

    def _arena_fault(self) -> str | None:
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


class _FrameRow(NamedTuple):
    """The numbers of one appended frame, in the order of the columns of FrameBatch."""

    seq: int
    timestamp_ns: int
    publish_timestamp_ns: int
    receive_time_ns: int
    meta_version: int
    trace_id: int
    dtype: int
    major_order: int
    ndims: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    payload_offset: int
    payload_bytes: int


class BatchBuilder:
    """Collects frames of one stream in its own arena. Adding a frame copies its array once."""

    def __init__(self, stream_id: int, *, batch_bytes: int, batch_rows: int) -> None:
        self._stream_id = stream_id
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._arena = np.zeros(0, np.uint8)
        self._end = 0
        self._rows: list[_FrameRow] = []
        self.epoch = 0
        self.oldest_ns = 0
        """Monotonic time at which the oldest frame was added."""

    def __len__(self) -> int:
        return len(self._rows)

    def has_room(self, nbytes: int) -> bool:
        """Whether a payload of that size still fits into this batch."""
        fits = self._end + layout.aligned(nbytes) <= self._batch_bytes
        return not self._rows or (fits and len(self._rows) < self._batch_rows)

    def add(
        self,
        array: npt.NDArray[Any],
        *,
        epoch: int,
        seq: int,
        timestamp_ns: int,
        publish_timestamp_ns: int | None,
        receive_time_ns: int,
        meta_version: int,
        trace_id: int | None,
        element_type: str | None,
        now_ns: int,
    ) -> None:
        """Copies one frame into the arena. Raises InvalidFrames or UnsupportedDtype."""
        number = number_of(array.dtype)
        if element_type is not None:
            number = _raw_number(element_type, array)
        array = array.reshape(1) if array.ndim == 0 else array
        if array.ndim > MAX_DIMS:
            raise InvalidFrames(f"a tensor has at most {MAX_DIMS} dimensions, not {array.ndim}")
        order = "row"
        if not array.flags.c_contiguous:
            if array.flags.f_contiguous:
                order = "column"
            else:
                array = np.ascontiguousarray(array)
        if array.nbytes > layout.MAX_PAYLOAD_BYTES:
            raise InvalidFrames(f"a payload has at most {layout.MAX_PAYLOAD_BYTES} bytes, not {array.nbytes}")
        at = self._reserve(array.nbytes)
        flat = array.ravel(order="K").view(np.uint8)
        self._arena[at : at + array.nbytes] = flat
        if not self._rows:
            self.epoch, self.oldest_ns = epoch, now_ns
        self._rows.append(
            _FrameRow(
                seq,
                timestamp_ns,
                NO_TIMESTAMP if publish_timestamp_ns is None else publish_timestamp_ns,
                receive_time_ns,
                meta_version,
                NO_TRACE if trace_id is None else trace_id,
                number,
                ORDER_NUMBERS[order],
                array.ndim,
                (*array.shape, *(0,) * (MAX_DIMS - array.ndim)),
                (*contiguous_strides(array.shape, array.itemsize, order), *(0,) * (MAX_DIMS - array.ndim)),
                at,
                array.nbytes,
            )
        )

    def _reserve(self, nbytes: int) -> int:
        at, end = self._end, self._end + layout.aligned(nbytes)
        if end > len(self._arena):
            grown = np.zeros(max(end, min(2 * len(self._arena), self._batch_bytes), 1 << 16), np.uint8)
            grown[:at] = self._arena[:at]
            self._arena = grown
        # An earlier batch may have left its bytes here, and padding must be zero.
        self._arena[at + nbytes : end] = 0
        self._end = end
        return at

    def build(self) -> FrameBatch:
        """The frames so far as a batch. They stay in the builder until `clear`."""
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.array(values, _COLUMNS[name][0])
            for name, values in zip(_FrameRow._fields, zip(*self._rows, strict=True), strict=True)
        }
        return FrameBatch(self._stream_id, self.epoch, self._arena, **columns)

    def clear(self) -> None:
        """Discards the frames; the arena is used again."""
        self._rows.clear()
        self._end = 0


def _raw_number(element_type: str, array: npt.NDArray[Any]) -> int:
    number = number_of(element_type)
    if array.dtype.itemsize != 1:
        raise InvalidFrames(f"elements of type {element_type} are bytes, but the array has {array.dtype}")
    return number
