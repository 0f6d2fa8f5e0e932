"""Planning: with any limits and any segments, every frame is read exactly once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorpool import recording
from tensorpool.recording import manifest, manifest_store
from tensorpool.spark import plan
from tensorpool.spark.offsets import START, Offsets, Position
from tensorpool.spark.plan import Planner, task_bytes
from tests.unit.spark.conftest import STREAM_ID, add, half_of, read, write

epochs = st.lists(
    st.tuples(st.sets(st.integers(0, 60), min_size=1, max_size=25), st.integers(1, 8)), min_size=1, max_size=3
)


def all_frames(streams: dict[int, Any]) -> set[tuple[int, int, int]]:
    return {
        (stream, epoch, seq)
        for stream, epochs in streams.items()
        for epoch, (seqs, _) in enumerate(epochs, start=1)
        for seq in seqs
    }


def frames_between(path: Path, start: Offsets, end: Offsets, **limits: Any) -> list[tuple[int, int, int]]:
    """The frames of a micro-batch, read as its tasks read them."""
    from tensorpool.spark.options import arrow_schema, spark_schema
    from tensorpool.spark.scan import RangeScan, ScanOptions
    from tests.unit.spark.conftest import options

    scan_options = ScanOptions(str(path), "none", 1 << 20, False, True)
    schema = arrow_schema(spark_schema(options(path, payload="none")))
    ranges = Planner(str(path), None).ranges(
        start,
        end,
        max_bytes=limits.get("max_bytes", 1 << 30),
        min_parts=limits.get("min_parts"),
        ends_with_row=True,
    )
    frames = []
    for frame_range in ranges:
        for batch in RangeScan(frame_range, scan_options, schema).batches():
            rows = batch.to_pydict()
            frames += list(zip(rows["stream_id"], rows["epoch"], rows["seq"], strict=True))
    return frames


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(st.integers(1, 3), epochs, min_size=1, max_size=2),
    st.none() | st.integers(1, 15),
    st.none() | st.integers(1, 2_000),
    st.none() | st.integers(1, 5),
    st.integers(64, 2_000),
    st.booleans(),
)
def test_micro_batches_have_every_frame_once_within_limits(
    streams: dict[int, Any],
    max_rows: int | None,
    max_bytes: int | None,
    min_parts: int | None,
    size: int,
    is_open: bool,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "recording")
        writer = recording.RecordingWriter(path, background=False)
        try:
            for stream, stream_epochs in streams.items():
                for epoch, (seqs, per_segment) in enumerate(stream_epochs, start=1):
                    add(writer, sorted(seqs), stream_id=stream, epoch=epoch, per_segment=per_segment)
            if not is_open:
                writer.close()
            planner = Planner(str(path), None)
            position, latest = planner.earliest(), planner.latest()
            found: list[tuple[int, int, int]] = []
            for _ in range(200):
                end = planner.limited(position, latest, max_rows=max_rows, max_bytes=max_bytes)
                if end == position:
                    break
                rows = frames_between(path, position, end, max_bytes=size, min_parts=min_parts)
                assert max_rows is None or len(rows) <= max_rows
                # Each frame has 64 bytes; at least one frame of each stream is read.
                assert max_bytes is None or len(rows) * 64 <= max_bytes + 64 * len(streams)
                found += rows
                position = end
        finally:
            writer.close()
        assert position == latest
        assert len(found) == len(set(found))
        assert set(found) == all_frames(streams)


def test_selected_stream_without_frames_starts_at_its_beginning(root: Path) -> None:
    write(root, range(5))
    planner = Planner(str(root), (STREAM_ID, 7))
    assert planner.earliest() == {STREAM_ID: Position(1, 0), 7: START}
    assert planner.latest() == {STREAM_ID: Position(1, 5), 7: START}
    write(root, range(3), stream_id=7, epoch=4)
    write(root, range(3), stream_id=8)
    planner.refresh()
    assert planner.latest() == {STREAM_ID: Position(1, 5), 7: Position(4, 3)}


def test_at_time_finds_the_first_frame(root: Path) -> None:
    write(root, range(0, 100, 2))
    planner = Planner(str(root), None)
    assert planner.at_time(0) == {STREAM_ID: Position(1, 0)}
    assert planner.at_time(1_000 * 32) == {STREAM_ID: Position(1, 32)}
    assert planner.at_time(10**9) == {STREAM_ID: Position(1, 99)}


def test_number_of_tasks_follows_the_limits(root: Path) -> None:
    write(root, range(200), per_segment=2)
    planner = Planner(str(root), None)

    def tasks(**limits: Any) -> int:
        return len(planner.ranges(planner.earliest(), planner.latest(), ends_with_row=True, **limits))

    assert tasks(max_bytes=1 << 20, min_parts=None) == 1
    assert tasks(max_bytes=64 * 20, min_parts=None) == 10
    assert tasks(max_bytes=1 << 20, min_parts=4) == 4
    assert [row["seq"] for row in read(root, minPartitions=500)] == list(range(200))


def test_planning_opens_at_most_two_segments(root: Path, monkeypatch: Any) -> None:
    write(root, range(600), per_segment=2)
    opened = []
    original = recording.Recording.segment

    def segment(self: recording.Recording, name: Any) -> Any:
        opened.append(name)
        return original(self, name)

    monkeypatch.setattr(recording.Recording, "segment", segment)
    planner = Planner(str(root), None)
    start = {STREAM_ID: Position(1, 101)}
    end = planner.limited(start, planner.latest(), max_rows=301, max_bytes=None)
    planner.ranges(start, end, max_bytes=1 << 20, min_parts=None, ends_with_row=True)
    assert end == {STREAM_ID: Position(1, 402)}
    assert len(set(opened)) <= 2


def test_default_task_size_uses_every_core() -> None:
    mib = 1 << 20
    assert task_bytes(10 * mib, 8) == 64 * mib
    assert task_bytes(1000 * mib, 4) == 250 * mib
    assert task_bytes(100_000 * mib, 4) == 512 * mib


def test_tasks_of_whole_segments_are_balanced(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(plan, "_MIN_TASK_BYTES", 64)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    write(root, range(17), per_segment=1)
    planner = Planner(str(root), None)
    ranges = planner.ranges(
        planner.earliest(), planner.latest(), max_bytes=None, min_parts=None, ends_with_row=True
    )
    assert [part.end.seq - part.start.seq for part in ranges] in ([9, 8], [8, 9])


def test_few_rows_of_a_large_segment_are_one_task(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(plan, "_MIN_TASK_BYTES", 64)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    write(root, range(100), per_segment=100)
    planner = Planner(str(root), None)

    def tasks(first: int, end: int) -> int:
        ends = {STREAM_ID: Position(1, first)}, {STREAM_ID: Position(1, end)}
        return len(planner.ranges(*ends, max_bytes=640, min_parts=None, ends_with_row=True))

    assert (tasks(0, 100), tasks(40, 45), tasks(0, 50), tasks(50, 100)) == (10, 1, 5, 5)


def test_planning_continues_past_an_unreadable_segment(root: Path) -> None:
    write(root, range(30), per_segment=10)
    broken = sorted(root.glob("stream=*/epoch=*/*"))[1]
    broken.write_bytes(b"\xff" * broken.stat().st_size)
    planner = Planner(str(root), None)
    start = {STREAM_ID: Position(1, 5)}
    ends = []
    while (end := planner.limited(start, planner.latest(), max_rows=7, max_bytes=None)) != start:
        planner.ranges(start, end, max_bytes=None, min_parts=None, ends_with_row=True)
        start = end
        ends.append(end[STREAM_ID].seq)
    assert ends[-1] == 30
    assert ends == sorted(set(ends))


def test_every_stream_advances_beside_a_large_backlog(root: Path) -> None:
    write(root, range(900), per_segment=1)
    write(root, range(3), stream_id=7)
    planner = Planner(str(root), None)
    end = planner.limited({}, planner.latest(), max_rows=50, max_bytes=None)
    assert end[7].seq >= 1
    assert end[STREAM_ID].seq >= 40
    assert end[7].seq + end[STREAM_ID].seq == 50


def test_refresh_finds_a_new_snapshot(root: Path) -> None:
    write(root, range(10), per_segment=1)
    planner = Planner(str(root), None)
    for last in range(11, 15):
        write(root, [last], per_segment=1)
        with manifest_store.locked(root):
            manifest_store.compact_locked(root, manifest.load(root))
        planner.refresh()
        assert planner.latest() == {STREAM_ID: Position(1, last + 1)}
    recording.apply_retention(root, max_bytes=half_of(root))
    planner.refresh()
    assert planner.earliest()[STREAM_ID].seq > 0
    assert planner.lost({STREAM_ID: Position(1, 0)}, planner.latest())
