"""The manifest makes opening fast; a missing, outdated or damaged manifest does no harm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.recording import layout, manifest, manifest_store, rows
from tensorpool.recording.manifest import DamagedManifest, RecordKind
from tensorpool.recording.segment_file import SegmentFile
from tensorpool.recording.segment_writer import SegmentStats
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files, seqs


class OpenCounter:
    """Counts the segment files that are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = SegmentFile

        def counting(path: Path, **options: bool) -> object:
            file = real(path, **options)
            self.count += 1
            return file

        monkeypatch.setattr(manifest_store, "SegmentFile", counting)
        monkeypatch.setattr(rows, "SegmentFile", counting)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenCounter:
    return OpenCounter(monkeypatch)


def many_segments(root: Path, count: int) -> None:
    """A recording whose manifest lists `count` segments; only the first and the last have files."""
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(0, 2))
        writer.rotate()
        writer.write_batch(frames(2 * count - 2, 2))
    stats = SegmentStats(rows=2, size_bytes=10)
    records = []
    for first in range(2, 2 * count - 2, 2):
        stats.last_seq = first + 1
        records.append(manifest.make_record(RecordKind.SEALED, layout.SegmentName(STREAM, 1, first), stats))
    manifest_store.append(root, *records)


@pytest.mark.parametrize("count", [2, 300, 3_000])
def test_opening_reads_one_segment_of_any_number(root: Path, count: int, opened: OpenCounter) -> None:
    many_segments(root, count)
    opened.count = 0
    found = recording.open(root)
    assert opened.count == 0
    chosen = found.frames(STREAM)
    assert chosen.first().seq == 0
    assert opened.count == 1
    assert len(chosen) == 2 * count
    assert (chosen[-1].seq, found.latest(STREAM)) == (
        2 * count - 1,
        recording.Cursor(STREAM, 1, 2 * count - 1),
    )
    assert [frame.seq for frame in found.frames(STREAM, seq=(2 * count - 1, None))] == [2 * count - 1]
    assert opened.count == 2


def test_long_log_becomes_a_snapshot(root: Path) -> None:
    many_segments(root, 1_000)
    loaded = manifest.load(root)
    assert len(loaded.segments) == 1_000
    assert loaded.log_records < manifest_store.COMPACT_RECORDS
    assert len(list(manifest.log_files(root))) <= 1
    assert loaded.segments["first_seq"].tolist() == list(range(0, 2_000, 2))


def three_segments(make: Callable[..., Path]) -> Path:
    return make("recording", (0, 4), (4, 4), (8, 4), segment_bytes=1)


def test_missing_manifest_is_rebuilt_from_the_files(make_recording: Callable[..., Path]) -> None:
    root = three_segments(make_recording)
    for path in root.glob("_manifest*"):
        path.unlink()
    assert seqs(recording.open(root)) == list(range(12))
    # Reading writes no files.
    assert not list(root.glob("_manifest*"))
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(12, 1))
    assert len(manifest.load(root).segments) == 4
    assert seqs(recording.open(root)) == list(range(13))


def test_changed_manifest_is_damaged(make_recording: Callable[..., Path]) -> None:
    root = three_segments(make_recording)
    recording.repair(root)
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, manifest.load(root))
    path = root / layout.MANIFEST_FILE
    content = path.read_bytes()
    for at in (*range(0, 40), *range(64, len(content), 7)):
        changed = bytearray(content)
        changed[at] ^= 0x20
        path.write_bytes(changed)
        with pytest.raises(DamagedManifest):
            manifest.load(root)
    for size in range(0, len(content), 13):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedManifest):
            manifest.load(root)
    assert seqs(recording.open(root)) == list(range(12))
    assert [problem.kind for problem in recording.verify(root).problems] == ["manifest"]
    assert recording.repair(root).manifest_rebuilt
    assert recording.verify(root).ok
    assert recording.verify(root).notes == []


def test_log_torn_at_any_byte_loses_no_segment(make_recording: Callable[..., Path]) -> None:
    root = three_segments(make_recording)
    (log,) = manifest.log_files(root)
    content = log.read_bytes()
    assert len(content) == 6 * manifest.RECORD.itemsize
    # A crash in the middle of the log's write comes before its records are counted.
    (root / layout.MANIFEST_COUNT).unlink()
    for size in range(0, len(content), 37):
        log.write_bytes(content[:size])
        # After a crash the directory is newer than the manifest.
        os.utime(log, ns=(0, 0))
        os.utime(root / layout.MANIFEST_FILE, ns=(0, 0))
        assert seqs(recording.open(root)) == list(range(12)), size
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(12, 1))
    assert seqs(recording.open(root)) == list(range(13))
    # The log was continued behind its last complete record, without a rebuild.
    assert (list(manifest.log_files(root)), len(manifest.load(root).segments)) == ([log], 4)


def test_changed_log_record_damages_the_manifest(
    make_recording: Callable[..., Path],
) -> None:
    root = three_segments(make_recording)
    (log,) = manifest.log_files(root)
    content = bytearray(log.read_bytes())
    content[130] ^= 1
    log.write_bytes(content)
    with pytest.raises(DamagedManifest, match="record 1"):
        manifest.load(root)
    assert seqs(recording.open(root)) == list(range(12))


def test_restored_older_manifest_is_brought_up_to_date(
    make_writer: WriterFactory, root: Path, tmp_path: Path
) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 4))
    for path in root.glob("_manifest*"):
        shutil.copy2(path, tmp_path)
    with make_writer() as writer:
        writer.write_batch(frames(4, 4))
        writer.rotate()
        writer.write_batch(frames(8, 4))
    for path in tmp_path.glob("_manifest*"):
        shutil.copy2(path, root)
    assert len(manifest.load(root).segments) == 1
    assert seqs(recording.open(root)) == list(range(12))


def test_unlisted_segments_are_added_before_the_manifest_gets_newer(
    make_recording: Callable[..., Path], root: Path, make_writer: WriterFactory
) -> None:
    other = make_recording("other", (0, 4))
    with make_writer() as writer:
        writer.append([1], stream_id=7, epoch=1, seq=0)
    # Copied by hand, so that the manifest does not list it.
    shutil.copytree(other / f"stream={STREAM}", root / f"stream={STREAM}")
    (root / f"stream={STREAM}" / "epoch=1").touch()
    with make_writer() as writer:
        writer.append([2], stream_id=7, epoch=1, seq=1)
    assert manifest.load(root).segments["stream_id"].tolist() == [7, 7, STREAM]
    assert seqs(recording.open(root)) == [0, 1, 2, 3]


def test_segment_sealed_after_the_last_manifest_record_is_found(
    make_writer: WriterFactory, root: Path
) -> None:
    writer = make_writer()
    writer.write_batch(frames(0, 4))
    segment = writer._streams[STREAM].segment
    assert segment is not None
    # As after a crash between the rename and the manifest record.
    segment.seal()
    os.utime(segment.path.parent, ns=(0, 0))
    assert manifest.load(root).segments["kind"].tolist() == [RecordKind.OPEN]
    assert seqs(recording.open(root)) == [0, 1, 2, 3]
    writer._streams[STREAM].segment = None
    writer.close()


def test_load_retries_when_a_snapshot_is_written_meanwhile(
    make_recording: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = three_segments(make_recording)
    real = manifest._read_snapshot
    generations: list[int] = []

    def read_then_compact(directory: Path, previous: manifest.ManifestSnapshot | None) -> manifest.Manifest:
        found = real(directory, previous)
        if len(generations) < 3:
            generations.append(found.generation)
            with manifest_store.locked(root):
                monkeypatch.setattr(manifest, "_read_snapshot", real)
                manifest_store.compact_locked(root, manifest.load(root))
                monkeypatch.setattr(manifest, "_read_snapshot", read_then_compact)
        return found

    monkeypatch.setattr(manifest, "_read_snapshot", read_then_compact)
    assert len(manifest.load(root).segments) == 3
    assert len(set(generations)) == 3


def test_writers_of_different_streams_share_a_recording(root: Path) -> None:
    with (
        recording.RecordingWriter(root, background=False) as one,
        recording.RecordingWriter(root, background=False) as other,
    ):
        for seq in range(20):
            one.append([seq], stream_id=1, epoch=1, seq=seq)
            other.append([seq], stream_id=2, epoch=1, seq=seq)
            one.rotate()
            other.rotate()
    found = recording.open(root)
    assert found.streams == (1, 2)
    assert [len(found.frames(stream)) for stream in (1, 2)] == [20, 20]
    assert len(manifest.load(root).segments) == len(segment_files(root)) == 40


def test_snapshot_lists_open_segments(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
        with manifest_store.locked(root):
            manifest_store.compact_locked(root, manifest.load(root))
        found = manifest.load(root)
        assert found.log_records == 0
        assert found.open_segments()["kind"].tolist() == [manifest.RecordKind.OPEN]
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, manifest.load(root))
    assert len(manifest.load(root).open_segments()) == 0
