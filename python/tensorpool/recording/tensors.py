"""What the rows of a batch say of their tensors: type, shape, strides, and where the payloads are.

Nearly all batches of a stream say the same. So the description is read and checked once, and taken again
for a batch that has the very same bytes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .dtypes import ITEM_BYTES, MAX_DIMS, NAMES, NUMBERS, NUMPY, ORDER_NUMBERS
from .view import tensors_fit

# Column and number of the buffer within it, in the order in which `Tensors` takes them.
SOURCES: Final = (
    ("dtype", 1), ("dtype", 2),
    ("shape", 1), ("shape", 3),
    ("strides", 1), ("strides", 3),
    ("major_order", 1), ("major_order", 2),
    ("payload_bytes", 1), ("payload", 1),
)  # fmt: skip


class Unfit(Exception):
    """A description that contradicts itself, or would let a view reach foreign memory."""


class Tensors:
    """The description of every row of a batch."""

    def __init__(self, rows: int, sources: list[bytes], payload_room: int) -> None:
        types, names, lists, dims, other_lists, strides, order_at, orders, sizes, places = sources
        self.dtype = _words(rows, types, names, NUMBERS, "element type")
        self.major_order = _words(rows, order_at, orders, ORDER_NUMBERS, "major order")
        ends = _offsets(rows, lists)
        counts = np.diff(ends)
        if not np.array_equal(ends, _offsets(rows, other_lists)):
            raise Unfit("shape and strides differ in length")
        if counts.min() < 1 or counts.max() > MAX_DIMS:
            raise Unfit(f"a tensor has not 1 to {MAX_DIMS} dimensions")
        self.ndims = counts.astype(np.uint8)
        self.dims: npt.NDArray[np.int32] = self._table(ends, dims, np.int32)
        self.strides: npt.NDArray[np.int64] = self._table(ends, strides, np.int64)
        self.payload_bytes = _fixed(rows, sizes, np.int64)
        at = _offsets(rows, places)
        self.payload_at = at[:-1].astype(np.int64)
        """Where each payload begins, from the beginning of the first one's buffer."""
        if at[-1] > payload_room or (self.payload_bytes > np.diff(at)).any() or self.payload_bytes.min() < 0:
            raise Unfit("a payload is longer than its place")
        if not tensors_fit(
            self.dims, self.strides, self.ndims, ITEM_BYTES[self.dtype], self.payload_bytes
        ).all():
            raise Unfit("a tensor reaches beyond its payload")

    def _table(self, ends: npt.NDArray[np.int32], values: bytes, kind: type[Any]) -> npt.NDArray[Any]:
        table = np.zeros((len(self.ndims), MAX_DIMS), kind)
        read = np.frombuffer(values[: len(values) // table.itemsize * table.itemsize], kind)
        if ends[-1] > len(read):
            raise Unfit("shape or strides are cut off")
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
        raise Unfit("a column is cut off")
    return np.frombuffer(content, kind, count)


def _offsets(rows: int, content: bytes) -> npt.NDArray[np.int32]:
    """The ends of values of different length, which must not go back."""
    found = _fixed(rows + 1, content, np.int32)
    if found[0] < 0 or (found[1:] < found[:-1]).any():
        raise Unfit("offsets go back")
    return found


def _words(rows: int, at: bytes, text: bytes, numbers: dict[str, int], what: str) -> npt.NDArray[np.int16]:
    ends = _offsets(rows, at)
    if ends[-1] > len(text):
        raise Unfit("a column is cut off")
    size, start = int(ends[1] - ends[0]), int(ends[0])
    first = text[start : start + size]
    if text[start : int(ends[-1])] == first * rows and (np.diff(ends) == size).all():
        # One word all along, as nearly always.
        words = [first]
    else:
        words = [text[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    known = {name.encode(): number for name, number in numbers.items()}
    if unknown := set(words) - known.keys():
        raise Unfit(f"{what} {min(unknown)!r} is not in the registry")
    return np.full(rows, [known[word] for word in words], np.int16)
