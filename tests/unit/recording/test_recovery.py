"""Recovery after a crash: complete batches are kept, the torn end is truncated and reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import CorruptRecording, NotARecording
from tensorpool.recording import layout
from tensorpool.recording.segment_file import SegmentFile
from tensorpool.recording.segment_writer import SegmentWriter
from tensorpool.recording.stream_writer import recover_stream
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files, seqs

NAME = layout.SegmentName(STREAM, 1, 0)


def left_open(root: Path, *counts: int, nbytes: int = 10) -> tuple[Path, list[int]]:
    """A segment as a killed writer leaves it, and the end of each of its batches."""
    root.mkdir()
    writer = SegmentWriter(root, NAME)
    ends, first = [writer.end], 0
    for count in counts:
        writer.write(frames(first, count, nbytes))
        ends.append(writer.end)
        first += count
    writer.abandon()
    return writer.path, ends


def test_segment_truncated_in_its_last_batch_keeps_earlier_batches(tmp_path: Path, root: Path) -> None:
    path, ends = left_open(root, 3, 2)
    content = path.read_bytes()
    assert len(content) == ends[-1]
    for size in range(ends[1], ends[2] + 1):
        path.write_bytes(content[:size])
        file = SegmentFile(path)
        scan = file.scan_more()
        whole = size == ends[2]
        assert [batch.rows for batch in scan.batches] == ([3, 2] if whole else [3]), size
        assert scan.end == (ends[2] if whole else ends[1])
        tail = file.tail()
        assert (tail.size_bytes if tail else 0) == size - scan.end


def test_version_that_is_no_number_is_rejected(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as forged:
        forged.setattr(layout, "VERSION", "9" * 5000)
        path, _ = left_open(root, 3)
    with pytest.raises(NotARecording, match="not a segment"):
        SegmentFile(path).scan_more()


def test_file_named_by_no_sequence_does_not_stop_a_recovery(root: Path) -> None:
    path, _ = left_open(root, 3)
    path.with_name("²" + layout.PARTIAL).write_bytes(b"")
    assert [segment.rows for segment in recover_stream(root, STREAM)] == [3]


def test_recovery_of_a_segment_truncated_at_any_byte(root: Path, make_writer: WriterFactory) -> None:
    path, ends = left_open(root, 3, 2)
    content = path.read_bytes()
    sealed = NAME.sealed(root)
    for size in [
        0,
        1,
        7,
        8,
        100,
        *range(ends[0] - 2, ends[0] + 2),
        *range(ends[1] - 2, ends[2] + 1, 41),
        ends[2],
    ]:
        for old in (
            *segment_files(root),
            *root.glob("_*/*/*"),
            *root.glob("_tables/*.tables"),
            *root.glob("_manifest*"),
        ):
            old.unlink()
        path.write_bytes(content[:size])
        complete = max((end for end in ends if end <= size), default=0)
        rows = {ends[1]: 3, ends[2]: 5}.get(complete, 0)
        with make_writer() as writer:
            writer.write_batch(frames(10, 2))
        (report,) = writer.recovered
        assert report.rows == rows
        assert report.path == (sealed if rows else None)
        if rows:
            assert report.cut_bytes == size - complete
            assert (report.reason is None) == (size == complete)
        found = recording.open(root)
        assert seqs(found) == [*range(rows), 10, 11]
        (ledger,) = found.ledger(STREAM)
        assert ledger.balanced
        assert ledger.gaps == ({"not_recording": 10 - rows} if rows else {})
        assert recording.verify(root).ok


def test_every_changed_byte_of_the_columns_is_detected(root: Path) -> None:
    path, ends = left_open(root, 3, 2)
    content = bytearray(path.read_bytes())
    payloads = 2 * 64
    for at in range(ends[1] + 8, ends[2] - payloads):
        content[at] ^= 0x10
        path.write_bytes(content)
        assert len(SegmentFile(path).scan_more().batches) == 1, at
        content[at] ^= 0x10


def test_recovery_stops_before_a_damaged_payload(root: Path, make_writer: WriterFactory) -> None:
    path, ends = left_open(root, 2, 2, 2, nbytes=64)
    content = bytearray(path.read_bytes())
    content[ends[2] - 64 : ends[2]] = bytes(64)
    path.write_bytes(content)
    with make_writer() as writer:
        writer.write_batch(frames(6, 1))
    (report,) = writer.recovered
    assert (report.rows, report.cut_bytes) == (2, ends[3] - ends[1])
    assert report.reason == "a payload does not match its checksum"
    assert seqs(recording.open(root)) == [0, 1, 6]


WRITER = """
import sys, numpy as np
from tensorpool import recording
from tests.unit.recording.conftest import frames
limits = recording.WriterLimits(segment_bytes=200_000, sync_ns=10_000_000)
with recording.RecordingWriter(sys.argv[1], limits=limits) as writer:
    first = int(sys.argv[2])
    while True:
        writer.write_batch(frames(first, 5, 3000))
        first += 5
        print(first, flush=True)
"""


def test_killed_writer_loses_no_written_frame(root: Path) -> None:
    done = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(done)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            for _ in range(40):
                done = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            # It may have written more than it could print.
            done = max([done, *(int(line) for line in process.stdout.read().split())])
        found = recording.open(root)
        read = seqs(found)
        assert read[:done] == list(range(done))
        done = len(read)
        assert read == list(range(done))
        assert found.latest(STREAM) == recording.Cursor(STREAM, 1, done - 1)
    assert len(segment_files(root)) > 5
    repaired = recording.repair(root)
    assert [segment.cut_bytes for segment in repaired.recovered] == [0] * len(repaired.recovered)
    assert not list(root.glob("**/*.partial"))
    assert seqs(recording.open(root)) == list(range(done))
    (ledger,) = recording.open(root).ledger(STREAM)
    assert (ledger.span, ledger.rows, ledger.gaps) == (done, done, {})
    assert recording.verify(root).ok


def test_truncated_sealed_segment_is_corrupt(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
        writer.write_batch(frames(3, 3))
    (path,) = segment_files(root)
    scan = SegmentFile(path).scan_more()
    os.truncate(path, scan.batches[1].start)
    found = recording.open(root).frames(STREAM)
    read = []
    with pytest.raises(CorruptRecording, match="3 of 6 rows") as caught:  # noqa: PT012
        for frame in found:
            read.append(frame.seq)
    assert read == [0, 1, 2]
    assert (caught.value.path, caught.value.offset) == (path, scan.batches[1].start)
    assert seqs(recording.open(root), skip_damage=True) == [0, 1, 2]


@pytest.mark.parametrize("where", ["columns", "metadata"])
def test_damage_in_the_middle_loses_one_batch(where: str, make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        for first in (0, 3, 6):
            writer.write_batch(frames(first, 3))
    (path,) = segment_files(root)
    middle = SegmentFile(path).scan_more().batches[1]
    content = bytearray(path.read_bytes())
    content[middle.body + 5 if where == "columns" else middle.start + 30] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CorruptRecording, match="repair") as caught:
        list(recording.open(root).frames(STREAM))
    assert caught.value.offset == middle.start
    chosen = recording.open(root).frames(STREAM, skip_damage=True)
    assert [frame.seq for frame in chosen] == [0, 1, 2, 6, 7, 8]
    assert (len(chosen), chosen[3].seq, chosen[-1].seq) == (6, 6, 8)


def test_changed_payload_is_detected_when_verified(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
    (path,) = segment_files(root)
    ref = recording.open(root).frames(STREAM)[1].ref
    content = bytearray(path.read_bytes())
    content[ref.offset + 7] ^= 1
    path.write_bytes(content)
    found = recording.open(root).frames(STREAM)
    assert [frame.valid() for frame in found] == [True, False, True]
    with pytest.raises(CorruptRecording, match="frame 1") as caught:
        found[1].verify()
    assert caught.value.offset == ref.offset


def test_random_damage_is_rejected(root: Path) -> None:
    path, ends = left_open(root, 3)
    content = path.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(300):
        hostile = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 20)).tolist():
            hostile[at] = int(rng.integers(0, 256))
        path.write_bytes(hostile)
        try:
            file = SegmentFile(path)
        except (CorruptRecording, NotARecording):
            continue
        assert file.scan_more(resume=True).rows in (0, 3)
    assert ends[0] < ends[1]
