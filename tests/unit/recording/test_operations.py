"""info, verify, repair, cut and merge, on intact and on damaged recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import FrameNotRecorded, LockHeld, MergeConflict, NotARecording
from tensorpool.recording import layout, manifest
from tensorpool.recording.segment_file import SegmentFile
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files, seqs

Make = Callable[..., Path]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def test_info_of_a_recording_that_is_being_written(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 5))
        writer.rotate()
        writer.write_batch(frames(8, 2))
        writer.append([1], stream_id=7, epoch=3, seq=0)
        writer.flush()
        with recording.ReaderLease(root, [STREAM], holder="query"):
            found = recording.info(root)
    small, large = found.streams
    assert (small.stream_id, small.rows, small.open_segments) == (7, 1, 1)
    assert (large.segments, large.open_segments, large.rows) == (2, 1, 7)
    assert (large.first_time_ns, large.last_time_ns) == (0, 9_000)
    assert large.missing == {"unexplained": 3}
    assert [lease.holder for lease in found.leases] == ["query"]
    assert found.rows == 8
    assert found.size_bytes > sum(path.stat().st_size for path in segment_files(root)) * 0.9


def test_intact_recording_verifies(make_recording: Make) -> None:
    root = make_recording("r", (0, 5), (5, 3), (10, 2), segment_bytes=1)
    steps: list[tuple[int, int]] = []
    found = recording.verify(root, progress=lambda done, total: steps.append((done, total)))
    assert (found.ok, found.notes, found.rows, found.segments) == (True, [], 10, 3)
    assert [str(ledger) for ledger in found.ledgers] == ["span 12 = rows 10 + unexplained 2"]
    assert steps[-1] == (found.size_bytes, found.size_bytes)
    assert len(steps) == 3


def test_verify_names_each_kind_of_damage(make_recording: Make) -> None:
    root = make_recording("r", (0, 3), (3, 3), (6, 3), (9, 3), (12, 3), segment_bytes=1)
    paths = segment_files(root)
    flip(paths[0], recording.open(root).frame(STREAM, 1).ref.offset)
    flip(paths[1], SegmentFile(paths[1]).scan_more().batches[0].body)
    flip(paths[2], 4)
    paths[3].unlink()
    with paths[4].open("r+b") as file:
        file.truncate(SegmentFile(paths[4]).scan_more().batches[0].end - 1)
    found = recording.verify(root)
    assert not found.ok
    assert {(problem.kind, problem.path) for problem in found.problems} == {
        ("payload", paths[0]), ("torn", paths[1]), ("schema", paths[2]),
        ("missing", paths[3]), ("torn", paths[4]),
    }  # fmt: skip
    assert "frame 1" in next(str(problem) for problem in found.problems if problem.kind == "payload")


def test_verify_finds_a_misplaced_segment(make_recording: Make) -> None:
    root = make_recording("r", (0, 3))
    (path,) = segment_files(root)
    wrong = root / "stream=5" / "epoch=1" / path.name
    wrong.parent.mkdir(parents=True)
    path.rename(wrong)
    kinds = {problem.kind for problem in recording.verify(root).problems}
    assert kinds == {"misplaced", "missing"}


def test_repair_keeps_intact_frames_and_adds_gaps(make_recording: Make) -> None:
    root = make_recording("r", (0, 4), (4, 4), (8, 4), (12, 4))
    (path,) = segment_files(root)
    scan = SegmentFile(path).scan_more()
    flip(path, recording.open(root).frame(STREAM, 1).ref.offset)
    flip(path, scan.batches[1].body)
    done = recording.repair(root)
    assert [(gap.first_seq, gap.last_seq, gap.reason) for gap in done.lost] == [
        (1, 1, "corrupt"),
        (4, 7, "corrupt"),
    ]
    assert done.changed
    assert [path.parent.name for path in done.quarantined] == [layout.DAMAGED_DIR]
    found = recording.open(root)
    assert seqs(found) == [0, 2, 3, *range(8, 16)]
    (ledger,) = found.ledger(STREAM)
    assert (ledger.span, ledger.gaps) == (16, {"corrupt": 5})
    assert recording.verify(root).ok
    assert recording.verify(root).notes == []
    assert not recording.repair(root).changed


@pytest.mark.parametrize("at", [0, 4, 200])
def test_repair_of_a_damaged_schema_loses_no_frames(at: int, make_recording: Make) -> None:
    root = make_recording("r", (0, 4), (4, 4))
    (path,) = segment_files(root)
    flip(path, at)
    assert recording.verify(root).problems or at == 200
    recording.repair(root)
    assert seqs(recording.open(root)) == list(range(8))
    assert recording.verify(root).ok


def test_repair_turns_an_unreadable_segment_into_a_gap(make_recording: Make) -> None:
    root = make_recording("r", (0, 4), (4, 4), (8, 4), segment_bytes=1)
    path = segment_files(root)[1]
    path.write_bytes(b"\0" * 5_000)
    recording.repair(root)
    found = recording.open(root)
    assert seqs(found) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert found.ledger(STREAM)[0].gaps == {"corrupt": 4}
    assert recording.verify(root).ok


def test_repair_rebuilds_a_missing_manifest(make_recording: Make) -> None:
    root = make_recording("r", (0, 4), (4, 4), segment_bytes=1)
    for path in root.glob("_manifest*"):
        path.unlink()
    assert recording.repair(root).manifest_rebuilt
    assert manifest.load(root).segments["rows"].tolist() == [4, 4]


def test_repair_lists_copied_segments(make_recording: Make) -> None:
    root, other = make_recording("r", (0, 4)), make_recording("other", (4, 4))
    (path,) = segment_files(other)
    path.rename(segment_files(root)[0].parent / path.name)
    assert recording.repair(root).manifest_rebuilt
    assert manifest.load(root).segments["first_seq"].tolist() == [0, 4]
    assert seqs(recording.open(root)) == list(range(8))


def test_repair_fails_while_a_writer_is_running(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 2))
        with pytest.raises(LockHeld, match="writer"):
            recording.repair(root)
        with pytest.raises(LockHeld, match=r"written by process \d+ .*; stop that process, or use another"):
            make_writer().write_batch(frames(2, 2))
    assert not recording.repair(root).changed


def test_cut_copies_frames_gaps_and_tables(make_writer: WriterFactory, root: Path, tmp_path: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 5))
        writer.gap(stream_id=STREAM, epoch=1, first_seq=5, count=3, reason="late")
        writer.write_batch(frames(8, 5))
        writer.write_batch(frames(13, 5))
        writer.gap(stream_id=STREAM, epoch=1, first_seq=18, count=4, reason="overrun")
        writer.append([1], stream_id=7, epoch=1, seq=0)
        writer.mark("start")
        writer.mark("other", stream_id=7)
    steps: list[int] = []
    done = recording.cut(
        root, tmp_path / "part", streams=[STREAM], seq=(3, 19), progress=lambda at, total: steps.append(at)
    )
    assert (done.rows, done.streams) == (12, {STREAM})
    assert steps
    part = recording.open(tmp_path / "part")
    assert seqs(part) == [3, 4, *range(8, 18)]
    assert [(gap.first_seq, gap.last_seq, gap.reason) for gap in part.gaps(STREAM)] == [
        (5, 7, "late"), (18, 19, "overrun"),
    ]  # fmt: skip
    assert [row["label"] for row in part.table("marks").to_pylist()] == ["start"]
    assert recording.verify(tmp_path / "part").ok
    with recording.open(root) as whole:
        for frame in part.frames(STREAM):
            original = whole.frame(STREAM, frame.seq)
            for name in ("timestamp_ns", "receive_time_ns", "meta_version", "trace_id", "crc32c", "shape"):
                assert getattr(frame, name) == getattr(original, name)


def test_cut_by_time_records_left_out_frames_as_gaps(
    make_writer: WriterFactory, root: Path, tmp_path: Path
) -> None:
    times = np.array([10, 20, 90, 30], np.int64)
    with make_writer() as writer:
        writer.write_batch(frames(0, 4, receive_time_ns=times))
    recording.cut(root, tmp_path / "part", time=(15, 40))
    part = recording.open(tmp_path / "part")
    assert seqs(part) == [1, 3]
    assert part.ledger(STREAM)[0].gaps == {"cut": 1}
    recording.cut(root, tmp_path / "none", time=(1_000, None))
    assert recording.open(tmp_path / "none").streams == ()


def test_cut_requires_a_new_directory(make_recording: Make, tmp_path: Path) -> None:
    root = make_recording("r", (0, 4))
    with pytest.raises(NotARecording, match="not empty"):
        recording.cut(root, root)
    with pytest.raises(FrameNotRecorded):
        recording.cut(root, tmp_path / "part", streams=[5])


def test_merge_orders_frames_and_takes_each_once(make_recording: Make, tmp_path: Path) -> None:
    one = make_recording("one", (0, 10), (20, 5))
    two = make_recording("two", (5, 10))
    three = make_recording("three", (30, 5))
    newer = make_recording("newer", (0, 3), epoch=2)
    done = recording.merge([three, one, two, newer], tmp_path / "all")
    found = recording.open(tmp_path / "all")
    assert [(frame.epoch, frame.seq) for frame in found.frames(STREAM)] == [
        *((1, seq) for seq in (*range(15), *range(20, 25), *range(30, 35))), *((2, seq) for seq in range(3)),
    ]  # fmt: skip
    assert done.rows == 28
    first, second = found.ledger(STREAM)
    # The gap of `one` is filled from `two`; sequences that no recording has get their own reason.
    assert first.gaps == {"unexplained": 5, "not_recorded": 5}
    assert (first.balanced, second.gaps) == (True, {})
    assert recording.verify(tmp_path / "all").ok


def test_merge_of_equal_recordings_adds_nothing(make_recording: Make, tmp_path: Path) -> None:
    root = make_recording("r", (0, 50), (50, 50))
    recording.merge([root, root], tmp_path / "both")
    (segment,) = segment_files(tmp_path / "both")
    assert seqs(recording.open(tmp_path / "both")) == list(range(100))
    assert segment.stat().st_size == segment_files(root)[0].stat().st_size


def test_merge_of_conflicting_recordings_fails(
    make_writer: WriterFactory, root: Path, make_recording: Make, tmp_path: Path
) -> None:
    other = make_recording("other", (0, 4))
    with make_writer() as writer:
        writer.write_batch(frames(2, 4, seq=np.array([1, 2, 3, 4], np.uint64)))
    with pytest.raises(MergeConflict, match="sequence 1; cut"):
        recording.merge([other, root], tmp_path / "all")
