"""Malicious files: their checksums are valid, but their content is inconsistent and must be rejected."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.errors import CorruptRecording
from tensorpool.recording import arrow_format
from tensorpool.recording.arrow_format import FRAMES, column_indexes
from tensorpool.recording.segment_file import BatchLocation, SegmentFile
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files

Change = Callable[[bytearray, SegmentFile, BatchLocation], None]


def forge(path: Path, change: Change, batch: int = 0) -> None:
    """Changes a batch of a segment and computes its checksum again."""
    file = SegmentFile(path)
    location = file.scan_more().batches[batch]
    content = bytearray(path.read_bytes())
    change(content, file, location)
    message = bytearray(content[location.start : location.body])
    offsets = arrow_format.find_offsets(memoryview(message)[arrow_format.PREFIX_BYTES :])
    covered = file.layouts.get(file.data, location).buffer("payload", 2).start
    body = memoryview(content)[location.body : location.end]
    arrow_format.write_checksum(message, offsets.check_at, body, covered)
    content[location.start : location.body] = message
    path.write_bytes(content)


def value(column: str, buffer: int, form: str, at: int, new: int | bytes) -> Change:
    """Sets one value in a column's buffer."""

    def change(content: bytearray, file: SegmentFile, location: BatchLocation) -> None:
        start = location.body + file.layouts.get(file.data, location).buffer(column, buffer).start
        struct.pack_into(form, content, start + struct.calcsize(form) * at, new)

    return change


def table(column: str, buffer: int | None, offset: int | None, length: int | None) -> Change:
    """Sets the offset or length of a buffer, or the length or null count of a column, in the metadata."""

    def change(content: bytearray, file: SegmentFile, location: BatchLocation) -> None:
        node, first = column_indexes(FRAMES).columns[column]
        at = location.nodes_at + 16 * node
        if buffer is not None:
            at = location.buffers_at + 16 * (first + buffer)
        if offset is not None:
            struct.pack_into("<q", content, at, offset)
        if length is not None:
            struct.pack_into("<q", content, at + 8, length)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(value("payload_bytes", 1, "<q", 1, 200), "longer than its part", id="payload too long"),
        pytest.param(value("payload_bytes", 1, "<q", 1, -1), "longer than its part", id="payload negative"),
        pytest.param(value("payload", 1, "<i", 3, 2**30), "longer than its part", id="offset outside"),
        pytest.param(value("payload", 1, "<i", 1, -64), "offsets decrease", id="offset back"),
        pytest.param(value("shape", 3, "<i", 1, 101), "beyond its payload", id="shape too large"),
        pytest.param(value("shape", 3, "<i", 1, -1), "beyond its payload", id="shape negative"),
        pytest.param(value("strides", 3, "<q", 1, -8), "beyond its payload", id="stride negative"),
        pytest.param(value("strides", 3, "<q", 1, 2**62), "beyond its payload", id="stride overflows"),
        pytest.param(value("shape", 1, "<i", 3, 40), "differ in length", id="shape of another length"),
        pytest.param(value("dtype", 2, "5s", 0, b"object"), "element type", id="unknown dtype"),
        pytest.param(value("dtype", 1, "<i", 3, 9_999), "truncated", id="names outside"),
        pytest.param(value("major_order", 2, "3s", 1, b"xxx"), "major order", id="unknown order"),
        pytest.param(table("seq", 1, None, 2**40), "no sequences", id="sequences outside"),
        pytest.param(table("crc32c", 1, 2**40, None), "outside its batch", id="buffer outside"),
        pytest.param(table("crc32c", 1, -4096, None), "outside its batch", id="buffer before"),
        pytest.param(table("payload", 2, None, 2**40), "outside its batch", id="payloads outside"),
        pytest.param(table("timestamp_ns", 1, None, 8), "truncated", id="column too short"),
        pytest.param(table("seq", None, None, 1), "has nulls", id="nulls where none may be"),
        pytest.param(table("trace_id", None, 7, None), "truncated", id="column of another length"),
        pytest.param(table("trace_id", 0, None, 0), "truncated", id="nulls without a mask"),
    ],
)
def test_inconsistent_batch_with_valid_checksum_is_rejected(
    change: Change, message: str, make_writer: WriterFactory, root: Path
) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    forge(path, change)
    with pytest.raises(CorruptRecording, match=message):
        list(recording.open(root).frames(STREAM))
    assert not recording.verify(root).ok
    recording.repair(root)
    assert recording.verify(root).ok


def test_forge_without_a_change_keeps_the_file(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    before = path.read_bytes()
    forge(path, lambda content, file, location: None)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(value("shape", 3, "<i", 1, 101), "beyond its payload", id="description"),
        pytest.param(table("crc32c", 1, 2**40, None), "outside its batch", id="position of a buffer"),
        pytest.param(table("seq", None, None, 1), "has nulls", id="nulls"),
    ],
)
def test_inconsistent_batch_after_a_valid_one_is_rejected(
    change: Change, message: str, make_writer: WriterFactory, root: Path
) -> None:
    """The layout and tensors of the previous batch are reused only if nothing differs."""
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
        writer.write_batch(frames(3, 3))
    (path,) = segment_files(root)
    forge(path, change, batch=1)
    with pytest.raises(CorruptRecording, match=message):
        list(recording.open(root).frames(STREAM))
    assert [frame.seq for frame in recording.open(root).frames(STREAM, skip_damage=True)] == [0, 1, 2]
