"""What the rows of a batch say of their tensors: type, shape, strides, and where the payloads are.

Nearly all batches of a stream say the same. So the description is read and checked once, and taken again
for a batch that has the very same bytes.

Where the columns of a batch lie, and that all of it fits together.

Nearly all batches of a recording have the same form. So it is read and checked once, and taken again for a
batch whose tables of columns and buffers are the very same bytes, also by other readers of this process.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .arrow_format import FRAMES
from .tensors import ITEM_BYTES, MAX_DIMS, NAMES, NUMBERS, NUMPY, ORDER_NUMBERS, tensors_fit

if TYPE_CHECKING:
    from .segment_file import BatchLocation

# Column and number of the buffer within it, in the order in which `Tensors` takes them.
SOURCES: Final = (
    ("dtype", 1), ("dtype", 2),
    ("shape", 1), ("shape", 3),
    ("strides", 1), ("strides", 3),
    ("major_order", 1), ("major_order", 2),
    ("payload_bytes", 1), ("payload", 1),
)  # fmt: skip


class InvalidBatch(Exception):
    """A description that contradicts itself, or would let a view reach foreign memory."""


class TensorTable:
    """The description of every row of a batch."""

    def __init__(self, rows: int, sources: list[bytes], payload_room: int) -> None:
        types, names, lists, dims, other_lists, strides, order_at, orders, sizes, places = sources
        self.dtype = _words(rows, types, names, NUMBERS, "element type")
        self.major_order = _words(rows, order_at, orders, ORDER_NUMBERS, "major order")
        ends = _offsets(rows, lists)
        counts = np.diff(ends)
        if not np.array_equal(ends, _offsets(rows, other_lists)):
            raise InvalidBatch("shape and strides differ in length")
        if counts.min() < 1 or counts.max() > MAX_DIMS:
            raise InvalidBatch(f"a tensor has not 1 to {MAX_DIMS} dimensions")
        self.ndims = counts.astype(np.uint8)
        self.dims: npt.NDArray[np.int32] = self._table(ends, dims, np.int32)
        self.strides: npt.NDArray[np.int64] = self._table(ends, strides, np.int64)
        self.payload_bytes = _fixed(rows, sizes, np.int64)
        at = _offsets(rows, places)
        self.payload_at = at[:-1].astype(np.int64)
        """Where each payload begins, from the beginning of the first one's buffer."""
        if at[-1] > payload_room or (self.payload_bytes > np.diff(at)).any() or self.payload_bytes.min() < 0:
            raise InvalidBatch("a payload is longer than its place")
        if not tensors_fit(
            self.dims, self.strides, self.ndims, ITEM_BYTES[self.dtype], self.payload_bytes
        ).all():
            raise InvalidBatch("a tensor reaches beyond its payload")

    def _table(self, ends: npt.NDArray[np.int32], values: bytes, kind: type[Any]) -> npt.NDArray[Any]:
        table = np.zeros((len(self.ndims), MAX_DIMS), kind)
        read = np.frombuffer(values[: len(values) // table.itemsize * table.itemsize], kind)
        if ends[-1] > len(read):
            raise InvalidBatch("shape or strides are cut off")
        table[np.arange(MAX_DIMS) < self.ndims[:, None]] = read[ends[0] : ends[-1]]
        return table

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]] | None:
        """Shape, element type and strides, if all rows have the same."""
        columns = (self.ndims, self.dims, self.strides, self.dtype)
        return self._row(0) if all((column == column[0]).all() for column in columns) else None

    @cached_property
    def even(self) -> tuple[int, tuple[int, ...], np.dtype[Any], tuple[int, ...]] | None:
        """Where the first payload begins, and shape, element type and strides of all rows stacked; None if
        they are not alike, or do not lie evenly."""
        if self.alike is None:
            return None
        shape, dtype, strides = self.alike
        steps = np.diff(self.payload_at)
        step = int(steps[0]) if len(steps) else 0
        if (steps != step).any():
            return None
        return int(self.payload_at[0]), (len(self.payload_at), *shape), dtype, (step, *strides)

    def _row(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]:
        used = int(self.ndims[row])
        shape, strides = self.dims[row, :used].tolist(), self.strides[row, :used].tolist()
        return tuple(shape), NUMPY[NAMES[int(self.dtype[row])]], tuple(strides)

    def tensor(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]:
        """Shape, element type and strides of a row."""
        return self.alike or self._row(row)


def _fixed(count: int, content: bytes, kind: type[Any]) -> npt.NDArray[Any]:
    if len(content) < count * np.dtype(kind).itemsize:
        raise InvalidBatch("a column is cut off")
    return np.frombuffer(content, kind, count)


def _offsets(rows: int, content: bytes) -> npt.NDArray[np.int32]:
    """The ends of values of different length, which must not go back."""
    found = _fixed(rows + 1, content, np.int32)
    if found[0] < 0 or (found[1:] < found[:-1]).any():
        raise InvalidBatch("offsets go back")
    return found


def _words(rows: int, at: bytes, text: bytes, numbers: dict[str, int], what: str) -> npt.NDArray[np.int16]:
    ends = _offsets(rows, at)
    if ends[-1] > len(text):
        raise InvalidBatch("a column is cut off")
    size, start = int(ends[1] - ends[0]), int(ends[0])
    first = text[start : start + size]
    if text[start : int(ends[-1])] == first * rows and (np.diff(ends) == size).all():
        # One word all along, as nearly always.
        words = [first]
    else:
        words = [text[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    known = {name.encode(): number for name, number in numbers.items()}
    if unknown := set(words) - known.keys():
        raise InvalidBatch(f"{what} {min(unknown)!r} is not in the registry")
    return np.full(rows, [known[word] for word in words], np.int16)


_REQUIRED: Final = tuple(field.name for field in FRAMES if not field.nullable)
_NUMBERS: Final = tuple(field.name for field in FRAMES if pa.types.is_integer(field.type))
_SHARED_ROWS: Final = 1024
"""What is said of more rows takes memory that is not worth keeping for all."""
Columns = Mapping[str, tuple[int, int]]
"""The first node and the first buffer of each."""
Key = tuple[int, int, bytes, bytes]
"""Rows, bytes of the body, and the tables of columns and of buffers."""


class BatchLayout:
    """The form of a batch. Places are counted from the beginning of its body."""

    def __init__(self, key: Key, columns: Columns) -> None:
        rows, body_bytes, nodes, buffers = key
        self.key = key
        self.nodes = _pairs(nodes)
        self.buffers = _pairs(buffers)
        self._columns = columns
        self._check(rows, body_bytes)
        self.payloads_at, self.payloads_bytes = self.buffer("payload", 2)
        self.versions_at, _ = self.buffer("meta_version", 1)
        self.sources = [self.buffer(name, number) for name, number in SOURCES]
        self._told: tuple[bytes, TensorTable] | None = None
        """What the last batch of this form said of its tensors: the next one nearly always says the same."""

    def _check(self, rows: int, body_bytes: int) -> None:
        columns, nodes, buffers = self._columns, self.nodes, self.buffers
        for start, length in buffers:
            if start < 0 or length < 0 or start + length > body_bytes:
                raise InvalidBatch("a buffer lies outside its batch")
        for name in _REQUIRED:
            if nodes[columns[name][0]] != (rows, 0):
                raise InvalidBatch(f"column {name} has nulls, or another length than the batch")
        for name in _NUMBERS:
            node, buffer = columns[name]
            if buffers[buffer + 1][1] < 8 * rows or nodes[node][0] != rows:
                raise InvalidBatch(f"column {name} is cut off")
            if nodes[node][1] and 8 * buffers[buffer][1] < rows:
                raise InvalidBatch(f"column {name} is cut off")

    def buffer(self, name: str, number: int) -> tuple[int, int]:
        """Where a buffer of a column begins, and its length."""
        return self.buffers[self._columns[name][1] + number]

    def nulls(self, name: str) -> int:
        return self.nodes[self._columns[name][0]][1]

    def describe(self, body: memoryview, rows: int) -> TensorTable:
        """What the rows say of their tensors."""
        told = b"".join([body[start : start + length] for start, length in self.sources])
        # Another thread may put something else there meanwhile.
        last = self._told
        if last is None or last[0] != told:
            sources = [bytes(body[start : start + length]) for start, length in self.sources]
            last = self._told = told, TensorTable(rows, sources, self.payloads_bytes)
        return last[1]


@lru_cache(32)
def _shared(key: Key, columns: tuple[tuple[str, tuple[int, int]], ...]) -> BatchLayout:
    return BatchLayout(key, dict(columns))


class LayoutCache:
    """Reads the forms of a segment's batches; keeps the last one."""

    def __init__(self, columns: Columns, nodes: int, buffers: int) -> None:
        self._columns = tuple(columns.items())
        self._sizes = 16 * nodes, 16 * buffers
        self._last: BatchLayout | None = None

    def of(self, data: memoryview, place: BatchLocation) -> BatchLayout:
        """Raises Unfit for a batch that contradicts itself, or would let a view reach foreign memory."""
        nodes, buffers = self._sizes
        key = (
            place.rows,
            place.end - place.body,
            bytes(data[place.nodes_at : place.nodes_at + nodes]),
            bytes(data[place.buffers_at : place.buffers_at + buffers]),
        )
        if self._last is None or self._last.key != key:
            make = _shared if place.rows <= _SHARED_ROWS else _shared.__wrapped__
            self._last = make(key, self._columns)
        return self._last


def _pairs(table: bytes) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<qq", table))
