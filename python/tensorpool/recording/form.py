"""Where the columns of a batch lie, and that all of it fits together.

Nearly all batches of a recording have the same form. So it is read and checked once, and taken again for a
batch whose tables of columns and buffers are the very same bytes, also by other readers of this process.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .schema import FRAMES
from .tensors import SOURCES, Tensors, Unfit

if TYPE_CHECKING:
    from .scan import BatchPlace

_REQUIRED: Final = tuple(field.name for field in FRAMES if not field.nullable)
_NUMBERS: Final = tuple(field.name for field in FRAMES if pa.types.is_integer(field.type))
_SHARED_ROWS: Final = 1024
"""What is said of more rows takes memory that is not worth keeping for all."""
Columns = Mapping[str, tuple[int, int]]
"""The first node and the first buffer of each."""
Key = tuple[int, int, bytes, bytes]
"""Rows, bytes of the body, and the tables of columns and of buffers."""


class BatchForm:
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
        self._told: tuple[bytes, Tensors] | None = None
        """What the last batch of this form said of its tensors: the next one nearly always says the same."""

    def _check(self, rows: int, body_bytes: int) -> None:
        columns, nodes, buffers = self._columns, self.nodes, self.buffers
        for start, length in buffers:
            if start < 0 or length < 0 or start + length > body_bytes:
                raise Unfit("a buffer lies outside its batch")
        for name in _REQUIRED:
            if nodes[columns[name][0]] != (rows, 0):
                raise Unfit(f"column {name} has nulls, or another length than the batch")
        for name in _NUMBERS:
            node, buffer = columns[name]
            if buffers[buffer + 1][1] < 8 * rows or nodes[node][0] != rows:
                raise Unfit(f"column {name} is cut off")
            if nodes[node][1] and 8 * buffers[buffer][1] < rows:
                raise Unfit(f"column {name} is cut off")

    def buffer(self, name: str, number: int) -> tuple[int, int]:
        """Where a buffer of a column begins, and its length."""
        return self.buffers[self._columns[name][1] + number]

    def nulls(self, name: str) -> int:
        return self.nodes[self._columns[name][0]][1]

    def describe(self, body: memoryview, rows: int) -> Tensors:
        """What the rows say of their tensors."""
        told = b"".join([body[start : start + length] for start, length in self.sources])
        # Another thread may put something else there meanwhile.
        last = self._told
        if last is None or last[0] != told:
            sources = [bytes(body[start : start + length]) for start, length in self.sources]
            last = self._told = told, Tensors(rows, sources, self.payloads_bytes)
        return last[1]


@lru_cache(32)
def _shared(key: Key, columns: tuple[tuple[str, tuple[int, int]], ...]) -> BatchForm:
    return BatchForm(key, dict(columns))


class Forms:
    """Reads the forms of a segment's batches; keeps the last one."""

    def __init__(self, columns: Columns, nodes: int, buffers: int) -> None:
        self._columns = tuple(columns.items())
        self._sizes = 16 * nodes, 16 * buffers
        self._last: BatchForm | None = None

    def of(self, data: memoryview, place: BatchPlace) -> BatchForm:
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
