"""Frames that are appended one by one wait here until they make a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidFrames
from . import layout
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .dtypes import MAX_DIMS, ORDER_NUMBERS, number_of


class Pending:
    """One stream's frames in an arena of their own. Appending copies the array once."""

    def __init__(self, stream_id: int, *, batch_bytes: int, batch_rows: int) -> None:
        self._stream_id = stream_id
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._arena = np.zeros(0, np.uint8)
        self._end = 0
        self._rows: list[tuple[Any, ...]] = []
        self.epoch = 0
        self.since_ns = 0
        """When the oldest frame came, by the monotonic clock."""

    def __len__(self) -> int:
        return len(self._rows)

    def has_room(self, nbytes: int) -> bool:
        """Whether one more of that size still belongs to this batch."""
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
            self.epoch, self.since_ns = epoch, now_ns
        self._rows.append(
            (
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
                (*_strides(array, order), *(0,) * (MAX_DIMS - array.ndim)),
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
        # An earlier batch may have left its bytes in the padding.
        self._arena[at + nbytes : end] = 0
        self._end = end
        return at

    def batch(self) -> FrameBatch:
        """What waits, as a batch; it goes on waiting until `clear`."""
        columns = list(zip(*self._rows, strict=True))
        u64, i64, i16 = np.uint64, np.int64, np.int16
        return FrameBatch(
            stream_id=self._stream_id,
            epoch=self.epoch,
            arena=self._arena,
            seq=np.array(columns[0], u64),
            timestamp_ns=np.array(columns[1], u64),
            publish_timestamp_ns=np.array(columns[2], u64),
            receive_time_ns=np.array(columns[3], i64),
            meta_version=np.array(columns[4], np.uint32),
            trace_id=np.array(columns[5], u64),
            dtype=np.array(columns[6], i16),
            major_order=np.array(columns[7], i16),
            ndims=np.array(columns[8], np.uint8),
            dims=np.array(columns[9], np.int32),
            strides=np.array(columns[10], i64),
            payload_offset=np.array(columns[11], u64),
            payload_bytes=np.array(columns[12], u64),
        )

    def clear(self) -> None:
        self._rows.clear()
        self._end = 0


def _raw_number(element_type: str, array: npt.NDArray[Any]) -> int:
    number = number_of(element_type)
    if array.dtype.itemsize != 1:
        raise InvalidFrames(f"{element_type} are bytes, and the array is {array.dtype}")
    return number


def _strides(array: npt.NDArray[Any], order: str) -> list[int]:
    """Steps of the contiguous array. Numpy's own may be anything where a dimension is 1 or 0."""
    steps, step = [], array.itemsize
    for size in array.shape[::-1] if order == "row" else array.shape:
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1] if order == "row" else steps
