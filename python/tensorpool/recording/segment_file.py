"""A mapped segment file and a scan of it: the locations of its complete batches and of damage.

Maps can be cached beyond the life of their readers. Mapping and unmapping a file costs about as much as
reading all of its bytes, because the kernel handles every page. Spark's workers run many short tasks over the
same segments, so they enable the cache. Not thread-safe.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from .. import _native
from ..errors import CorruptRecording, NotARecording
from ..text import parse_number
from . import arrow_format, layout
from .arrow_format import ColumnIndex
from .batch_layout import TENSOR_BUFFERS, BatchLayout, LayoutCache, TensorTable

_MAX_FILES: Final = 64
_MAX_BYTES: Final = 4 << 30


class _CachedMap(NamedTuple):
    path: Path
    mapping: mmap.mmap


_cache: OrderedDict[tuple[int, int], _CachedMap] = OrderedDict()
"""By device and inode, which the kernel does not reuse while the file is mapped."""
_is_enabled = False


def map_file(fd: int, path: Path) -> mmap.mmap:
    """A read-only mapping of an open, non-empty file at its present size."""
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    cached = _cache.get(identity)
    if cached is not None and len(cached.mapping) == status.st_size:
        _cache.move_to_end(identity)
        return cached.mapping
    try:
        mapping = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    except OSError:
        if not _cache:
            raise
        # Probably a limit on address space: release the mappings that are only cached, and try again.
        _cache.clear()
        mapping = mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ)
    if _is_enabled:
        _cache[identity] = _CachedMap(path, mapping)
        _cache.move_to_end(identity)
        while len(_cache) > _MAX_FILES or _cached_bytes() > _MAX_BYTES:
            _cache.popitem(last=False)
    return mapping


def _cached_bytes() -> int:
    return sum(len(cached.mapping) for cached in _cache.values())


def enable_cache(enabled: bool = True) -> None:
    """Switches the cache on, or off and empties it."""
    global _is_enabled  # noqa: PLW0603  one address space per process
    _is_enabled = enabled
    if not enabled:
        _cache.clear()


def evict_removed() -> None:
    """Drops mappings of files that were removed or renamed: a mapping would keep their disk space in use."""
    for identity, cached in list(_cache.items()):
        try:
            status = os.stat(cached.path)
            is_present = (status.st_dev, status.st_ino) == identity
        except OSError:
            is_present = False
        if not is_present:
            del _cache[identity]


_PAIR: Final = struct.Struct("<qq")
_U64: Final = struct.Struct("<Q")
_PAIR_BYTES: Final = _PAIR.size
_U32_PER_STEP: Final = layout.ALIGNMENT // 4
_MAX_CACHED_SCHEMA_BYTES: Final = 64 << 10


class SchemaPlan(NamedTuple):
    """A segment's schema, and which nodes and buffers of a batch belong to which column."""

    schema: pa.Schema
    wrong_column: str | None
    """The first required column that is missing or has another type."""
    columns: Mapping[str, ColumnIndex]
    nodes: int
    buffers: int


def _read_plan(content: memoryview) -> SchemaPlan:
    # All segments of a stream have the same schema. A longer one than any of ours is not kept.
    if len(content) > _MAX_CACHED_SCHEMA_BYTES:
        return _cached_plan.__wrapped__(bytes(content))
    return _cached_plan(bytes(content))


@lru_cache(64)
def _cached_plan(content: bytes) -> SchemaPlan:
    return _plan(pa.ipc.read_schema(pa.py_buffer(content)))


def _plan(schema: pa.Schema) -> SchemaPlan:
    kinds = {field.name: field.type for field in schema}
    # Unknown columns are accepted: a later version may have added some.
    wrong = [field.name for field in arrow_format.FRAMES if kinds.get(field.name) != field.type]
    return SchemaPlan(schema, wrong[0] if wrong else None, *arrow_format.column_indexes(schema))


class BatchLocation(NamedTuple):
    """Position of a complete batch in its file, with the row count and sequences of its metadata."""

    start: int
    body: int
    end: int
    rows: int
    first_seq: int
    last_seq: int
    nodes_at: int
    buffers_at: int
    """Positions of the node table and the buffer table in the file: see `LayoutCache`."""
    same_tensors_at: int
    """Start of the earliest batch of an unbroken run that describes the same tensors; else its own start."""


@dataclass(frozen=True, slots=True)
class BatchTemplate:
    """Where the numbers are in the metadata of a batch, for a scan for batches that differ in them only."""

    body_bytes_at: int
    rows_at: int
    nodes: range
    """The bytes of the node table."""
    buffers: range
    """The bytes of the buffer table."""
    check_at: int
    seq_buffer: int
    """Number of the buffer with the sequences."""
    tensor_buffers: list[int]
    """Numbers of the buffers that describe tensors."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a file that holds no complete batch."""

    start: int
    end: int
    reason: str

    @property
    def size_bytes(self) -> int:
        """Length of the range."""
        return self.end - self.start


@dataclass(slots=True)
class ScanResult:
    """Complete batches and damage of a segment up to `end`, the first byte that was not scanned."""

    batches: list[BatchLocation] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    end: int = 0
    is_ended: bool = False
    """Whether the scan reached the end-of-stream mark."""

    @property
    def rows(self) -> int:
        """Rows of all complete batches."""
        return sum(batch.rows for batch in self.batches)


class SegmentFile:
    """A segment mapped into memory, up to its size at the last `refresh`.

    The file may grow: `refresh` maps it again. Views of an earlier mapping stay valid.
    """

    following: layout.SegmentName | None = None
    """The segment that is read after this one, if that is known."""

    def __init__(
        self, path: Path | os.PathLike[str], *, lenient: bool = False, growing: bool = False
    ) -> None:
        """With `lenient`, a damaged schema is replaced by the one that this version writes. With `growing`,
        an incomplete schema is not an error: the file has no batches until a `refresh` finds the schema.
        """
        self.path = path
        self._growing = growing
        self._open()
        self.scan = ScanResult()
        self._last_tensors: tuple[int, tuple[BatchLayout, TensorTable]] | None = None
        self.schema: pa.Schema | None = None
        try:
            self._load_schema()
        except CorruptRecording:
            if not lenient:
                raise
            self._set_plan(_plan(arrow_format.FRAMES))

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.identity = os.fstat(fd).st_ino
            self._map(fd)
        finally:
            os.close(fd)

    def reference(self) -> str:
        """The text by which rows refer to the segment: an open one is renamed when it is sealed."""
        name = os.fspath(self.path)
        if name.endswith(layout.PARTIAL):
            return name.removesuffix(layout.PARTIAL) + layout.SEALED
        return name

    @property
    def has_payloads(self) -> bool:
        """Whether the payloads are in memory, or mapped."""
        return True

    def load_payloads(self, location: BatchLocation, data: memoryview) -> memoryview:
        """The file with the payloads of a batch; `data` is the file that has the batch's columns."""
        del location
        return data

    def _map(self, fd: int) -> None:
        # An empty file cannot be mapped.
        self.data = memoryview(map_file(fd, Path(self.path)) if os.fstat(fd).st_size else b"")
        self.bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.frombuffer(self.data, np.uint8)

    def _load_schema(self) -> None:
        if self._growing and self._is_schema_incomplete():
            return
        self._set_plan(self._read_schema_plan())

    def _is_schema_incomplete(self) -> bool:
        size = arrow_format.read_prefix(self.data, 0)
        return len(self.data) < arrow_format.PREFIX_BYTES + (size or 0)

    def _set_plan(self, plan: SchemaPlan) -> None:
        self.schema, self._nodes, self._buffers = plan.schema, plan.nodes, plan.buffers
        self.layouts = LayoutCache(plan.columns, plan.nodes, plan.buffers)
        self._seq_buffer = plan.columns["seq"].buffer + 1
        self._tensor_buffers = [plan.columns[name].buffer + number for name, number in TENSOR_BUFFERS]

    def refresh(self) -> None:
        """Maps the bytes added since. FileNotFoundError if the file was renamed or removed."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if status.st_ino != self.identity:
                raise FileNotFoundError(f"{self.path} is another file now")
            if status.st_size > len(self.data):
                self._map(fd)
                if self.schema is None:
                    self._load_schema()
        finally:
            os.close(fd)

    def _read_schema_plan(self) -> SchemaPlan:
        size = arrow_format.read_prefix(self.data, 0)
        end = arrow_format.PREFIX_BYTES + (size or 0)
        if not size or end > len(self.data):
            raise CorruptRecording(f"{self.path} has no schema", path=self.path, offset=0)
        try:
            plan = _read_plan(self.data[:end])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptRecording(
                f"{self.path} has a damaged schema: {error}", path=self.path, offset=0
            ) from None
        version = parse_number((plan.schema.metadata or {}).get(layout.VERSION_KEY, b""))
        if version is None:
            raise NotARecording(f"{self.path} is not a segment of a recording", path=self.path)
        if version > layout.VERSION:
            raise NotARecording(
                f"{self.path} has format version {version}, but this version reads up to "
                f"{layout.VERSION}; update the package",
                path=self.path,
            )
        if plan.wrong_column is not None:
            raise CorruptRecording(
                f"{self.path} has a damaged schema: column {plan.wrong_column} is missing or of another type",
                path=self.path,
                offset=0,
            )
        self.scan.end = end
        return plan

    @property
    def head_crc32c(self) -> int:
        """Checksum of the schema message at the start of the file; of nothing if the file has none."""
        size = arrow_format.read_prefix(self.data, 0)
        return _native.crc32c(self.data[: arrow_format.PREFIX_BYTES + size]) if size else 0

    def name_fault(self, name: layout.SegmentName) -> str | None:
        """Why the file is not the segment of this name, as far as it was scanned; None if it is."""
        metadata = (self.schema.metadata if self.schema is not None else None) or {}
        for key, own in ((layout.STREAM_KEY, name.stream_id), (layout.EPOCH_KEY, name.epoch)):
            found = metadata.get(key, b"")
            if found and found != str(own).encode():
                what = key.decode().rpartition(".")[2].removesuffix("_id")
                return f"belongs to {what} {found.decode(errors='replace')}"
        if self.scan.batches and self.scan.batches[0].first_seq != name.first_seq:
            return f"begins with sequence {self.scan.batches[0].first_seq}"
        return None

    def scan_more(self, *, resume: bool = False) -> ScanResult:
        """Continues behind the last complete batch. With `resume`, also past damage to the next batch."""
        scan = self.scan
        while self.schema is not None and not scan.is_ended:
            batch = self.batch_at(scan.end)
            if isinstance(batch, BatchLocation):
                scan.batches.append(batch)
                scan.batches += self._following_batches(batch)
                scan.end = scan.batches[-1].end
            elif batch == "":
                scan.is_ended = True
                scan.end += len(arrow_format.END_OF_STREAM)
            else:
                if scan.end == len(self.data) or not resume:
                    break
                next_batch = self._find_next_batch(scan.end)
                scan.damage.append(Damage(scan.end, next_batch, batch))
                scan.end = next_batch
        return scan

    def tail(self) -> Damage | None:
        """The bytes behind the last complete batch; None if there are none."""
        end, size = self.scan.end, len(self.data)
        if end >= size:
            return None
        if self.schema is None:
            return Damage(0, size, "the schema is truncated")
        batch = "follows the end of the stream" if self.scan.is_ended else self.batch_at(end)
        return Damage(end, size, batch if isinstance(batch, str) else "was not scanned")

    def batch_at(self, start: int) -> BatchLocation | str:
        """The batch at a position; "" at the end of the stream, else text that says what is wrong there."""
        size = arrow_format.read_prefix(self.data, start)
        body = start + arrow_format.PREFIX_BYTES + (size or 0)
        if size == 0:
            return ""
        if size is None:
            return "the start of a batch is missing"
        if body > len(self.data):
            return "the metadata of a batch is truncated"
        metadata = self.data[start + arrow_format.PREFIX_BYTES : body]
        try:
            self._offsets = offsets = arrow_format.find_offsets(metadata)
            end = body + offsets.body_bytes
            if end > len(self.data):
                return "a batch is truncated"
            arrow_format.verify_checksum(metadata, offsets.check_at, self.data[body:end])
        except arrow_format.InvalidMessage as error:
            return f"a batch {error}"
        if (offsets.node_count, offsets.buffer_count) != (self._nodes, self._buffers):
            return "a batch does not match the schema"
        tables = start + arrow_format.PREFIX_BYTES
        nodes_end = offsets.nodes_at + _PAIR_BYTES * self._nodes
        buffers_end = offsets.buffers_at + _PAIR_BYTES * self._buffers
        if max(nodes_end, buffers_end) > len(metadata):
            return "the metadata of a batch is truncated"
        rows = offsets.rows
        at, length = _PAIR.unpack_from(metadata, offsets.buffers_at + _PAIR_BYTES * self._seq_buffer)
        if rows < 1 or at < 0 or length < 8 * rows or at + length > offsets.body_bytes:
            return "a batch has no sequences"
        first, last = (_U64.unpack_from(self.data, body + at + 8 * row)[0] for row in (0, rows - 1))
        return BatchLocation(
            start, body, end, rows, first, last, tables + offsets.nodes_at, tables + offsets.buffers_at, start
        )

    def _following_batches(self, last: BatchLocation) -> list[BatchLocation]:
        """The batches behind `last` whose metadata differs from it in numbers only.

        Native, and without decoding their flatbuffers: opening a long segment takes a fraction of the time.
        """
        offsets = self._offsets
        template = BatchTemplate(
            body_bytes_at=offsets.body_bytes_at,
            rows_at=offsets.rows_at,
            nodes=range(offsets.nodes_at, offsets.nodes_at + _PAIR_BYTES * self._nodes),
            buffers=range(offsets.buffers_at, offsets.buffers_at + _PAIR_BYTES * self._buffers),
            check_at=offsets.check_at,
            seq_buffer=self._seq_buffer,
            tensor_buffers=self._tensor_buffers,
        )
        return _native.scan_batches(self.data, last.start, template, BatchLocation)

    def read_tensors(self, location: BatchLocation) -> tuple[BatchLayout, TensorTable]:
        """The layout of a batch and the tensors that its rows describe. Raises InvalidBatch."""
        last = self._last_tensors
        if last is None or last[0] != location.same_tensors_at:
            batch_layout = self.layouts.get(self.data, location)
            tensors = batch_layout.read_tensors(self.data[location.body : location.end], location.rows)
            # Assigned as one value: another thread may replace it meanwhile.
            self._last_tensors = last = location.same_tensors_at, (batch_layout, tensors)
        return last[1]

    def _find_next_batch(self, start: int) -> int:
        """Position of the next undamaged batch; the end of the file if there is none."""
        step = layout.ALIGNMENT
        first = layout.aligned(start + 1)
        numbers = self.bytes[first : first + (len(self.data) - first) // step * step].view(np.uint32)
        for number in np.flatnonzero(numbers[::_U32_PER_STEP] == arrow_format.CONTINUATION_NUMBER).tolist():
            at = first + number * step
            if not isinstance(self.batch_at(at), str):
                return int(at)
        return len(self.data)
