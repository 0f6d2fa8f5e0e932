"""From pieces to files, with a disk that is full, slow to recover, or never does."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import DiskFull
from tensorpool.recorder.arena import ArenaRows, TimedGap
from tensorpool.recorder.sink import Sink
from tensorpool.recording import Gap, segment_writer
from tests.unit.recording.conftest import STREAM, frames

from .test_account import piece


class Scene:
    """A sink, the clock, and a disk whose room the test decides."""

    def __init__(self, root: Path, keep_free: int = 0) -> None:
        self.root = root
        self.clock = ManualClock()
        self.free = 1 << 30
        self.heard: list[bool] = []
        self.keep_free = keep_free
        self.sink = self.open()

    def open(self) -> Sink:
        sink = Sink(
            self.root,
            limits=recording.WriterLimits(),
            keep_free_bytes=self.keep_free,
            clock=self.clock,
            on_disk=self.heard.append,
            free=lambda _: self.free,
        )
        sink.open_stream(STREAM)
        return sink

    def later(self) -> None:
        self.clock.advance(2.0)

    def ledger(self) -> list[recording.RecordingLedger]:
        with recording.open(self.root) as found:
            return found.ledger(STREAM)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**options: Any) -> Scene:
        made.append(Scene(tmp_path / "recording", **options))
        return made[-1]

    yield make
    for one in made:
        one.sink.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`full_disk(True)`: segments cannot be written to from here on."""
    write_all = segment_writer.write_all  # type: ignore[attr-defined]

    def write(fd: int, parts: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda is_full: monkeypatch.setattr(segment_writer, "write_all", write if is_full else write_all)


def test_what_is_free_is_known_before_the_first_look(scene: Callable[..., Scene]) -> None:
    assert scene().sink.free_bytes == 1 << 30


def test_what_is_put_is_written_and_accounted_for(scene: Callable[..., Scene]) -> None:
    one = scene()
    one.sink.put(piece(10, 4, (14, 2, 4)))
    one.sink.put(piece(16, 2))
    assert one.sink.work()
    assert one.sink.rows == 6
    assert one.sink.gaps() == {"late": 2}
    one.sink.close()
    assert one.ledger() == one.sink.ledgers()
    assert one.ledger()[0].balanced


def test_a_gap_of_the_epoch_before_still_counts(scene: Callable[..., Scene]) -> None:
    one = scene()
    one.sink.put(piece(10, 4))
    one.sink.put(piece(0, 2, epoch=2))
    stray = TimedGap(Gap(STREAM, 1, 14, 3, "epoch"), 0, 0)
    one.sink.put(ArenaRows(STREAM, 2, frames(2, 1, epoch=2), (stray,)))
    assert one.sink.work()
    one.sink.close()
    assert [(found.rows, found.gaps) for found in one.ledger()] == [(4, {"epoch": 3}), (3, {})]
    assert one.ledger() == one.sink.ledgers()


def test_a_full_disk_keeps_the_line_and_goes_on_when_there_is_room(
    scene: Callable[..., Scene], full_disk: Callable[[bool], None]
) -> None:
    one = scene()
    one.sink.put(piece(10, 4))
    assert one.sink.work()
    full_disk(True)
    one.sink.put(piece(14, 4))
    one.sink.put(piece(18, 4))
    assert not one.sink.work()
    assert one.heard == [False]
    assert one.sink.waiting_rows == 8
    one.later()
    assert not one.sink.work(), "there was room, and then there was none"
    full_disk(False)
    assert not one.sink.work(), "it does not ask all the time"
    one.later()
    assert one.sink.work()
    assert one.heard[-1] is True
    one.sink.close()
    (ledger,) = one.ledger()
    assert (ledger.rows, ledger.gaps) == (12, {})


def test_what_a_full_disk_never_took_is_counted_at_the_end(
    scene: Callable[..., Scene], full_disk: Callable[[bool], None]
) -> None:
    one = scene()
    one.sink.put(piece(10, 4))
    assert one.sink.work()
    full_disk(True)
    one.sink.put(piece(14, 4, (18, 2, 4)))
    assert not one.sink.work()
    full_disk(False)
    one.sink.disk.failed(one.clock.monotonic_ns(), "still full")
    one.free = 0
    one.sink.close()
    (ledger,) = one.ledger()
    assert (ledger.rows, ledger.gaps) == (4, {"disk_full": 4, "late": 2})
    assert one.sink.ledgers() == [ledger]


def test_room_that_has_to_be_kept_free_is_kept_free(scene: Callable[..., Scene]) -> None:
    one = scene(keep_free=1000)
    one.free = 999
    one.sink.put(piece(10, 4))
    assert not one.sink.work()
    assert one.sink.rows == 0
    one.later()
    one.free = 1999
    assert not one.sink.work()
    one.later()
    one.free = 2000
    assert one.sink.work()
    assert one.sink.rows == 4


def test_frames_that_the_writer_refuses_are_gaps(scene: Callable[..., Scene]) -> None:
    one = scene()
    one.sink.put(piece(10, 2))
    wrong = frames(12, 2, dtype=np.array([1, 99], np.int16))
    one.sink.put(ArenaRows(STREAM, 1, wrong, (TimedGap(Gap(STREAM, 1, 14, 1, "late"), 2, 0),)))
    one.sink.put(piece(15, 1))
    assert one.sink.work()
    one.sink.close()
    (ledger,) = one.ledger()
    assert (ledger.rows, ledger.gaps) == (3, {"unfit": 2, "late": 1})
    assert one.sink.ledgers() == [ledger]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_gap_beside_rows_that_are_not_written_is_told_once(
    scene: Callable[..., Scene],
    full_disk: Callable[[bool], None],
    is_refused: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the epoch before, of its own, and the hole in front of it: each is a step, or goes with its rows."""
    one = scene()
    one.sink.put(piece(10, 2))
    one.sink.put(piece(0, 2, epoch=2))
    assert one.sink.work()
    dtype = np.array([1, 99], np.int16) if is_refused else np.array([1, 1], np.int16)
    gaps = (Gap(STREAM, 1, 12, 3, "epoch"), Gap(STREAM, 2, 7, 1, "late"))
    timed = tuple(TimedGap(gap, before, 0) for gap, before in zip(gaps, (0, 2), strict=True))
    one.sink.put(ArenaRows(STREAM, 2, frames(5, 2, epoch=2, dtype=dtype), timed), hole_reason="not_triggered")
    if not is_refused:
        full_disk(True)
        one.sink.work()
        full_disk(False)
        one.free = 0
        one.sink.disk.failed(one.clock.monotonic_ns(), "still full")
    one.sink.close()
    why = "unfit" if is_refused else "disk_full"
    assert [(found.rows, found.gaps) for found in one.sink.ledgers()] == [
        (2, {"epoch": 3}),
        (2, {"not_triggered": 3, why: 2, "late": 1}),
    ]
    assert one.ledger() == one.sink.ledgers()
    # Told twice, the second would be refused with words that mean nothing to anybody.
    said = [record.msg for record in caplog.records]
    assert "%s could not be counted: %s" not in said
    assert said.count("some frames were refused: %s") == int(is_refused)


def test_what_was_left_out_on_purpose_has_its_reason(scene: Callable[..., Scene]) -> None:
    one = scene()
    for first in (5, 10):
        one.sink.put(piece(first, 2), hole_reason="not_triggered")
    one.sink.put(piece(12, 1), hole_reason="not_triggered")
    assert one.sink.work()
    one.sink.close()
    (ledger,) = one.ledger()
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (5, 5, {"not_triggered": 3})
    assert one.sink.ledgers() == [ledger]


def test_who_goes_on_knows_where(scene: Callable[..., Scene]) -> None:
    one = scene()
    one.sink.put(piece(10, 4, (14, 2, 4)))
    assert one.sink.work()
    one.sink.close()
    again = one.open()
    assert again.open_stream(STREAM) == (1, 15)
    again.put(ArenaRows(STREAM, 1, frames(20, 1), (TimedGap(Gap(STREAM, 1, 16, 4, "not_recording"), 0, 0),)))
    assert again.work()
    again.close()
    (ledger,) = one.ledger()
    assert (ledger.rows, ledger.gaps) == (5, {"late": 2, "not_recording": 4})
    (own,) = again.ledgers()
    assert (own.first_seq, own.rows, own.gaps, own.balanced) == (16, 1, {"not_recording": 4}, True)


def test_a_closed_disk_is_said_at_the_end(
    scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene()
    one.sink.put(piece(10, 1))
    assert one.sink.work()

    close = one.sink.writer._tables.close

    def fail() -> None:
        close()
        raise DiskFull("full", path=one.root, code=errno.ENOSPC)

    with monkeypatch.context() as patch:
        patch.setattr(one.sink.writer._tables, "close", fail)
        with pytest.raises(DiskFull):
            one.sink.close()
