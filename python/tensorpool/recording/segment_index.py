"""The index of a sealed segment: where its batches are, and their bytes without payloads.

A reader of mapped files finds the batches by walking from one to the next, which costs nothing. In an object
store every step of the walk would be a request. `<first-seq>.index`, beside the segment, makes it one: the
reader gets the schema, and of each batch the bytes before the payloads. The index is not the truth: every
byte of it is also in the segment, so it may be missing or damaged, and it can be written again.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..durable import replace_file
from ..errors import CorruptRecording
from ..text import parse_number
from . import layout
from .batch_layout import InvalidBatch
from .segment_file import BatchLocation, SegmentFile

_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("crc32c", "<u4"),
        ("stream_id", "<u4"),
        ("batches", "<u4"),
        ("epoch", "<u8"),
        ("first_seq", "<u8"),
        ("size_bytes", "<u8"),
        ("schema_bytes", "<u8"),
        ("has_heads", "<u4"),
        ("reserved", "<u4"),
    ]
)
BATCH: Final = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("first_seq", "<u8"),
        ("last_seq", "<u8"),
        ("head_bytes", "<u4"),
        ("rows", "<u4"),
    ]
)
"""A batch: its range in the file, its sequences, and how many bytes are before its payloads."""
_MAGIC: Final = b"TPRECIDX"
assert _HEADER.itemsize == 64
assert BATCH.itemsize == 40
_MAX_HEADS_SHARE: Final = 16
"""Heads are in the index if they are at most this part of the segment: of tiny frames a reader wants all
bytes anyway, and the index would be a second segment."""


class InvalidIndex(Exception):
    """The bytes are not the intact index of this segment."""


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """A decoded index."""

    size_bytes: int
    """Size of the segment's file."""
    schema: bytes
    """The bytes at the start of the file."""
    batches: npt.NDArray[Any]
    """An array of BATCH."""
    heads: tuple[memoryview, ...] | None
    """The bytes of each batch before its payloads; None if the index does not have them."""


def encode(name: layout.SegmentName, file: SegmentFile) -> bytes:
    """The index of a segment, from its file. Raises CorruptRecording if a batch of it is damaged."""
    scan = file.scan_more()
    batches = np.zeros(len(scan.batches), BATCH)
    heads: list[memoryview] = []
    for number, location in enumerate(scan.batches):
        head = file.data[location.start : head_end(file, location)]
        record = location.start, location.end, location.first_seq, location.last_seq, len(head), location.rows
        batches[number] = record
        heads.append(head)
    size = len(file.data)
    has_heads = sum(map(len, heads)) * _MAX_HEADS_SHARE <= size
    schema = bytes(file.data[: scan.batches[0].start if scan.batches else scan.end])
    header = np.zeros(1, _HEADER)
    header["magic"], header["version"] = _MAGIC, layout.VERSION
    header["stream_id"], header["epoch"], header["first_seq"] = name.stream_id, name.epoch, name.first_seq
    header["batches"], header["size_bytes"], header["schema_bytes"] = len(batches), size, len(schema)
    header["has_heads"] = has_heads
    content = bytearray(
        b"".join([header.tobytes(), schema, batches.tobytes(), *(heads if has_heads else [])])
    )
    header["crc32c"] = _native.crc32c(content)
    content[: _HEADER.itemsize] = header.tobytes()
    return bytes(content)


def head_end(file: SegmentFile, location: BatchLocation) -> int:
    """The position behind the columns of a batch, where its payloads begin. Raises CorruptRecording."""
    try:
        return location.body + file.layouts.get(file.data, location).payloads_at
    except InvalidBatch as error:
        raise CorruptRecording(
            f"{file.path}, byte {location.start}: {error}", path=file.path, offset=location.start
        ) from None


def decode(content: bytes, name: layout.SegmentName) -> SegmentIndex:
    """The index in a file's bytes. Raises InvalidIndex unless it is intact and of this segment."""
    if len(content) < _HEADER.itemsize:
        raise InvalidIndex("is truncated")
    header = np.frombuffer(content, _HEADER, 1).copy()
    claimed = int(header["crc32c"][0])
    header["crc32c"] = 0
    if header["magic"][0] != _MAGIC or int(header["version"][0]) != layout.VERSION:
        raise InvalidIndex("is not an index of this version")
    if _native.crc32c(memoryview(content)[_HEADER.itemsize :], _native.crc32c(header.tobytes())) != claimed:
        raise InvalidIndex("was changed: its checksum does not match")
    field = {column: int(header[column][0]) for column in _HEADER.names or () if column != "magic"}
    if (field["stream_id"], field["epoch"], field["first_seq"]) != (
        name.stream_id, name.epoch, name.first_seq,
    ):  # fmt: skip
        raise InvalidIndex("belongs to another segment")
    at, size = _HEADER.itemsize + field["schema_bytes"], field["size_bytes"]
    end = at + field["batches"] * BATCH.itemsize
    if end > len(content):
        raise InvalidIndex("is truncated")
    batches = np.frombuffer(content, BATCH, field["batches"], at)
    starts, ends = batches["start"].astype(np.float64), batches["end"].astype(np.float64)
    head_ends = starts + batches["head_bytes"]
    # A checksum does not stop an attacker: a reader reserves memory by these numbers.
    if len(batches) and not (
        starts[0] == field["schema_bytes"]
        and ends[-1] <= size
        and (starts[1:] >= ends[:-1]).all()
        and (head_ends <= ends).all()
        and (head_ends > starts).all()
    ):
        raise InvalidIndex("has batches that overlap, or lie outside the segment")
    heads = None
    if field["has_heads"]:
        stops = [end, *(end + np.cumsum(batches["head_bytes"], dtype=np.int64)).tolist()]
        if stops[-1] != len(content):
            raise InvalidIndex("is truncated")
        view = memoryview(content)
        heads = tuple(view[start:stop] for start, stop in itertools.pairwise(stops))
    return SegmentIndex(size, content[_HEADER.itemsize : at], batches, heads)


def write(root: Path, name: layout.SegmentName, path: Path) -> None:
    """Writes the index of a complete segment whose file has this path. A full disk leaves it out."""
    with contextlib.suppress(OSError, CorruptRecording):
        # Not synced: after a crash a checksum shows a torn index, which is then written again.
        replace_file(name.index(root), encode(name, SegmentFile(path)), sync=False)


def fault(root: Path, name: layout.SegmentName, file: SegmentFile) -> str | None:
    """Why the index of a segment cannot be used; None if it is right, or of a version that had none."""
    try:
        content = name.index(root).read_bytes()
    except FileNotFoundError:
        metadata = (file.schema.metadata if file.schema is not None else None) or {}
        minor = metadata.get(layout.MINOR_KEY, b"0")
        return "is missing" if (parse_number(minor) or 0) >= layout.INDEXED_MINOR else None
    try:
        expected = encode(name, file)
    except CorruptRecording:
        # The segment itself is damaged: its repair writes the index again.
        return None
    return None if content == expected else "does not match its segment"
