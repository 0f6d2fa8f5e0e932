"""Ledgers of the recordings, compared with the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.pipeline.report import ledgers
from tensorpool.pipeline.report.figures import Report, StreamFigures
from tensorpool.pipeline.report.ledgers import Sequences
from tests.unit.recording.conftest import STREAM, frames


def record(root: Path, first: int, count: int, *, missing_before: int = 0, missing_behind: int = 0) -> Path:
    with recording.RecordingWriter(root, background=False) as writer:
        if missing_before:
            gap = {"first_seq": first - missing_before, "count": missing_before}
            writer.gap(stream_id=STREAM, epoch=1, reason="late", **gap)
        writer.write_batch(frames(first, count))
        if missing_behind:
            gap = {"first_seq": first + count, "count": missing_behind}
            writer.gap(stream_id=STREAM, epoch=1, reason="late", **gap)
    return root


def compare(*roots: Path, recorded: int, dropped: int = 0, rejected: int = 0) -> tuple[list[str], list[str]]:
    stream = StreamFigures(STREAM)
    stream.recorded, stream.frames = recorded, recorded - rejected
    stream.dropped = {"late": dropped} if dropped else {}
    stream.rejected = {"checksum": rejected} if rejected else {}
    report = Report("out", 0, "test", "id", {}, {}, streams=[stream])
    return ledgers.compare(report, [(roots, set())])


def test_gaps_missing_in_the_tables_are_a_fault(tmp_path: Path) -> None:
    root = record(tmp_path / "r", 10, 8, missing_before=10, missing_behind=2)
    (fault,), unread = compare(root, recorded=8)
    assert fault == f"stream {STREAM}: the ledgers of the recordings miss 12 sequences, the tables name 0"
    assert unread == []
    assert compare(root, recorded=8, dropped=12) == ([], [])


def test_frames_missing_in_the_tables_are_a_fault(tmp_path: Path) -> None:
    root = record(tmp_path / "r", 0, 8)
    (fault,), _ = compare(root, recorded=5)
    assert fault == f"stream {STREAM}: the recordings have 8 frames, bronze has 5"


def test_frames_of_another_recording_are_not_missing(tmp_path: Path) -> None:
    one = record(tmp_path / "one", 10, 8, missing_before=10, missing_behind=4)
    other = record(tmp_path / "other", 0, 6)
    assert compare(one, other, recorded=14, dropped=8) == ([], [])
    # One frame of `other` was rejected, and `one` has a gap there: it is named twice.
    assert compare(one, other, recorded=14, dropped=9, rejected=1) == ([], [])
    assert len(compare(one, other, recorded=14, dropped=10)[0]) == 1


def test_removed_recordings_are_reported_as_unread(tmp_path: Path) -> None:
    faults, (reason,) = compare(tmp_path / "gone", recorded=5)
    assert faults == []
    assert "contains no recording" in reason


@pytest.mark.parametrize(
    ("ranges", "others", "left"),
    [
        ([(0, 9)], [], [(0, 9)]),
        ([(0, 9)], [(3, 4), (6, 20)], [(0, 2), (5, 5)]),
        ([(0, 3), (5, 9)], [(2, 6)], [(0, 1), (7, 9)]),
        ([(2, 4)], [(0, 9)], []),
    ],
)
def test_ranges_are_subtracted(
    ranges: list[tuple[int, int]], others: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    found = ledgers.subtract([Sequences(*one) for one in ranges], [Sequences(*one) for one in others])
    assert [tuple(one) for one in found] == left
