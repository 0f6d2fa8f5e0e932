"""Places in a message are found by its neighbours where they are alike, and are those that a walk finds."""

from __future__ import annotations

from pathlib import Path

from tensorpool.recording.message import PREFIX_BYTES, BadMessage, PlaceFinder, Places, find_places
from tensorpool.recording.scan import SegmentFile
from tests.unit.recording.conftest import Writing, frames, segment_files


def outcome(find: object, metadata: bytes) -> Places | str:
    assert callable(find)
    try:
        found: Places = find(memoryview(metadata))
    except BadMessage as error:
        return str(error)
    return found


def test_a_message_with_any_byte_changed_is_found_out_as_if_it_came_alone(
    writing: Writing, root: Path
) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    file = SegmentFile(path)
    (place,) = file.scan_more().batches
    sound = bytes(file.data[place.start + PREFIX_BYTES : place.body])
    finder = PlaceFinder()
    for at in range(len(sound)):
        for bits in (0x01, 0xFF):
            changed = bytearray(sound)
            changed[at] ^= bits
            # The sound one before each: what it taught must not hide the change.
            assert outcome(finder.find, sound) == outcome(find_places, sound)
            assert outcome(finder.find, bytes(changed)) == outcome(find_places, bytes(changed)), (at, bits)
