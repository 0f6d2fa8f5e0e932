"""Layout of a record batch (positions of its columns) and the tensors that its rows describe. Pure.

Nearly all batches of a stream have the same layout and describe the same tensors. So both are decoded and
validated once, and reused for every batch with the same bytes. Layouts are also shared between the readers of
a process.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .arrow_format import FRAMES, ColumnIndex
from .tensors import ITEM_BYTES, MAX_DIMS, NAMES, NUMBERS, NUMPY, ORDER_NUMBERS, tensors_fit

if TYPE_CHECKING:
    from .segment_file import BatchLocation

# Column and number of the buffer within it, in the order in which `TensorTable` takes them.
TENSOR_BUFFERS: Final = (
    ("dtype", 1), ("dtype", 2),
    ("shape", 1), ("shape", 3),
    ("strides", 1), ("strides", 3),
    ("major_order", 1), ("major_order", 2),
    ("payload_bytes", 1), ("payload", 1),
)  # fmt: skip
_REQUIRED: Final = tuple(field.name for field in FRAMES if not field.nullable)
_NUMBERS: Final = tuple(field.name for field in FRAMES if pa.types.is_integer(field.type))
# The layout of a longer batch takes too much memory to be kept for the whole process.
_MAX_SHARED_ROWS: Final = 1024


class BufferRange(NamedTuple):
    """Position of a buffer in a batch's body."""

    start: int
    length: int


class _Node(NamedTuple):
    """Length and null count of a column."""

    length: int
    nulls: int


class TensorSpec(NamedTuple):
    """Shape, element type and strides (in bytes) of a tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


class StackedTensors(NamedTuple):
    """All tensors of a batch as one array that begins at `offset` of the payload buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


class InvalidBatch(Exception):
    """A batch that contradicts itself, or whose views would reach memory outside of it."""


class TensorTable:
    """Element type, shape, strides and payload position of every row of a batch."""

    def __init__(self, rows: int, buffers: list[bytes], payload_space: int) -> None:
        """`buffers` are those of TENSOR_BUFFERS; `payload_space` is the size of the payload buffer."""
        (
            type_ends, type_names, shape_ends, dims, stride_ends, strides, order_ends, order_names,
            payload_sizes, payload_ends,
        ) = buffers  # fmt: skip
        self.dtype = _enum_column(rows, type_ends, type_names, NUMBERS, "element type")
        self.major_order = _enum_column(rows, order_ends, order_names, ORDER_NUMBERS, "major order")
        ends = _offsets(rows, shape_ends)
        counts = np.diff(ends)
        if not np.array_equal(ends, _offsets(rows, stride_ends)):
            raise InvalidBatch("shape and strides differ in length")
        if counts.min() < 1 or counts.max() > MAX_DIMS:
            raise InvalidBatch(f"a tensor does not have 1 to {MAX_DIMS} dimensions")
        self.ndims = counts.astype(np.uint8)
        self.dims: npt.NDArray[np.int32] = self._table(ends, dims, np.int32)
        self.strides: npt.NDArray[np.int64] = self._table(ends, strides, np.int64)
        self.payload_bytes = _fixed_column(rows, payload_sizes, np.int64)
        at = _offsets(rows, payload_ends)
        self.payload_offset = at[:-1].astype(np.int64)
        """Start of each payload, relative to the start of the payload buffer."""
        if at[-1] > payload_space or (self.payload_bytes > np.diff(at)).any() or self.payload_bytes.min() < 0:
            raise InvalidBatch("a payload is longer than its part of the payload buffer")
        if not tensors_fit(
            self.dims, self.strides, self.ndims, ITEM_BYTES[self.dtype], self.payload_bytes
        ).all():
            raise InvalidBatch("a tensor extends beyond its payload")

    def _table(self, ends: npt.NDArray[np.int32], values: bytes, kind: type[Any]) -> npt.NDArray[Any]:
        table = np.zeros((len(self.ndims), MAX_DIMS), kind)
        read = np.frombuffer(values[: len(values) // table.itemsize * table.itemsize], kind)
        if ends[-1] > len(read):
            raise InvalidBatch("shape or strides are truncated")
        table[np.arange(MAX_DIMS) < self.ndims[:, None]] = read[ends[0] : ends[-1]]
        return table

    @cached_property
    def common(self) -> TensorSpec | None:
        """Shape, element type and strides of all rows; None if they differ."""
        columns = (self.ndims, self.dims, self.strides, self.dtype)
        return self._row(0) if all((column == column[0]).all() for column in columns) else None

    @cached_property
    def stacked(self) -> StackedTensors | None:
        """All rows as one array; None if they differ, or their payloads are not evenly spaced."""
        if self.common is None:
            return None
        shape, dtype, strides = self.common
        steps = np.diff(self.payload_offset)
        step = int(steps[0]) if len(steps) else 0
        if (steps != step).any():
            return None
        return StackedTensors(
            int(self.payload_offset[0]), (len(self.payload_offset), *shape), dtype, (step, *strides)
        )

    def _row(self, row: int) -> TensorSpec:
        used = int(self.ndims[row])
        shape, strides = self.dims[row, :used].tolist(), self.strides[row, :used].tolist()
        return TensorSpec(tuple(shape), NUMPY[NAMES[int(self.dtype[row])]], tuple(strides))

    def tensor(self, row: int) -> TensorSpec:
        """Shape, element type and strides of a row."""
        return self.common or self._row(row)


def _fixed_column(count: int, content: bytes, kind: type[Any]) -> npt.NDArray[Any]:
    if len(content) < count * np.dtype(kind).itemsize:
        raise InvalidBatch("a column is truncated")
    return np.frombuffer(content, kind, count)


def _offsets(rows: int, content: bytes) -> npt.NDArray[np.int32]:
    """The offsets of a column of variable-length values. They must not decrease."""
    offsets = _fixed_column(rows + 1, content, np.int32)
    if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
        raise InvalidBatch("offsets decrease")
    return offsets


def _enum_column(
    rows: int, offsets: bytes, text: bytes, numbers: dict[str, int], what: str
) -> npt.NDArray[np.int16]:
    """The numbers of a column of names."""
    ends = _offsets(rows, offsets)
    if ends[-1] > len(text):
        raise InvalidBatch("a column is truncated")
    size, start = int(ends[1] - ends[0]), int(ends[0])
    first = text[start : start + size]
    if text[start : int(ends[-1])] == first * rows and (np.diff(ends) == size).all():
        # All rows have the same name, as nearly always.
        names = [first]
    else:
        names = [text[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    known = {name.encode(): number for name, number in numbers.items()}
    if unknown := set(names) - known.keys():
        raise InvalidBatch(f"{what} {min(unknown)!r} is not in the registry")
    return np.full(rows, [known[name] for name in names], np.int16)


class LayoutKey(NamedTuple):
    """The part of a batch that determines its layout: row count, body size, node and buffer tables."""

    rows: int
    body_bytes: int
    nodes: bytes
    buffers: bytes


class BatchLayout:
    """Positions of a batch's buffers. All positions are relative to the start of the batch's body."""

    def __init__(self, key: LayoutKey, columns: Mapping[str, ColumnIndex]) -> None:
        self.key = key
        self.nodes = [_Node(*pair) for pair in struct.iter_unpack("<qq", key.nodes)]
        self.buffers = [BufferRange(*pair) for pair in struct.iter_unpack("<qq", key.buffers)]
        self._columns = columns
        self._validate(key.rows, key.body_bytes)
        self.payloads_at, self.payloads_bytes = self.buffer("payload", 2)
        self.versions_at = self.buffer("meta_version", 1).start
        self._tensor_buffers = [self.buffer(name, number) for name, number in TENSOR_BUFFERS]
        self._last_tensors: tuple[bytes, TensorTable] | None = None
        """Tensors of the last batch with this layout: the next one nearly always describes the same."""

    def _validate(self, rows: int, body_bytes: int) -> None:
        columns, nodes, buffers = self._columns, self.nodes, self.buffers
        for start, length in buffers:
            if start < 0 or length < 0 or start + length > body_bytes:
                raise InvalidBatch("a buffer lies outside its batch")
        for name in _REQUIRED:
            if nodes[columns[name].node] != (rows, 0):
                raise InvalidBatch(f"column {name} has nulls, or another length than the batch")
        for name in _NUMBERS:
            node, validity = nodes[columns[name].node], buffers[columns[name].buffer]
            values = buffers[columns[name].buffer + 1]
            if values.length < 8 * rows or node.length != rows:
                raise InvalidBatch(f"column {name} is truncated")
            if node.nulls and 8 * validity.length < rows:
                raise InvalidBatch(f"column {name} is truncated")

    def buffer(self, name: str, number: int) -> BufferRange:
        """Position of a column's buffer."""
        return self.buffers[self._columns[name].buffer + number]

    def nulls(self, name: str) -> int:
        """Null count of a column."""
        return self.nodes[self._columns[name].node].nulls

    def read_tensors(self, body: memoryview, rows: int) -> TensorTable:
        """The tensors that the rows of a batch describe. Raises InvalidBatch."""
        content = b"".join([body[start : start + length] for start, length in self._tensor_buffers])
        # Read once: another thread may replace it meanwhile.
        last = self._last_tensors
        if last is None or last[0] != content:
            buffers = [bytes(body[start : start + length]) for start, length in self._tensor_buffers]
            last = self._last_tensors = content, TensorTable(rows, buffers, self.payloads_bytes)
        return last[1]


@lru_cache(32)
def _shared_layout(key: LayoutKey, columns: tuple[tuple[str, ColumnIndex], ...]) -> BatchLayout:
    return BatchLayout(key, dict(columns))


class LayoutCache:
    """Reads the layouts of a segment's batches and keeps the last one."""

    def __init__(self, columns: Mapping[str, ColumnIndex], nodes: int, buffers: int) -> None:
        self._columns = tuple(columns.items())
        self._node_bytes, self._buffer_bytes = 16 * nodes, 16 * buffers
        self._last: BatchLayout | None = None

    def get(self, data: memoryview, location: BatchLocation) -> BatchLayout:
        """The layout of a batch. Raises InvalidBatch."""
        key = LayoutKey(
            location.rows,
            location.end - location.body,
            bytes(data[location.nodes_at : location.nodes_at + self._node_bytes]),
            bytes(data[location.buffers_at : location.buffers_at + self._buffer_bytes]),
        )
        if self._last is None or self._last.key != key:
            make = _shared_layout if location.rows <= _MAX_SHARED_ROWS else _shared_layout.__wrapped__
            self._last = make(key, self._columns)
        return self._last
