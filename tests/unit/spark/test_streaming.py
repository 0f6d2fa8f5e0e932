"""The streaming reader, called as Spark's planning process calls it, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import CorruptRecording, NotARecording
from tensorpool.recording import read_leases
from tensorpool.recording.retention import LeaseKeeper
from tensorpool.spark import plan
from tensorpool.spark.offsets import Position, lag, to_cursors
from tensorpool.spark.plan import retry
from tensorpool.spark.reader import FrameStreamReader
from tests.unit.spark.conftest import STREAM_ID, add, half_of, rows_of, write

Make = Callable[..., FrameStreamReader]


def offset(seq: int, epoch: int = 1, stream: int = STREAM_ID) -> dict[str, Any]:
    return {str(stream): {"epoch": str(epoch), "seq": str(seq)}}


def read_seqs(reader: FrameStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    # Executors have a pickled copy.
    copy = pickle.loads(pickle.dumps(reader))
    return [row["seq"] for row in rows_of(reader.partitions(start, end), copy.read)]


def test_micro_batches_continue_after_restart_and_rotation(root: Path, stream_reader: Make) -> None:
    write(root, range(20))
    reader = stream_reader(root, maxRowsPerTrigger=8)
    start = reader.initialOffset()
    assert start == offset(0)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == offset(8)
    assert read_seqs(reader, start, end) == list(range(8))
    reader.stop()
    # Another process, from the checkpoint, after the recorder has continued.
    write(root, range(20, 23), epoch=2)
    later = stream_reader(root)
    checkpoint = json.loads(json.dumps(end))
    assert read_seqs(later, start, checkpoint) == list(range(8)), "the last batch is read again"
    newest = later.latestOffset(checkpoint, later.getDefaultReadLimit())
    assert newest == offset(23, 2)
    assert read_seqs(later, checkpoint, newest) == [*range(8, 20), 20, 21, 22]
    assert later.latestOffset(newest, ReadAllAvailable()) == newest


def test_read_limits_come_from_the_options(root: Path, stream_reader: Make) -> None:
    write(root, range(20))
    both = stream_reader(root, maxRowsPerTrigger=8, maxBytesPerTrigger=300)
    assert both.getDefaultReadLimit() == ReadMaxRows(8)
    assert both.latestOffset(offset(0), both.getDefaultReadLimit()) == offset(4)
    assert both.latestOffset(offset(0), ReadAllAvailable()) == offset(20)
    assert stream_reader(root, maxBytesPerTrigger="1KiB").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert stream_reader(root).getDefaultReadLimit() == ReadAllAvailable()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, offset(20)),
        ({"startingOffsets": '{"10000": {"epoch": 1, "seq": 5}}'}, offset(5)),
        ({"startingTimestamp": "8000"}, offset(7)),
    ],
)
def test_new_query_starts_at_its_option(
    root: Path, stream_reader: Make, given: dict[str, str], expected: dict[str, Any]
) -> None:
    write(root, range(20))
    assert stream_reader(root, **given).initialOffset() == expected


def test_available_now_ends_at_the_end_of_its_start(root: Path, stream_reader: Make) -> None:
    write(root, range(10))
    reader = stream_reader(root)
    reader.prepareForTriggerAvailableNow()
    write(root, range(10, 15))
    write(root, range(5), stream_id=7)
    assert reader.latestOffset(offset(0), ReadAllAvailable()) == offset(10)
    assert reader.latestOffset(offset(10), ReadAllAvailable()) == offset(10)
    assert reader.reportLatestOffset() == offset(15) | offset(5, stream=7)


def test_later_stream_is_read_from_its_beginning(root: Path, stream_reader: Make) -> None:
    write(root, range(3))
    reader = stream_reader(root, startingOffsets="latest")
    start = reader.initialOffset()
    write(root, range(4), stream_id=7)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offset(3) | offset(4, stream=7)
    assert read_seqs(reader, start, end) == [0, 1, 2, 3]


def test_lease_keeps_unread_frames_from_retention(root: Path, stream_reader: Make) -> None:
    write(root, range(30))
    reader = stream_reader(root, leaseTimeout="1min")
    start = reader.initialOffset()
    assert recording.apply_retention(root, max_bytes=0).holders == ["spark stream"]
    end = reader.latestOffset(start, ReadMaxRows(1))
    reader.commit(offset(20))
    done = recording.apply_retention(root, max_bytes=0)
    assert [name.first_seq for name in done.removed] == [0, 10]
    assert read_seqs(reader, offset(20), end) == list(range(20, 30))
    reader.stop()
    assert read_leases(root) == []


def test_query_reports_frames_that_retention_removed(root: Path, stream_reader: Make) -> None:
    write(root, range(30))
    recording.apply_retention(root, max_bytes=half_of(root))
    reader = stream_reader(root)
    end = reader.latestOffset(offset(3), ReadAllAvailable())
    with pytest.raises(CorruptRecording, match="frames 3 to"):
        reader.partitions(offset(3), end)
    lenient = stream_reader(root, failOnDataLoss="false")
    left = read_seqs(lenient, offset(3), end)
    assert left == list(range(left[0], 30))
    assert left[0] > 3


def test_frames_lost_since_planning_are_detected(root: Path, stream_reader: Make) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, range(5))
        add(writer, range(5, 10))
        reader = stream_reader(root)
        tasks = reader.partitions(offset(0), offset(10))
        (path,) = root.glob("stream=*/epoch=*/*.partial")
        content = bytearray(path.read_bytes())
        # The metadata of the last batch: the rest of the file looks like a torn end.
        content[content.rfind(b"\xff\xff\xff\xff") + 20] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(CorruptRecording, match="existed when the query was planned"):
            rows_of(tasks, reader.read)
        lenient = stream_reader(root, failOnDataLoss="false", includeGaps="true")
        rows = rows_of(lenient.partitions(offset(0), offset(10)), lenient.read)
    assert [row["seq"] for row in rows if row["gap_count"] is None] == list(range(5))
    assert [(row["seq"], row["gap_count"], row["gap_reason"]) for row in rows[5:]] == [(5, 5, "corrupt")]


def test_query_reads_without_a_lease(
    root: Path, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, range(5))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("tensorpool.recording.retention.ReaderLease", refuse)
    reader = stream_reader(root)
    assert read_seqs(reader, reader.initialOffset(), offset(5)) == list(range(5))


def test_wrong_path_fails_at_once(tmp_path: Path, stream_reader: Make) -> None:
    with pytest.raises(NotARecording, match="contains no recording"):
        stream_reader(tmp_path / "nothing")


def test_planning_is_retried_after_disk_errors(
    root: Path, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, range(5))
    reader = stream_reader(root)
    start = reader.initialOffset()
    failures = [OSError(5, "Input/output error"), OSError(116, "Stale file handle")]
    original = plan.Planner.latest

    def latest(self: plan.Planner) -> Any:
        if failures:
            raise failures.pop()
        return original(self)

    monkeypatch.setattr(plan.Planner, "latest", latest)
    assert reader.latestOffset(start, ReadAllAvailable()) == offset(5)
    assert failures == []


def test_retry_ends_with_the_error_after_its_timeout() -> None:
    clock = ManualClock()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    def work() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        retry(work, timeout_ns=10_000_000_000, pause=pause, clock=clock)
    assert 10 <= sum(pauses) < 13
    assert pauses[:3] == [0.05, 0.1, 0.2]


def test_lag_counts_recorded_and_unread_frames() -> None:
    class Query:
        lastProgress = {  # noqa: RUF012
            "sources": [
                {
                    "description": "tensorpool",
                    "endOffset": json.dumps(offset(5) | offset(7, stream=2)),
                    "latestOffset": json.dumps(offset(12) | offset(3, 2, stream=2)),
                }
            ]
        }

    assert lag(Query()) == {STREAM_ID: 7, 2: 3}  # type: ignore[arg-type]
    Query.lastProgress = None  # type: ignore[assignment]
    assert lag(Query()) == {}  # type: ignore[arg-type]


def test_lease_is_renewed_while_a_query_runs(root: Path, wait_until: Any) -> None:
    write(root, range(5))
    keeper = LeaseKeeper(root, holder="spark stream", ttl_ns=300_000_000)
    keeper.hold(to_cursors({STREAM_ID: Position(1, 0)}))
    keeper.start()
    try:
        (first,) = read_leases(root)
        # Twice its lifetime: impossible without renewals.
        wait_until(lambda: read_leases(root)[0].deadline_ns > first.deadline_ns + 600_000_000)
    finally:
        keeper.release()
    assert read_leases(root) == []
