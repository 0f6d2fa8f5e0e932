"""The ledger: span = rows + gaps at all times, and each gap has its reason."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import DiskFull, InvalidFrames
from tensorpool.recording import segment_writer
from tensorpool.recording.gaps import Gap, classify_missing, find_holes
from tests.unit.recording.conftest import STREAM, WriterFactory, frames


def gaps_of(root: Path) -> list[tuple[int, int, str]]:
    found = recording.open(root)
    for ledger in found.ledger(STREAM):
        assert ledger.balanced, str(ledger)
    return [(gap.first_seq, gap.last_seq, gap.reason) for gap in found.gaps(STREAM)]


def test_undeclared_gaps_are_found_and_recorded(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(3, 3, seq=np.array([3, 4, 9], np.uint64)))
        writer.write_batch(frames(12, 2))
        writer.rotate()
        writer.write_batch(frames(20, 1))
    assert gaps_of(root) == [(5, 8, "unexplained"), (10, 11, "unexplained"), (14, 19, "unexplained")]
    (ledger,) = recording.open(root).ledger(STREAM)
    assert str(ledger) == "span 18 = rows 6 + unexplained 12"
    # Also in the table of gaps, so that a cut keeps them.
    assert recording.open(root).table("gaps").num_rows == 3


def test_declared_gaps_keep_their_reasons(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.gap(stream_id=STREAM, epoch=1, first_seq=0, count=2, reason="late")
        writer.write_batch(frames(2, 2))
        writer.write_batch(
            frames(6, 4, seq=np.array([6, 7, 10, 11], np.uint64)),
            [Gap(STREAM, 1, 4, 1, "late"), Gap(STREAM, 1, 8, 2, "overrun")],
        )
        writer.gap(stream_id=STREAM, epoch=1, first_seq=12, count=3, reason="disk_full")
        writer.gap(stream_id=STREAM, epoch=1, first_seq=20, count=1, reason="late")
    assert gaps_of(root) == [
        (0, 1, "late"), (4, 4, "late"), (5, 5, "unexplained"), (8, 9, "overrun"), (12, 14, "disk_full"),
        (15, 19, "unexplained"), (20, 20, "late"),
    ]  # fmt: skip
    (ledger,) = recording.open(root).ledger(STREAM)
    assert (ledger.span, ledger.rows) == (21, 6)


def test_gap_between_two_writers_has_the_reason_not_recording(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
        writer.gap(stream_id=STREAM, epoch=1, first_seq=3, count=2, reason="overrun")
    with make_writer() as writer:
        writer.write_batch(frames(10, 2))
        writer.write_batch(frames(14, 1))
    assert gaps_of(root) == [(3, 4, "overrun"), (5, 9, "not_recording"), (12, 13, "unexplained")]


def test_ledger_is_kept_per_epoch(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(100, 3, epoch=1))
        writer.write_batch(frames(5, 2, epoch=4))
    assert gaps_of(root) == []
    assert [(ledger.epoch, ledger.span, ledger.rows) for ledger in recording.open(root).ledger(STREAM)] == [
        (1, 3, 3),
        (4, 2, 2),
    ]


def test_ledger_of_an_epoch_may_begin_with_a_gap(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 1, epoch=1))
        writer.gap(stream_id=STREAM, epoch=2, first_seq=5, count=10, reason="late")
        writer.write_batch(frames(15, 1, epoch=2))
    assert gaps_of(root) == [(5, 14, "late")]


@pytest.mark.parametrize(
    ("first", "count", "message"),
    [(3, 1, "or in a gap"), (2, 5, "or in a gap"), (4, 0, "not a gap"), (2**64 - 1, 2, "not a gap")],
)
def test_invalid_gap_is_rejected(
    first: int, count: int, message: str, make_writer: WriterFactory, root: Path
) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 4))
        with pytest.raises(InvalidFrames, match=message):
            writer.gap(stream_id=STREAM, epoch=1, first_seq=first, count=count, reason="late")
    assert gaps_of(root) == []


def test_frames_out_of_order_are_rejected(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 4, epoch=2))
        with pytest.raises(InvalidFrames, match="recorded already"):
            writer.write_batch(frames(3, 2, epoch=2))
        with pytest.raises(InvalidFrames, match="epochs only grow"):
            writer.write_batch(frames(4, 2, epoch=1))
        writer.gap(stream_id=STREAM, epoch=2, first_seq=6, count=2, reason="late")
        with pytest.raises(InvalidFrames, match=r"declared missing \(late\)"):
            writer.write_batch(frames(5, 2, epoch=2))
        writer.write_batch(frames(4, 2, epoch=2))
        writer.write_batch(frames(8, 1, epoch=2))
    assert gaps_of(root) == [(6, 7, "late")]
    with make_writer() as writer, pytest.raises(InvalidFrames, match="recorded already"):
        writer.write_batch(frames(8, 1, epoch=2))


def test_overlapping_gaps_are_counted_once() -> None:
    declared = [Gap(1, 1, 5, 4, "a"), Gap(1, 1, 7, 6, "b"), Gap(1, 1, 5, 2, "c"), Gap(1, 1, 40, 1, "d")]
    assert classify_missing([(4, 20), (30, 31)], declared, "?") == [
        (4, 4, "?"), (5, 8, "a"), (9, 12, "b"), (13, 20, "?"), (30, 31, "?"),
    ]  # fmt: skip


def test_holes_are_found_near_the_largest_sequence() -> None:
    assert find_holes(np.array([2**64 - 5, 2**64 - 2], np.uint64), after=2**64 - 7) == [
        (2**64 - 6, 2**64 - 6), (2**64 - 4, 2**64 - 3),
    ]  # fmt: skip
    assert find_holes(np.empty(0, np.uint64), after=3) == []


def test_gap_is_written_before_the_rows_behind_it(root: Path, make_writer: WriterFactory) -> None:
    """A writer that is killed right after a batch leaves no hole without a reason."""
    writer = make_writer()
    writer.write_batch(frames(0))
    writer.gap(stream_id=STREAM, epoch=1, first_seq=4, count=2, reason="late")
    writer.write_batch(frames(6), [Gap(STREAM, 1, 10, 5, "recorder_backlog")])
    writer.write_batch(frames(15))
    # No flush, no tick, no close: only the present content of the files.
    with recording.open(root) as found:
        (ledger,) = found.ledger(STREAM)
    assert (ledger.rows, ledger.gaps) == (12, {"late": 2, "recorder_backlog": 5})
    writer.close()


def test_retried_batch_records_its_gaps_once(
    root: Path, make_writer: WriterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer()
    writer.write_batch(frames(0))
    write_all = segment_writer.write_all  # type: ignore[attr-defined]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment_writer, "write_all", full)
    for _ in range(3):
        with pytest.raises(DiskFull):
            writer.write_batch(frames(6), [Gap(STREAM, 1, 4, 2, "late")])
    monkeypatch.setattr(segment_writer, "write_all", write_all)
    writer.write_batch(frames(6), [Gap(STREAM, 1, 4, 2, "late")])
    writer.close()
    with recording.open(root) as found:
        assert found.table("gaps").num_rows == 1
        assert found.ledger(STREAM)[0].gaps == {"late": 2}
