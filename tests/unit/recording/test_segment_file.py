"""The scan of a segment with `scan_batches` finds the same batches as decoding each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool.recording.segment_file import BatchLocation, SegmentFile
from tests.unit.recording.conftest import WriterFactory, frames, segment_files


def decoded_batches(file: SegmentFile) -> list[BatchLocation | str]:
    """The batches, each decoded on its own, and the reason why the last position has none."""
    batches: list[BatchLocation | str] = []
    at = SegmentFile(file.path).scan.end
    while isinstance(location := file.batch_at(at), BatchLocation):
        batches.append(location)
        at = location.end
    return [*batches, location]


def scanned_batches(file: SegmentFile) -> list[BatchLocation | str]:
    """The same from the scan, which decodes the first batch of a run only."""
    scan, tail = file.scan_more(), file.tail()
    batches = [location._replace(same_tensors_at=location.start) for location in scan.batches]
    return [*batches, "" if tail is None else tail.reason]


@pytest.fixture
def path(make_writer: WriterFactory, root: Path) -> Path:
    with make_writer() as writer:
        for first, count in ((0, 3), (3, 3), (6, 2), (8, 2), (10, 3)):
            writer.write_batch(frames(first, count, 10))
    (path,) = segment_files(root)
    return path


def test_scan_marks_batches_with_the_same_tensors(path: Path) -> None:
    batches = SegmentFile(path).scan_more().batches
    starts = [location.start for location in batches]
    assert [starts.index(location.same_tensors_at) for location in batches] == [0, 0, 2, 2, 4]
    assert [(location.rows, location.first_seq, location.last_seq) for location in batches] == [
        (3, 0, 2), (3, 3, 5), (2, 6, 7), (2, 8, 9), (3, 10, 12),
    ]  # fmt: skip


def test_tensors_are_shared_by_batches_with_the_same_tensors(path: Path) -> None:
    file = SegmentFile(path)
    batches = file.scan_more().batches
    # In any order, and repeatedly.
    for number in (1, 0, 2, 4, 3, 1):
        location = batches[number]
        batch_layout, tensors = file.read_tensors(location)
        assert (batch_layout.key.rows, len(tensors.dtype)) == (location.rows, location.rows)
        assert batch_layout.key == file.layouts.get(file.data, location).key
    assert file.read_tensors(batches[3]) == file.read_tensors(batches[2])


def test_scan_detects_a_change_of_any_byte(path: Path, tmp_path: Path) -> None:
    intact = path.read_bytes()
    file = SegmentFile(path)
    assert scanned_batches(file) == decoded_batches(file)
    location = file.scan.batches[1]
    columns = file.layouts.get(file.data, location).payloads_at
    changed_path = tmp_path / "changed"
    for at in range(location.start, location.body + columns):
        changed = bytearray(intact)
        changed[at] ^= 0x01 if at % 2 else 0xFF
        changed_path.write_bytes(changed)
        changed_file = SegmentFile(changed_path)
        batches = scanned_batches(changed_file)
        assert batches == decoded_batches(changed_file), at
        assert len(batches) < 6, at


def test_scan_of_a_truncated_file_finds_complete_batches(path: Path, tmp_path: Path) -> None:
    intact, truncated_path = path.read_bytes(), tmp_path / "truncated"
    third = SegmentFile(path).scan_more().batches[2]
    for size in range(third.start, third.end + 1):
        truncated_path.write_bytes(intact[:size])
        file = SegmentFile(truncated_path)
        batches = scanned_batches(file)
        assert len(batches) == (4 if size == third.end else 3)
        assert batches[:-1] == decoded_batches(file)[:-1]
