"""Batches are found by their neighbours where they are alike, and are those that a walk finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool.recording.segment_file import BatchLocation, SegmentFile
from tests.unit.recording.conftest import Writing, frames, segment_files


def walked(file: SegmentFile) -> list[BatchLocation | str]:
    """What each batch looks like on its own, and why the last is none."""
    found: list[BatchLocation | str] = []
    at = SegmentFile(file.path).scan.end
    while isinstance(place := file._batch_at(at), BatchLocation):
        found.append(place)
        at = place.end
    return [*found, place]


def scanned(file: SegmentFile) -> list[BatchLocation | str]:
    """The same by the scan, which walks through the first one only."""
    scan, tail = file.scan_more(), file.tail()
    batches = [place._replace(like=place.start) for place in scan.batches]
    return [*batches, "" if tail is None else tail.reason]


@pytest.fixture
def path(writing: Writing, root: Path) -> Path:
    with writing() as writer:
        for first, count in ((0, 3), (3, 3), (6, 2), (8, 2), (10, 3)):
            writer.write_batch(frames(first, count, 10))
    (path,) = segment_files(root)
    return path


def test_batches_that_say_the_same_are_known_as_such(path: Path) -> None:
    batches = SegmentFile(path).scan_more().batches
    starts = [place.start for place in batches]
    assert [starts.index(place.like) for place in batches] == [0, 0, 2, 2, 4]
    assert [(place.rows, place.first_seq, place.last_seq) for place in batches] == [
        (3, 0, 2), (3, 3, 5), (2, 6, 7), (2, 8, 9), (3, 10, 12),
    ]  # fmt: skip


def test_what_is_known_of_one_is_read_of_those_that_are_like_it(path: Path) -> None:
    file = SegmentFile(path)
    batches = file.scan_more().batches
    # In any order, and back again.
    for number in (1, 0, 2, 4, 3, 1):
        place = batches[number]
        form, tensors = file.described(place)
        assert (form.key[0], len(tensors.dtype)) == (place.rows, place.rows)
        assert form.key == file.forms.of(file.data, place).key
    assert file.described(batches[3]) == file.described(batches[2])


def test_a_batch_with_any_byte_changed_is_found_out_as_if_it_came_alone(path: Path, tmp_path: Path) -> None:
    sound = path.read_bytes()
    file = SegmentFile(path)
    assert scanned(file) == walked(file)
    place = file.scan.batches[1]
    columns = file.forms.of(file.data, place).payloads_at
    changed_path = tmp_path / "changed"
    for at in range(place.start, place.body + columns):
        changed = bytearray(sound)
        changed[at] ^= 0x01 if at % 2 else 0xFF
        changed_path.write_bytes(changed)
        one = SegmentFile(changed_path)
        found = scanned(one)
        assert found == walked(one), at
        assert len(found) < 6, at


def test_cut_at_any_byte_what_is_whole_is_found(path: Path, tmp_path: Path) -> None:
    sound, cut = path.read_bytes(), tmp_path / "cut"
    begin, end = SegmentFile(path).scan_more().batches[2][0:3:2]
    for size in range(begin, end + 1):
        cut.write_bytes(sound[:size])
        one = SegmentFile(cut)
        found = scanned(one)
        assert len(found) == (4 if size == end else 3)
        assert found[:-1] == walked(one)[:-1]
