"""Finds the complete batches of a segment, and where a torn or changed one begins."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from .. import _native
from ..errors import CorruptRecording, NotARecording
from . import arrow_format, layout
from .batch_layout import SOURCES, BatchLayout, Columns, LayoutCache, TensorTable
from .mmap_cache import map_file

_PAIR: Final = struct.Struct("<qq")
_U64: Final = struct.Struct("<Q")
_MARKS_AT: Final = layout.ALIGNMENT // 4
_SCHEMA_BYTES: Final = 64 << 10


class SchemaPlan(NamedTuple):
    """A schema, and where its columns are in a batch."""

    schema: pa.Schema
    wrong: str | None
    """The first column that is not as it should be."""
    columns: Columns
    nodes: int
    buffers: int


def _parsed(content: memoryview) -> SchemaPlan:
    # All segments of a stream have the same; what is longer than ours ever are is not kept.
    return _read(bytes(content)) if len(content) <= _SCHEMA_BYTES else _read.__wrapped__(bytes(content))


@lru_cache(64)
def _read(content: bytes) -> SchemaPlan:
    return _plan(pa.ipc.read_schema(pa.py_buffer(content)))


def _plan(found: pa.Schema) -> SchemaPlan:
    kinds = {field.name: field.type for field in found}
    # Columns that we do not know may be there: a later version may have added some.
    wrong = [field.name for field in arrow_format.FRAMES if kinds.get(field.name) != field.type]
    return SchemaPlan(found, wrong[0] if wrong else None, *arrow_format.places_of(found))


class BatchLocation(NamedTuple):
    """Where a complete batch lies in its file, and what its metadata says of it."""

    start: int
    body: int
    end: int
    rows: int
    first_seq: int
    last_seq: int
    nodes_at: int
    buffers_at: int
    """Where the tables of columns and of buffers are in the file: see `Forms`."""
    like: int
    """Where the first of the batches before it begins that say the same of their tensors; its own start if
    there is none."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that holds no complete batch."""

    start: int
    end: int
    reason: str

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class ScanResult:
    """What a look through a segment found. `end` is the first byte that was not understood."""

    batches: list[BatchLocation] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    end: int = 0
    is_ended: bool = False
    """Whether the end-of-stream mark was there."""

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)


class SegmentFile:
    """A segment's bytes in memory, as far as they were there when last looked at.

    The file may grow meanwhile: `refresh` maps it anew. Views of an earlier mapping stay valid as long as
    someone holds them.
    """

    def __init__(self, path: Path, *, lenient: bool = False, growing: bool = False) -> None:
        """With `lenient`, a damaged schema is taken for the one that this version writes. With `growing`, one
        that is not there yet is waited for: the file then has no batches.
        """
        self.path = path
        self._growing = growing
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.identity = os.fstat(fd).st_ino
            self._map(fd)
        finally:
            os.close(fd)
        self.scan = ScanResult()
        self._described: tuple[int, tuple[BatchLayout, TensorTable]] | None = None
        self.schema: pa.Schema | None = None
        try:
            self._begin()
        except CorruptRecording:
            if not lenient:
                raise
            self._take(_plan(arrow_format.FRAMES))

    def _map(self, fd: int) -> None:
        # An empty file cannot be mapped.
        self.data = memoryview(map_file(fd, self.path) if os.fstat(fd).st_size else b"")
        self.bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.frombuffer(self.data, np.uint8)

    def _begin(self) -> None:
        if self._growing and self._is_short_of_schema():
            return
        self._take(self._read_plan())

    def _is_short_of_schema(self) -> bool:
        size = arrow_format.read_prefix(self.data, 0)
        return len(self.data) < arrow_format.PREFIX_BYTES + (size or 0)

    def _take(self, plan: SchemaPlan) -> None:
        self.schema, _, columns, self._nodes, self._buffers = plan
        self.forms = LayoutCache(columns, self._nodes, self._buffers)
        self._seq_buffer = columns["seq"][1] + 1
        self._sources = [columns[name][1] + number for name, number in SOURCES]

    def refresh(self) -> None:
        """Maps what was added since. FileNotFoundError if it has another name by now, or none."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if status.st_ino != self.identity:
                raise FileNotFoundError(f"{self.path} is another file now")
            if status.st_size > len(self.data):
                self._map(fd)
                if self.schema is None:
                    self._begin()
        finally:
            os.close(fd)

    def _read_plan(self) -> SchemaPlan:
        size = arrow_format.read_prefix(self.data, 0)
        end = arrow_format.PREFIX_BYTES + (size or 0)
        if not size or end > len(self.data):
            raise CorruptRecording(f"{self.path} has no schema", path=self.path, offset=0)
        try:
            plan = _parsed(self.data[:end])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptRecording(
                f"{self.path} has a damaged schema: {error}", path=self.path, offset=0
            ) from None
        version = (plan.schema.metadata or {}).get(layout.VERSION_KEY, b"")
        if not version.isdigit():
            raise NotARecording(f"{self.path} is no segment of a recording", path=self.path)
        if int(version) > layout.VERSION:
            raise NotARecording(
                f"{self.path} has format version {int(version)}, and this reader knows up to "
                f"{layout.VERSION}; update the package",
                path=self.path,
            )
        if plan.wrong is not None:
            raise CorruptRecording(
                f"{self.path} has a damaged schema: column {plan.wrong} is missing or has another type",
                path=self.path,
                offset=0,
            )
        self.scan.end = end
        return plan

    def scan_more(self, *, resume: bool = False) -> ScanResult:
        """Goes on behind the last complete batch. With `resume`, also behind damage, to what still reads."""
        scan = self.scan
        while self.schema is not None and not scan.is_ended:
            found = self._batch_at(scan.end)
            if isinstance(found, BatchLocation):
                scan.batches.append(found)
                scan.batches += self._alike(found)
                scan.end = scan.batches[-1].end
            elif found == "":
                scan.is_ended = True
                scan.end += len(arrow_format.END_OF_STREAM)
            else:
                if scan.end == len(self.data) or not resume:
                    break
                again = self._resumes_at(scan.end)
                scan.damage.append(Damage(scan.end, again, found))
                scan.end = again
        return scan

    def tail(self) -> Damage | None:
        """What lies behind the last complete batch, if anything does."""
        end, size = self.scan.end, len(self.data)
        if end >= size:
            return None
        if self.schema is None:
            return Damage(0, size, "the schema is cut off")
        found = "follows the end of the stream" if self.scan.is_ended else self._batch_at(end)
        return Damage(end, size, found if isinstance(found, str) else "was not looked at")

    def _batch_at(self, start: int) -> BatchLocation | str:
        """The batch that begins there; "" for the end of the stream, words for what is wrong with it."""
        size = arrow_format.read_prefix(self.data, start)
        body = start + arrow_format.PREFIX_BYTES + (size or 0)
        if size == 0:
            return ""
        if size is None:
            return "the beginning of a batch is missing"
        if body > len(self.data):
            return "metadata of a batch are cut off"
        metadata = self.data[start + arrow_format.PREFIX_BYTES : body]
        try:
            self._places = places = arrow_format.find_offsets(metadata)
            end = body + places.body_bytes
            if end > len(self.data):
                return "a batch is cut off"
            arrow_format.check(metadata, places.check_at, self.data[body:end])
        except arrow_format.BadMessage as error:
            return f"a batch {error}"
        if (places.node_count, places.buffer_count) != (self._nodes, self._buffers):
            return "a batch does not fit the schema"
        tables = start + arrow_format.PREFIX_BYTES
        if max(places.nodes_at + 16 * self._nodes, places.buffers_at + 16 * self._buffers) > len(metadata):
            return "metadata of a batch are cut off"
        rows = places.rows
        at, length = _PAIR.unpack_from(metadata, places.buffers_at + 16 * self._seq_buffer)
        if rows < 1 or at < 0 or length < 8 * rows or at + length > places.body_bytes:
            return "a batch has no sequences"
        first, last = (_U64.unpack_from(self.data, body + at + 8 * row)[0] for row in (0, rows - 1))
        return BatchLocation(
            start, body, end, rows, first, last, tables + places.nodes_at, tables + places.buffers_at, start
        )

    def _alike(self, last: BatchLocation) -> Iterator[BatchLocation]:
        """The batches behind one that was just found, as long as only numbers differ: nothing is walked."""
        places = self._places
        found = _native.batches_like(
            self.data,
            last.start,
            body_bytes_at=places.body_bytes_at,
            rows_at=places.rows_at,
            nodes=(places.nodes_at, places.nodes_at + 16 * self._nodes),
            buffers=(places.buffers_at, places.buffers_at + 16 * self._buffers),
            check_at=places.check_at,
            seq=self._seq_buffer,
            sources=self._sources,
        )
        return map(BatchLocation._make, found)

    def described(self, place: BatchLocation) -> tuple[BatchLayout, TensorTable]:
        """The form of a batch, and what its rows say of their tensors. Unfit if that cannot be."""
        known = self._described
        if known is None or known[0] != place.like:
            form = self.forms.of(self.data, place)
            tensors = form.describe(self.data[place.body : place.end], place.rows)
            # Another thread may put something else there meanwhile.
            self._described = known = place.like, (form, tensors)
        return known[1]

    def _resumes_at(self, start: int) -> int:
        """The next place where a sound batch begins; the end of the file if there is none."""
        step = layout.ALIGNMENT
        first = layout.aligned(start + 1)
        words = self.bytes[first : first + (len(self.data) - first) // step * step].view(np.uint32)
        for number in np.flatnonzero(words[::_MARKS_AT] == 0xFFFF_FFFF).tolist():
            at = first + number * step
            if not isinstance(self._batch_at(at), str):
                return int(at)
        return len(self.data)
