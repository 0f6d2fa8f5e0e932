"""The streaming reader, called as Spark's planning process does, without Spark."""

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
from tensorpool.spark import plan
from tensorpool.spark.lease_hold import RenewingLease
from tensorpool.spark.offsets import Position, lag
from tensorpool.spark.plan import retry
from tensorpool.spark.reader import FrameStreamReader
from tests.unit.spark.conftest import STREAM_ID, add, half_of, rows_of, write

Make = Callable[..., FrameStreamReader]


def place(seq: int, epoch: int = 1, stream: int = STREAM_ID) -> dict[str, Any]:
    return {str(stream): {"epoch": str(epoch), "seq": str(seq)}}


def taken(reader: FrameStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    # Executors have a pickled copy.
    copy = pickle.loads(pickle.dumps(reader))
    return [row["seq"] for row in rows_of(reader.partitions(start, end), copy.read)]


def test_micro_batches_follow_one_another_over_restarts_and_rotation(root: Path, stream_reader: Make) -> None:
    write(root, range(20))
    reader = stream_reader(root, maxRowsPerTrigger=8)
    start = reader.initialOffset()
    assert start == place(0)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == place(8)
    assert taken(reader, start, end) == list(range(8))
    reader.stop()
    # Another process, from the checkpoint, after the recorder went on.
    write(root, range(20, 23), epoch=2)
    later = stream_reader(root)
    checkpoint = json.loads(json.dumps(end))
    assert taken(later, start, checkpoint) == list(range(8)), "the last batch again"
    newest = later.latestOffset(checkpoint, later.getDefaultReadLimit())
    assert newest == place(23, 2)
    assert taken(later, checkpoint, newest) == [*range(8, 20), 20, 21, 22]
    assert later.latestOffset(newest, ReadAllAvailable()) == newest


def test_limits_come_from_the_options_and_a_single_run_takes_all(root: Path, stream_reader: Make) -> None:
    write(root, range(20))
    both = stream_reader(root, maxRowsPerTrigger=8, maxBytesPerTrigger=300)
    assert both.getDefaultReadLimit() == ReadMaxRows(8)
    assert both.latestOffset(place(0), both.getDefaultReadLimit()) == place(4)
    assert both.latestOffset(place(0), ReadAllAvailable()) == place(20)
    assert stream_reader(root, maxBytesPerTrigger="1KiB").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert stream_reader(root).getDefaultReadLimit() == ReadAllAvailable()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, place(20)),
        ({"startingOffsets": '{"10000": {"epoch": 1, "seq": 5}}'}, place(5)),
        ({"startingTimestamp": "8000"}, place(7)),
    ],
)
def test_a_new_query_begins_where_it_is_told(
    root: Path, stream_reader: Make, given: dict[str, str], expected: dict[str, Any]
) -> None:
    write(root, range(20))
    assert stream_reader(root, **given).initialOffset() == expected


def test_available_now_ends_where_the_recording_ended_when_it_began(root: Path, stream_reader: Make) -> None:
    write(root, range(10))
    reader = stream_reader(root)
    reader.prepareForTriggerAvailableNow()
    write(root, range(10, 15))
    write(root, range(5), stream_id=7)
    assert reader.latestOffset(place(0), ReadAllAvailable()) == place(10)
    assert reader.latestOffset(place(10), ReadAllAvailable()) == place(10)
    assert reader.reportLatestOffset() == place(15) | place(5, stream=7)


def test_a_stream_that_appears_later_is_read_from_its_beginning(root: Path, stream_reader: Make) -> None:
    write(root, range(3))
    reader = stream_reader(root, startingOffsets="latest")
    start = reader.initialOffset()
    write(root, range(4), stream_id=7)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == place(3) | place(4, stream=7)
    assert taken(reader, start, end) == [0, 1, 2, 3]


def test_retention_leaves_what_the_query_still_needs(root: Path, stream_reader: Make) -> None:
    write(root, range(30))
    reader = stream_reader(root, leaseTimeout="1min")
    start = reader.initialOffset()
    assert recording.retain(root, max_bytes=0).holders == ["spark stream"]
    end = reader.latestOffset(start, ReadMaxRows(1))
    reader.commit(place(20))
    done = recording.retain(root, max_bytes=0)
    assert [name.first_seq for name in done.removed] == [0, 10]
    assert taken(reader, place(20), end) == list(range(20, 30))
    reader.stop()
    assert read_leases(root) == []


def test_a_query_that_was_away_too_long_says_what_it_missed(root: Path, stream_reader: Make) -> None:
    write(root, range(30))
    recording.retain(root, max_bytes=half_of(root))
    reader = stream_reader(root)
    end = reader.latestOffset(place(3), ReadAllAvailable())
    with pytest.raises(CorruptRecording, match="frames 3 to"):
        reader.partitions(place(3), end)
    going_on = stream_reader(root, failOnDataLoss="false")
    left = taken(going_on, place(3), end)
    assert left == list(range(left[0], 30))
    assert left[0] > 3


def test_an_open_segment_that_lost_frames_since_it_was_planned_is_not_taken_for_a_short_one(
    root: Path, stream_reader: Make
) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, range(5))
        add(writer, range(5, 10))
        reader = stream_reader(root)
        tasks = reader.partitions(place(0), place(10))
        (path,) = root.glob("stream=*/epoch=*/*.partial")
        content = bytearray(path.read_bytes())
        # The head of the last batch: from there on it looks like a torn end.
        content[content.rfind(b"\xff\xff\xff\xff") + 20] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(CorruptRecording, match="were there when the query was planned"):
            rows_of(tasks, reader.read)
        lenient = stream_reader(root, failOnDataLoss="false", includeGaps="true")
        rows = rows_of(lenient.partitions(place(0), place(10)), lenient.read)
    assert [row["seq"] for row in rows if row["gap_count"] is None] == list(range(5))
    assert [(row["seq"], row["gap_count"], row["gap_reason"]) for row in rows[5:]] == [(5, 5, "corrupt")]


def test_a_lease_that_cannot_be_had_does_not_keep_anyone_from_reading(
    root: Path, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, range(5))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("tensorpool.spark.lease_hold.ReaderLease", refuse)
    reader = stream_reader(root)
    assert taken(reader, reader.initialOffset(), place(5)) == list(range(5))


def test_a_wrong_path_is_said_at_once(tmp_path: Path, stream_reader: Make) -> None:
    with pytest.raises(NotARecording, match="holds no recording"):
        stream_reader(tmp_path / "nothing")


def test_planning_tries_again_when_the_disk_does_not_answer(
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
    assert reader.latestOffset(start, ReadAllAvailable()) == place(5)
    assert failures == []


def test_trying_again_ends_with_the_error_when_time_is_up() -> None:
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


def test_lag_is_what_is_recorded_and_not_read() -> None:
    class Query:
        lastProgress = {  # noqa: RUF012
            "sources": [
                {
                    "description": "tensorpool",
                    "endOffset": json.dumps(place(5) | place(7, stream=2)),
                    "latestOffset": json.dumps(place(12) | place(3, 2, stream=2)),
                }
            ]
        }

    assert lag(Query()) == {STREAM_ID: 7, 2: 3}  # type: ignore[arg-type]
    Query.lastProgress = None  # type: ignore[assignment]
    assert lag(Query()) == {}  # type: ignore[arg-type]


def test_a_lease_is_renewed_while_a_query_lives(root: Path, wait_until: Any) -> None:
    write(root, range(5))
    hold = RenewingLease(str(root), holder="spark stream", ttl_ns=300_000_000)
    hold.keep({STREAM_ID: Position(1, 0)})
    try:
        (first,) = read_leases(root)
        # Twice its whole life: without a renewal there is no such deadline.
        wait_until(lambda: read_leases(root)[0].deadline_ns > first.deadline_ns + 600_000_000)
    finally:
        hold.release()
    assert read_leases(root) == []
