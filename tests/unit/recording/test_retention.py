"""Retention removes the oldest segments by size and age, except those that a lease protects."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import ClosedError, NotARecording
from tensorpool.recording import Cursor, manifest, manifest_store
from tensorpool.recording.retention import LeaseKeeper
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files, seqs

SECOND = 1_000_000_000


@pytest.fixture
def ten_segments(make_writer: WriterFactory, root: Path) -> Path:
    """Ten sealed segments of two frames, one segment per second."""
    writer = make_writer()
    for number in range(10):
        times = frames(2 * number, 2).receive_time_ns * 0 + make_writer.clock.wall_ns()
        writer.write_batch(frames(2 * number, 2, receive_time_ns=times))
        writer.rotate()
        make_writer.clock.advance(1.0)
    writer.close()
    return root


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in segment_files(root))


def test_retention_removes_the_oldest_until_the_size_fits(ten_segments: Path, clock: ManualClock) -> None:
    each = size_of(ten_segments) // 10
    done = recording.apply_retention(ten_segments, max_bytes=4 * each, clock=clock)
    assert [name.first_seq for name in done.removed] == [0, 2, 4, 6, 8, 10]
    assert done.kept_bytes == size_of(ten_segments) == 4 * each
    assert seqs(recording.open(ten_segments)) == list(range(12, 20))
    assert recording.apply_retention(ten_segments, max_bytes=4 * each, clock=clock).removed == []
    assert recording.verify(ten_segments).ok


def test_retention_removes_old_segments_of_any_size(ten_segments: Path, clock: ManualClock) -> None:
    done = recording.apply_retention(ten_segments, max_age_ns=4 * SECOND + SECOND // 2, clock=clock)
    assert [name.first_seq for name in done.removed] == [0, 2, 4, 6, 8, 10]
    assert recording.apply_retention(ten_segments, clock=clock).removed == []
    clock.advance(100)
    assert len(recording.apply_retention(ten_segments, max_age_ns=SECOND, clock=clock).removed) == 4
    assert recording.open(ten_segments).streams == ()


def test_retention_keeps_open_segments(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 2))
        writer.rotate()
        writer.write_batch(frames(2, 2))
        done = recording.apply_retention(root, max_bytes=0, max_age_ns=0, clock=make_writer.clock)
        assert [name.first_seq for name in done.removed] == [0]
        assert seqs(recording.open(root)) == [2, 3]
        assert done.kept_bytes > 0


def test_lease_protects_frames_behind_its_cursor(ten_segments: Path, clock: ManualClock) -> None:
    with recording.ReaderLease(
        ten_segments, [Cursor(STREAM, 1, 4)], holder="query-1", ttl_ns=60 * SECOND, clock=clock
    ) as lease:
        done = recording.apply_retention(ten_segments, max_bytes=0, clock=clock)
        # Frame 5 is still needed, and is in the segment that begins with 4.
        assert [name.first_seq for name in done.removed] == [0, 2]
        assert ([name.first_seq for name in done.held], done.holders) == ([4], ["query-1"])
        lease.renew([Cursor(STREAM, 1, 9)])
        assert [
            name.first_seq
            for name in recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed
        ] == [
            4,
            6,
            8,
        ]
        assert seqs(recording.open(ten_segments)) == list(range(10, 20))
    assert len(recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed) == 5
    with pytest.raises(ClosedError):
        lease.renew()


def test_lease_expires_unless_renewed(ten_segments: Path, clock: ManualClock) -> None:
    lease = recording.ReaderLease(ten_segments, [STREAM], holder="dead", ttl_ns=10 * SECOND, clock=clock)
    other = recording.ReaderLease(ten_segments, [99], holder="elsewhere", ttl_ns=1000 * SECOND, clock=clock)
    clock.advance(9)
    assert recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed == []
    lease.renew()
    clock.advance(9)
    assert recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed == []
    assert [lease.holder for lease in recording.read_leases(ten_segments)] == sorted(
        ["dead", "elsewhere"], key=lambda name: {"dead": lease, "elsewhere": other}[name].path
    )
    clock.advance(2)
    assert len(recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed) == 10
    assert [lease.holder for lease in recording.read_leases(ten_segments)] == ["elsewhere"]


def test_unreadable_lease_protects_everything(ten_segments: Path, clock: ManualClock) -> None:
    lease = recording.ReaderLease(ten_segments, [99], holder="h", clock=clock)
    lease.path.write_text("{")
    done = recording.apply_retention(ten_segments, max_bytes=0, clock=clock)
    assert (done.removed, done.holders) == ([], ["unreadable"])
    lease.release()
    assert len(recording.apply_retention(ten_segments, max_bytes=0, clock=clock).removed) == 10


def test_reader_finds_frames_that_retention_removed(ten_segments: Path, clock: ManualClock) -> None:
    found = recording.open(ten_segments)
    cursor = Cursor(STREAM, 1, 3)
    assert found.lost_since(cursor) == []
    recording.apply_retention(ten_segments, max_bytes=size_of(ten_segments) // 2, clock=clock)
    found.refresh()
    (lost,) = found.lost_since(cursor)
    assert (lost.first_seq, lost.last_seq, lost.reason) == (4, 9, "removed")
    assert [frame.seq for frame in found.after(cursor)] == list(range(10, 20))
    assert found.lost_since(Cursor(STREAM, 1, 9)) == []
    # Also after the log became a snapshot.
    with manifest_store.locked(ten_segments):
        manifest_store.compact_locked(ten_segments, manifest.load(ten_segments))
    found.refresh()
    assert found.lost_since(cursor) == [lost]
    (ledger,) = found.ledger(STREAM)
    assert (ledger.first_seq, ledger.span, ledger.rows) == (10, 10, 10)


def test_interrupted_removal_is_completed_later(ten_segments: Path, clock: ManualClock) -> None:
    removed = segment_files(ten_segments)[:5]
    # The removal is in the log, but the files still exist.
    manifest_store.append(
        ten_segments, *manifest_store.removal_records(manifest.load(ten_segments).segments[:5])
    )
    assert all(path.exists() for path in removed)
    assert seqs(recording.open(ten_segments)) == list(range(10, 20))
    recording.apply_retention(ten_segments, max_bytes=size_of(ten_segments) // 2 - 1, clock=clock)
    assert not any(path.exists() for path in removed)
    assert seqs(recording.open(ten_segments)) == list(range(12, 20))


def test_writer_continues_behind_removed_frames(ten_segments: Path, make_writer: WriterFactory) -> None:
    recording.apply_retention(ten_segments, max_bytes=0, clock=make_writer.clock)
    with make_writer() as writer:
        writer.write_batch(frames(25, 1))
    found = recording.open(ten_segments)
    (ledger,) = found.ledger(STREAM)
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (20, 1, {"not_recording": 5})


def test_lease_keeper_renews_and_moves_the_lease_when_due(ten_segments: Path, clock: ManualClock) -> None:
    keeper = LeaseKeeper(ten_segments, holder="replay", ttl_ns=60 * SECOND, clock=clock)
    keeper.hold([STREAM])
    (first,) = recording.read_leases(ten_segments)
    clock.advance(19)
    keeper.poll(clock.monotonic_ns(), [Cursor(STREAM, 1, 4)])
    assert recording.read_leases(ten_segments) == [first]
    clock.advance(2)
    keeper.poll(clock.monotonic_ns(), [Cursor(STREAM, 1, 4)])
    (second,) = recording.read_leases(ten_segments)
    assert (second.path, second.deadline_ns - first.deadline_ns) == (first.path, 21 * SECOND)
    assert second.cursors == {STREAM: (1, 4)}
    keeper.release()
    assert recording.read_leases(ten_segments) == []


def test_lease_keeper_without_a_lease_logs_once_and_continues(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = LeaseKeeper(tmp_path / "nothing", holder="replay", clock=clock, missing_level=logging.INFO)
    with caplog.at_level(logging.INFO, logger="tensorpool.recording.retention"):
        keeper.hold([STREAM])
        keeper.hold([STREAM])
    assert [(record.levelno, "no lease" in record.message) for record in caplog.records] == [
        (logging.INFO, True)
    ]
    keeper.poll(clock.monotonic_ns() + 100 * SECOND, [])
    keeper.start()
    keeper.release()


def test_lease_requires_a_recording(tmp_path: Path) -> None:
    with pytest.raises(NotARecording):
        recording.ReaderLease(tmp_path, [1], holder="h")


def _claim_and_read(root: Path, results: multiprocessing.Queue) -> None:
    with recording.ReaderLease(root, [STREAM], holder="reader", ttl_ns=60 * SECOND):
        results.put(seqs(recording.open(root)))


def test_lease_and_concurrent_retention_are_ordered(ten_segments: Path, clock: ManualClock) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with manifest_store.locked(ten_segments):
        reader = context.Process(target=_claim_and_read, args=(ten_segments, results))
        reader.start()
    # In either order, the frames that the reader saw under its lease existed while it read them.
    recording.apply_retention(ten_segments, max_bytes=size_of(ten_segments) // 2, clock=clock)
    read = results.get(timeout=60)
    reader.join()
    results.close()
    results.join_thread()
    assert read in (list(range(20)), list(range(10, 20)))
