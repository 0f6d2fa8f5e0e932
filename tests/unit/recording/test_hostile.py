"""Files that were made to harm: their checksums hold, and what they say is refused all the same."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.errors import CorruptRecording
from tensorpool.recording import arrow_format
from tensorpool.recording.arrow_format import FRAMES, places_of
from tensorpool.recording.segment_file import BatchLocation, SegmentFile
from tests.unit.recording.conftest import STREAM, Writing, frames, segment_files

Change = Callable[[bytearray, SegmentFile, BatchLocation], None]


def forge(path: Path, change: Change, batch: int = 0) -> None:
    """Changes a batch of a segment and makes its checksum fit again."""
    file = SegmentFile(path)
    place = file.scan_more().batches[batch]
    content = bytearray(path.read_bytes())
    change(content, file, place)
    head = bytearray(content[place.start : place.body])
    places = arrow_format.find_offsets(memoryview(head)[arrow_format.PREFIX_BYTES :])
    covered = file.forms.of(file.data, place).buffer("payload", 2)[0]
    arrow_format.seal_check(head, places.check_at, memoryview(content)[place.body : place.end], covered)
    content[place.start : place.body] = head
    path.write_bytes(content)


def value(column: str, buffer: int, form: str, at: int, new: int | bytes) -> Change:
    """Sets one value in a column's buffer."""

    def change(content: bytearray, file: SegmentFile, place: BatchLocation) -> None:
        start = place.body + file.forms.of(file.data, place).buffer(column, buffer)[0]
        struct.pack_into(form, content, start + struct.calcsize(form) * at, new)

    return change


def table(column: str, buffer: int | None, offset: int | None, length: int | None) -> Change:
    """Sets offset or length of a buffer, or length and nulls of a column, in the metadata."""

    def change(content: bytearray, file: SegmentFile, place: BatchLocation) -> None:
        node, first = places_of(FRAMES)[0][column]
        at = place.nodes_at + 16 * node if buffer is None else place.buffers_at + 16 * (first + buffer)
        if offset is not None:
            struct.pack_into("<q", content, at, offset)
        if length is not None:
            struct.pack_into("<q", content, at + 8, length)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(value("payload_bytes", 1, "<q", 1, 200), "longer than its place", id="payload too long"),
        pytest.param(value("payload_bytes", 1, "<q", 1, -1), "longer than its place", id="payload negative"),
        pytest.param(value("payload", 1, "<i", 3, 2**30), "longer than its place", id="offset outside"),
        pytest.param(value("payload", 1, "<i", 1, -64), "go back", id="offset back"),
        pytest.param(value("shape", 3, "<i", 1, 101), "beyond its payload", id="shape too large"),
        pytest.param(value("shape", 3, "<i", 1, -1), "beyond its payload", id="shape negative"),
        pytest.param(value("strides", 3, "<q", 1, -8), "beyond its payload", id="stride negative"),
        pytest.param(value("strides", 3, "<q", 1, 2**62), "beyond its payload", id="stride overflows"),
        pytest.param(value("shape", 1, "<i", 3, 40), "differ in length", id="shape of another length"),
        pytest.param(value("dtype", 2, "5s", 0, b"object"), "element type", id="unknown dtype"),
        pytest.param(value("dtype", 1, "<i", 3, 9_999), "cut off", id="words outside"),
        pytest.param(value("major_order", 2, "3s", 1, b"xxx"), "major order", id="unknown order"),
        pytest.param(table("seq", 1, None, 2**40), "no sequences", id="sequences outside"),
        pytest.param(table("crc32c", 1, 2**40, None), "outside its batch", id="buffer outside"),
        pytest.param(table("crc32c", 1, -4096, None), "outside its batch", id="buffer before"),
        pytest.param(table("payload", 2, None, 2**40), "outside its batch", id="payloads outside"),
        pytest.param(table("timestamp_ns", 1, None, 8), "cut off", id="column too short"),
        pytest.param(table("seq", None, None, 1), "has nulls", id="nulls where none may be"),
        pytest.param(table("trace_id", None, 7, None), "cut off", id="column of another length"),
        pytest.param(table("trace_id", 0, None, 0), "cut off", id="nulls without a mask"),
    ],
)
def test_what_contradicts_itself_is_refused(change: Change, words: str, writing: Writing, root: Path) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    forge(path, change)
    with pytest.raises(CorruptRecording, match=words):
        list(recording.open(root).frames(STREAM))
    assert not recording.verify(root).ok
    recording.repair(root)
    assert recording.verify(root).ok


def test_the_forgers_tool_leaves_a_sound_file_sound(writing: Writing, root: Path) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    before = path.read_bytes()
    forge(path, lambda content, file, place: None)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(value("shape", 3, "<i", 1, 101), "beyond its payload", id="description"),
        pytest.param(table("crc32c", 1, 2**40, None), "outside its batch", id="place of a buffer"),
        pytest.param(table("seq", None, None, 1), "has nulls", id="nulls"),
    ],
)
def test_a_batch_that_looks_like_the_one_before_it_is_not_believed(
    change: Change, words: str, writing: Writing, root: Path
) -> None:
    """What was read of the batch before is taken again only where nothing differs."""
    with writing() as writer:
        writer.write_batch(frames(0, 3))
        writer.write_batch(frames(3, 3))
    (path,) = segment_files(root)
    forge(path, change, batch=1)
    with pytest.raises(CorruptRecording, match=words):
        list(recording.open(root).frames(STREAM))
    assert [frame.seq for frame in recording.open(root).frames(STREAM, skip_damage=True)] == [0, 1, 2]
