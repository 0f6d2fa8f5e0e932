"""The sink: arena rows to files, with a disk that is full for some time or permanently."""

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
from tensorpool.recorder import sink as sink_module
from tensorpool.recorder.arena_rows import ArenaRows, TimedGap
from tensorpool.recorder.messages import MessageRow
from tensorpool.recorder.sink import Sink
from tensorpool.recording import Gap, segment_writer
from tests.unit.recording.conftest import STREAM, frames

from .test_ledger import arena_rows


class SinkHarness:
    """A sink, its clock, and a disk whose free space the test sets."""

    def __init__(self, root: Path, keep_free: int = 0) -> None:
        self.root = root
        self.clock = ManualClock()
        self.free = 1 << 30
        self.disk_changes: list[bool] = []
        self.keep_free = keep_free
        self.sink = self.open()

    def open(self) -> Sink:
        sink = Sink(
            self.root,
            limits=recording.WriterLimits(),
            keep_free_bytes=self.keep_free,
            clock=self.clock,
            on_disk_change=self.disk_changes.append,
            free=lambda _: self.free,
        )
        sink.open_stream(STREAM)
        return sink

    def advance(self) -> None:
        """Lets the time of the next disk check come."""
        self.clock.advance(2.0)

    def ledger(self) -> list[recording.RecordingLedger]:
        with recording.open(self.root) as opened:
            return opened.ledger(STREAM)


@pytest.fixture
def open_sink(tmp_path: Path) -> Iterator[Callable[..., SinkHarness]]:
    harnesses: list[SinkHarness] = []

    def make(**options: Any) -> SinkHarness:
        harnesses.append(SinkHarness(tmp_path / "recording", **options))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.sink.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`full_disk(True)`: writes to segments fail from now on."""
    write_all = segment_writer.write_all  # type: ignore[attr-defined]

    def write(fd: int, parts: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda is_full: monkeypatch.setattr(segment_writer, "write_all", write if is_full else write_all)


def test_sink_knows_free_bytes_before_the_first_check(open_sink: Callable[..., SinkHarness]) -> None:
    assert open_sink().sink.free_bytes == 1 << 30


def test_sink_writes_rows_and_keeps_the_ledger(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 4, (14, 2, 4)))
    harness.sink.enqueue(arena_rows(16, 2))
    assert harness.sink.write_pending()
    assert harness.sink.rows == 6
    assert harness.sink.gaps() == {"late": 2}
    harness.sink.close()
    assert harness.ledger() == harness.sink.ledgers()
    assert harness.ledger()[0].balanced


class SmallDisk:
    """A disk of a fixed size: what the files of the recording take is gone."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self._root = root
        self._size_bytes = size_bytes
        self.least = size_bytes

    def free(self, _: Path) -> int:
        used = sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())
        self.least = min(self.least, self._size_bytes - used)
        return self._size_bytes - used


def test_sink_never_takes_the_space_that_is_kept_free(tmp_path: Path) -> None:
    """One batch is larger than the space that is kept free, and messages arrive while nothing is written."""
    root, keep_free = tmp_path / "recording", 1 << 20
    disk = SmallDisk(root, 8 << 20)
    changes: list[bool] = []
    sink = Sink(
        root, limits=recording.WriterLimits(), keep_free_bytes=keep_free, clock=ManualClock(),
        on_disk_change=changes.append, free=disk.free,
    )  # fmt: skip
    sink.open_stream(STREAM)
    first, count = 0, 24
    while sink.disk.is_writable:
        # 1.5 MiB at once.
        sink.enqueue(ArenaRows(STREAM, 1, frames(first, count, 64 << 10), ()))
        sink.write_pending()
        first += count
    for _ in range(2_000):
        sink.write_message(MessageRow("qos", bytes(400), STREAM, 1, None))
    sink.writer.sync()
    written = first - count
    assert sink.rows == written > 0
    sink.close()
    disk.free(root)
    assert changes == [False]
    assert disk.least >= keep_free
    (ledger,) = recording.open(root).ledger(STREAM)
    assert (ledger.rows, ledger.gaps) == (written, {"disk_full": count})


def test_sink_counts_a_late_gap_of_a_past_epoch(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 4))
    harness.sink.enqueue(arena_rows(0, 2, epoch=2))
    late_gap = TimedGap(Gap(STREAM, 1, 14, 3, "epoch"), 0, 0)
    harness.sink.enqueue(ArenaRows(STREAM, 2, frames(2, 1, epoch=2), (late_gap,)))
    assert harness.sink.write_pending()
    harness.sink.close()
    assert [(ledger.rows, ledger.gaps) for ledger in harness.ledger()] == [(4, {"epoch": 3}), (3, {})]
    assert harness.ledger() == harness.sink.ledgers()


def test_sink_keeps_its_queue_while_the_disk_is_full(
    open_sink: Callable[..., SinkHarness], full_disk: Callable[[bool], None]
) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 4))
    assert harness.sink.write_pending()
    full_disk(True)
    harness.sink.enqueue(arena_rows(14, 4))
    harness.sink.enqueue(arena_rows(18, 4))
    assert not harness.sink.write_pending()
    assert harness.disk_changes == [False]
    assert harness.sink.pending_rows == 8
    harness.advance()
    assert not harness.sink.write_pending(), "the disk reports space, but the write fails again"
    full_disk(False)
    assert not harness.sink.write_pending(), "the next check is not due yet"
    harness.advance()
    assert harness.sink.write_pending()
    assert harness.disk_changes[-1] is True
    harness.sink.close()
    (ledger,) = harness.ledger()
    assert (ledger.rows, ledger.gaps) == (12, {})


def test_sink_counts_unwritten_rows_as_disk_full_at_close(
    open_sink: Callable[..., SinkHarness], full_disk: Callable[[bool], None]
) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 4))
    assert harness.sink.write_pending()
    full_disk(True)
    harness.sink.enqueue(arena_rows(14, 4, (18, 2, 4)))
    assert not harness.sink.write_pending()
    full_disk(False)
    harness.sink.disk.on_failure(harness.clock.monotonic_ns(), "still full")
    harness.free = 0
    harness.sink.close()
    (ledger,) = harness.ledger()
    assert (ledger.rows, ledger.gaps) == (4, {"disk_full": 4, "late": 2})
    assert harness.sink.ledgers() == [ledger]


def test_sink_stops_below_keep_free_and_resumes_at_twice(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink(keep_free=1 << 20)
    harness.free = (1 << 20) - 1
    harness.sink.enqueue(arena_rows(10, 4))
    assert not harness.sink.write_pending()
    assert harness.sink.rows == 0
    harness.advance()
    harness.free = (2 << 20) - 1
    assert not harness.sink.write_pending()
    harness.advance()
    harness.free = 2 << 20
    assert harness.sink.write_pending()
    assert harness.sink.rows == 4


def test_sink_counts_invalid_frames_as_unfit(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 2))
    wrong = frames(12, 2, dtype=np.array([1, 99], np.int16))
    harness.sink.enqueue(ArenaRows(STREAM, 1, wrong, (TimedGap(Gap(STREAM, 1, 14, 1, "late"), 2, 0),)))
    harness.sink.enqueue(arena_rows(15, 1))
    assert harness.sink.write_pending()
    harness.sink.close()
    (ledger,) = harness.ledger()
    assert (ledger.rows, ledger.gaps) == (3, {"unfit": 2, "late": 1})
    assert harness.sink.ledgers() == [ledger]


@pytest.mark.parametrize("is_invalid", [False, True])
def test_sink_writes_gaps_of_unwritten_rows_once(
    open_sink: Callable[..., SinkHarness],
    full_disk: Callable[[bool], None],
    is_invalid: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Gaps of the past epoch, of the same epoch and before the rows: each is a step or goes with its rows."""
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 2))
    harness.sink.enqueue(arena_rows(0, 2, epoch=2))
    assert harness.sink.write_pending()
    dtype = np.array([1, 99], np.int16) if is_invalid else np.array([1, 1], np.int16)
    gaps = (Gap(STREAM, 1, 12, 3, "epoch"), Gap(STREAM, 2, 7, 1, "late"))
    timed = tuple(TimedGap(gap, before, 0) for gap, before in zip(gaps, (0, 2), strict=True))
    harness.sink.enqueue(
        ArenaRows(STREAM, 2, frames(5, 2, epoch=2, dtype=dtype), timed), gap_reason="not_triggered"
    )
    if not is_invalid:
        full_disk(True)
        harness.sink.write_pending()
        full_disk(False)
        harness.free = 0
        harness.sink.disk.on_failure(harness.clock.monotonic_ns(), "still full")
    harness.sink.close()
    reason = "unfit" if is_invalid else "disk_full"
    assert [(ledger.rows, ledger.gaps) for ledger in harness.sink.ledgers()] == [
        (2, {"epoch": 3}),
        (2, {"not_triggered": 3, reason: 2, "late": 1}),
    ]
    assert harness.ledger() == harness.sink.ledgers()
    # A gap written twice would be rejected with a log line that helps no operator.
    messages = [record.msg for record in caplog.records]
    assert "the gap %s could not be written: %s" not in messages
    assert messages.count("the writer rejected frames: %s") == int(is_invalid)


def test_sink_counts_skipped_sequences_with_the_given_reason(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink()
    for first in (5, 10):
        harness.sink.enqueue(arena_rows(first, 2), gap_reason="not_triggered")
    harness.sink.enqueue(arena_rows(12, 1), gap_reason="not_triggered")
    assert harness.sink.write_pending()
    harness.sink.close()
    (ledger,) = harness.ledger()
    assert (ledger.first_seq, ledger.rows, ledger.gaps) == (5, 5, {"not_triggered": 3})
    assert harness.sink.ledgers() == [ledger]


def test_sink_continues_where_an_earlier_recorder_ended(open_sink: Callable[..., SinkHarness]) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 4, (14, 2, 4)))
    assert harness.sink.write_pending()
    harness.sink.close()
    continued = harness.open()
    assert continued.open_stream(STREAM) == (1, 15)
    continued.enqueue(
        ArenaRows(STREAM, 1, frames(20, 1), (TimedGap(Gap(STREAM, 1, 16, 4, "not_recording"), 0, 0),))
    )
    assert continued.write_pending()
    continued.close()
    (ledger,) = harness.ledger()
    assert (ledger.rows, ledger.gaps) == (5, {"late": 2, "not_recording": 4})
    (session,) = continued.ledgers()
    assert (session.first_seq, session.rows, session.gaps, session.balanced) == (
        16,
        1,
        {"not_recording": 4},
        True,
    )


def test_sink_close_raises_a_failed_write(
    open_sink: Callable[..., SinkHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = open_sink()
    harness.sink.enqueue(arena_rows(10, 1))
    assert harness.sink.write_pending()

    close = harness.sink.writer._tables.close

    def fail() -> None:
        close()
        raise DiskFull("full", path=harness.root, code=errno.ENOSPC)

    with monkeypatch.context() as patch:
        patch.setattr(harness.sink.writer._tables, "close", fail)
        with pytest.raises(DiskFull):
            harness.sink.close()


def test_sink_counts_messages_that_a_full_disk_costs(
    open_sink: Callable[..., SinkHarness], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink_module, "_MAX_MESSAGES_WHILE_FULL", 3)
    harness = open_sink(keep_free=1 << 20)
    harness.free = 0
    harness.sink.enqueue(arena_rows(10, 4))
    assert not harness.sink.write_pending()
    for _ in range(5):
        harness.sink.write_message(MessageRow("qos", b"qos", STREAM))
    assert harness.sink.lost_messages == 2
    harness.free = 1 << 30
    harness.advance()
    assert harness.sink.write_pending()
    assert "2 messages about streams are lost" in caplog.text
    harness.sink.write_message(MessageRow("qos", b"qos", STREAM))
    harness.free = 0
    harness.sink.enqueue(arena_rows(14, 4))
    assert not harness.sink.write_pending()
    harness.sink.write_message(MessageRow("qos", b"qos", STREAM))
    harness.sink.close()
    with recording.open(harness.root) as opened:
        kept = opened.table("qos").num_rows
    assert kept + harness.sink.lost_messages == 7
