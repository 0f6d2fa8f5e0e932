"""Retention removes the oldest by size and age, and never what a lease still covers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import ClosedError, NotARecording
from tensorpool.recording import Cursor, manifest, manifest_store
from tests.unit.recording.conftest import STREAM, Writing, frames, segment_files, seqs

SECOND = 1_000_000_000


@pytest.fixture
def ten(writing: Writing, root: Path) -> Path:
    """Ten sealed segments of two frames, one a second, and an open one."""
    writer = writing()
    for number in range(10):
        times = frames(2 * number, 2).receive_time_ns * 0 + writing.clock.wall_ns()
        writer.write_batch(frames(2 * number, 2, receive_time_ns=times))
        writer.rotate()
        writing.clock.advance(1.0)
    writer.close()
    return root


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in segment_files(root))


def test_the_oldest_go_until_the_size_fits(ten: Path, clock: ManualClock) -> None:
    each = size_of(ten) // 10
    done = recording.retain(ten, max_bytes=4 * each, clock=clock)
    assert [name.first_seq for name in done.removed] == [0, 2, 4, 6, 8, 10]
    assert done.kept_bytes == size_of(ten) == 4 * each
    assert seqs(recording.open(ten)) == list(range(12, 20))
    assert recording.retain(ten, max_bytes=4 * each, clock=clock).removed == []
    assert recording.verify(ten).ok


def test_what_is_too_old_goes_whatever_the_size(ten: Path, clock: ManualClock) -> None:
    done = recording.retain(ten, max_age_ns=4 * SECOND + SECOND // 2, clock=clock)
    assert [name.first_seq for name in done.removed] == [0, 2, 4, 6, 8, 10]
    assert recording.retain(ten, clock=clock).removed == []
    clock.advance(100)
    assert len(recording.retain(ten, max_age_ns=SECOND, clock=clock).removed) == 4
    assert recording.open(ten).streams == ()


def test_what_is_open_stays(writing: Writing, root: Path) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 2))
        writer.rotate()
        writer.write_batch(frames(2, 2))
        done = recording.retain(root, max_bytes=0, max_age_ns=0, clock=writing.clock)
        assert [name.first_seq for name in done.removed] == [0]
        assert seqs(recording.open(root)) == [2, 3]
        assert done.kept_bytes > 0


def test_a_lease_keeps_what_lies_behind_its_cursor(ten: Path, clock: ManualClock) -> None:
    with recording.ReaderLease(
        ten, [Cursor(STREAM, 1, 4)], holder="query-1", ttl_ns=60 * SECOND, clock=clock
    ) as lease:
        done = recording.retain(ten, max_bytes=0, clock=clock)
        # Frame 5 is still needed, and lies in the segment of 4.
        assert [name.first_seq for name in done.removed] == [0, 2]
        assert ([name.first_seq for name in done.held], done.holders) == ([4], ["query-1"])
        lease.renew([Cursor(STREAM, 1, 9)])
        assert [name.first_seq for name in recording.retain(ten, max_bytes=0, clock=clock).removed] == [
            4,
            6,
            8,
        ]
        assert seqs(recording.open(ten)) == list(range(10, 20))
    assert len(recording.retain(ten, max_bytes=0, clock=clock).removed) == 5
    with pytest.raises(ClosedError):
        lease.renew()


def test_a_lease_ends_with_its_time_unless_renewed(ten: Path, clock: ManualClock) -> None:
    lease = recording.ReaderLease(ten, [STREAM], holder="dead", ttl_ns=10 * SECOND, clock=clock)
    other = recording.ReaderLease(ten, [99], holder="elsewhere", ttl_ns=1000 * SECOND, clock=clock)
    clock.advance(9)
    assert recording.retain(ten, max_bytes=0, clock=clock).removed == []
    lease.renew()
    clock.advance(9)
    assert recording.retain(ten, max_bytes=0, clock=clock).removed == []
    assert [one.holder for one in recording.read_leases(ten)] == sorted(
        ["dead", "elsewhere"], key=lambda name: {"dead": lease, "elsewhere": other}[name].path
    )
    clock.advance(2)
    assert len(recording.retain(ten, max_bytes=0, clock=clock).removed) == 10
    assert [one.holder for one in recording.read_leases(ten)] == ["elsewhere"]


def test_a_lease_that_cannot_be_read_keeps_everything(ten: Path, clock: ManualClock) -> None:
    lease = recording.ReaderLease(ten, [99], holder="h", clock=clock)
    lease.path.write_text("{")
    done = recording.retain(ten, max_bytes=0, clock=clock)
    assert (done.removed, done.holders) == ([], ["unreadable"])
    lease.release()
    assert len(recording.retain(ten, max_bytes=0, clock=clock).removed) == 10


def test_a_reader_learns_what_it_missed(ten: Path, clock: ManualClock) -> None:
    found = recording.open(ten)
    cursor = Cursor(STREAM, 1, 3)
    assert found.lost_since(cursor) == []
    recording.retain(ten, max_bytes=size_of(ten) // 2, clock=clock)
    found.refresh()
    (lost,) = found.lost_since(cursor)
    assert (lost.first_seq, lost.last_seq, lost.reason) == (4, 9, "removed")
    assert [frame.seq for frame in found.after(cursor)] == list(range(10, 20))
    assert found.lost_since(Cursor(STREAM, 1, 9)) == []
    # It stays known when the log has become a snapshot.
    with manifest_store.locked(ten):
        manifest_store.compact_locked(ten, manifest.load(ten))
    found.refresh()
    assert found.lost_since(cursor) == [lost]
    (ledger,) = found.ledger(STREAM)
    assert (ledger.first_seq, ledger.span, ledger.rows) == (10, 10, 10)


def test_a_removal_that_a_crash_interrupted_is_finished_later(ten: Path, clock: ManualClock) -> None:
    gone = segment_files(ten)[:5]
    # Said, and not yet done.
    manifest_store.append(ten, *manifest_store.removed(manifest.load(ten).segments[:5]))
    assert all(path.exists() for path in gone)
    assert seqs(recording.open(ten)) == list(range(10, 20))
    recording.retain(ten, max_bytes=size_of(ten) // 2 - 1, clock=clock)
    assert not any(path.exists() for path in gone)
    assert seqs(recording.open(ten)) == list(range(12, 20))


def test_a_writer_goes_on_behind_what_was_removed(ten: Path, writing: Writing) -> None:
    recording.retain(ten, max_bytes=0, clock=writing.clock)
    with writing() as writer:
        writer.write_batch(frames(25, 1))
    found = recording.open(ten)
    (ledger,) = found.ledger(STREAM)
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (20, 1, {"not_recording": 5})


def test_a_lease_needs_a_recording(tmp_path: Path) -> None:
    with pytest.raises(NotARecording):
        recording.ReaderLease(tmp_path, [1], holder="h")


def _claim_and_read(root: Path, results: multiprocessing.Queue) -> None:
    with recording.ReaderLease(root, [STREAM], holder="reader", ttl_ns=60 * SECOND):
        results.put(seqs(recording.open(root)))


def test_a_lease_taken_while_retention_runs_is_either_seen_or_comes_after(
    ten: Path, clock: ManualClock
) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with manifest_store.locked(ten):
        reader = context.Process(target=_claim_and_read, args=(ten, results))
        reader.start()
    # Whoever came first, what the reader saw under its lease was there while it read.
    recording.retain(ten, max_bytes=size_of(ten) // 2, clock=clock)
    read = results.get(timeout=60)
    reader.join()
    results.close()
    results.join_thread()
    assert read in (list(range(20)), list(range(10, 20)))
