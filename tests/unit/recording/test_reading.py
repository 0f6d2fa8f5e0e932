"""Reading frames by index, sequence and time, also while the recording is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import FrameNotRecorded
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, seqs


@pytest.fixture
def varied(make_writer: WriterFactory, root: Path) -> Iterator[recording.Recording]:
    """Two streams, two epochs, several segments and batches: 0..29 without 10..14, and 0..9 in epoch 2."""
    with make_writer() as writer:
        writer.write_batch(frames(0, 7))
        writer.write_batch(frames(7, 3))
        writer.rotate()
        writer.write_batch(frames(15, 10))
        writer.rotate()
        writer.write_batch(frames(25, 5))
        writer.write_batch(frames(0, 10, epoch=2))
        writer.append([1.5], stream_id=7, epoch=1, seq=3)
    with recording.open(root) as found:
        yield found


FIRST_EPOCH = [*range(10), *range(15, 30)]


def test_streams_and_epochs_are_listed(varied: recording.Recording) -> None:
    assert varied.streams == (7, STREAM)
    assert (varied.epochs(STREAM), varied.epochs(7), varied.epochs(8)) == ((1, 2), (1,), ())
    with pytest.raises(FrameNotRecorded, match="recorded streams: 7, 10000"):
        varied.frames(8)


def test_index_and_iteration_yield_the_same_frames(varied: recording.Recording) -> None:
    chosen = varied.frames(STREAM)
    every = [(frame.epoch, frame.seq) for frame in chosen]
    assert every == [(1, seq) for seq in FIRST_EPOCH] + [(2, seq) for seq in range(10)]
    assert len(chosen) == len(every)
    order = np.random.default_rng(3).permutation(len(every)).tolist()
    assert [(chosen[i].epoch, chosen[i].seq) for i in order] == [every[i] for i in order]
    assert (chosen[-1].epoch, chosen[-1].seq) == every[-1]
    assert [frame.seq for frame in chosen[5:20:3]] == [seq for _, seq in every[5:20:3]]
    assert [frame.seq for frame in chosen[::-1][:2]] == [9, 8]
    for wrong in (len(every), -len(every) - 1):
        with pytest.raises(IndexError):
            chosen[wrong]


@pytest.mark.parametrize(
    "bounds", [(0, 0), (3, 8), (9, 15), (10, 14), (12, None), (None, 26), (29, 99), (None, None)]
)
def test_sequence_range_includes_both_ends(
    varied: recording.Recording, bounds: tuple[int | None, int | None]
) -> None:
    low, high = (0 if bounds[0] is None else bounds[0]), (99 if bounds[1] is None else bounds[1])
    expected = [seq for seq in FIRST_EPOCH if low <= seq <= high]
    chosen = varied.frames(STREAM, epoch=1, seq=bounds)
    assert [frame.seq for frame in chosen] == expected
    assert len(chosen) == len(expected)
    assert [chosen[i].seq for i in range(len(expected))] == expected


def test_time_range_uses_the_time_of_receipt(varied: recording.Recording) -> None:
    # Frame n was received n microseconds after the beginning of 1970.
    chosen = varied.frames(STREAM, epoch=1, time=(4_000, 16_999))
    assert [frame.seq for frame in chosen] == [4, 5, 6, 7, 8, 9, 15, 16]
    assert (len(chosen), chosen[6].seq) == (8, 15)
    early = datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)
    assert [frame.seq for frame in varied.frames(STREAM, epoch=1, time=(None, early))] == [0, 1, 2]
    with pytest.raises(ValueError, match="zone"):
        varied.frames(STREAM, time=(datetime(1970, 1, 1), None))


def test_time_range_works_when_time_runs_backwards(make_writer: WriterFactory, root: Path) -> None:
    times = np.array([50, 10, 40, 20], np.int64)
    with make_writer() as writer:
        writer.write_batch(frames(0, 4, receive_time_ns=times))
        writer.write_batch(frames(4, 4, receive_time_ns=times + 25))
    chosen = recording.open(root).frames(STREAM, time=(20, 45))
    assert [frame.seq for frame in chosen] == [2, 3, 5, 7]
    assert [chosen[i].seq for i in range(len(chosen))] == [2, 3, 5, 7]


def test_frame_is_found_in_its_newest_epoch(varied: recording.Recording) -> None:
    assert varied.frame(STREAM, 5).epoch == 2
    assert varied.frame(STREAM, 20).epoch == 1
    assert varied.frame(STREAM, 5, epoch=1).cursor == recording.Cursor(STREAM, 1, 5)
    with pytest.raises(FrameNotRecorded, match="no frame 12"):
        varied.frame(STREAM, 12)


def test_frames_stay_valid_after_close_and_removal(varied: recording.Recording, root: Path) -> None:
    frame = varied.frames(STREAM)[3]
    view, expected = frame.array, frame.copy()
    for path in root.glob("stream=*/epoch=*/*"):
        path.unlink()
    varied.close()
    del frame
    assert np.array_equal(view, expected)


def test_reading_a_removed_segment_fails(varied: recording.Recording, root: Path) -> None:
    chosen = varied.frames(STREAM)
    for path in root.glob(f"stream={STREAM}/epoch=1/*15.arrows"):
        path.unlink()
    with pytest.raises(FrameNotRecorded, match="refresh"):
        list(chosen)


# --- while it is written


def test_growing_recording_is_followed_without_loss(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 2))
        found = recording.open(root)
        assert seqs(found) == [0, 1]
        cursor = found.latest(STREAM)
        assert cursor == recording.Cursor(STREAM, 1, 1)
        read: list[tuple[int, int]] = []
        for step, (first, epoch) in enumerate([(2, 1), (5, 1), (9, 1), (0, 2), (4, 2)]):
            writer.write_batch(frames(first, 3, epoch=epoch))
            if step % 2:
                writer.rotate()
            found.refresh()
            for frame in found.after(cursor):
                assert frame.valid()
                read.append((frame.epoch, frame.seq))
                cursor = frame.cursor
            assert cursor == found.latest(STREAM)
    found.refresh()
    assert list(found.after(cursor)) == []
    assert read == [(1, s) for s in (2, 3, 4, 5, 6, 7, 9, 10, 11)] + [(2, s) for s in (0, 1, 2, 4, 5, 6)]


def test_frames_until_a_cursor_end_there(varied: recording.Recording) -> None:
    def between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
        chosen = varied.after(recording.Cursor(STREAM, *start), until=recording.Cursor(STREAM, *end))
        found = [(frame.epoch, frame.seq) for frame in chosen]
        assert len(chosen) == len(found)
        return found

    assert between((1, 7), (1, 16)) == [(1, 8), (1, 9), (1, 15), (1, 16)]
    assert between((1, 27), (2, 1)) == [(1, 28), (1, 29), (2, 0), (2, 1)]
    assert between((2, 9), (2, 9)) == []


def test_incomplete_batch_is_not_visible(make_writer: WriterFactory, root: Path) -> None:
    writer = make_writer()
    writer.write_batch(frames(0, 2))
    segment = writer._streams[STREAM].segment
    assert segment is not None
    found = recording.open(root)
    parts = b"".join(segment._encoder.encode(frames(2, 2)))
    for size in (1, 8, 500, len(parts) - 1):
        with segment.path.open("r+b") as file:
            file.seek(segment.end)
            file.write(parts[:size])
        found.refresh()
        assert seqs(found) == [0, 1]
    with segment.path.open("r+b") as file:
        file.seek(segment.end)
        file.write(parts)
    found.refresh()
    assert seqs(found) == [0, 1, 2, 3]
    writer.close()


@pytest.mark.parametrize("size", [0, 5, 8, 700])
def test_new_segment_without_a_schema_has_no_frames(
    size: int, make_writer: WriterFactory, root: Path
) -> None:
    writer = make_writer()
    writer.write_batch(frames(0, 2))
    writer.rotate()
    writer.write_batch(frames(2, 2))
    segment = writer._streams[STREAM].segment
    assert segment is not None
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[:size])
    found = recording.open(root)
    assert (seqs(found), found.latest(STREAM)) == ([0, 1], recording.Cursor(STREAM, 1, 1))
    assert (found.ledger(STREAM)[0].rows, recording.info(root).rows) == (2, 2)
    assert [frame.seq for frame in found.after(recording.Cursor(STREAM, 1, 1))] == []
    segment.path.write_bytes(content)
    found.refresh()
    assert seqs(found) == [0, 1, 2, 3]
    writer.close()


def test_frames_of_a_live_recording_keep_their_indexes(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
        chosen = recording.open(root).frames(STREAM)
        assert len(chosen) == 3
        writer.write_batch(frames(3, 3))
        writer.rotate()
        assert (len(chosen), chosen[2].seq, chosen[-1].seq) == (3, 2, 2)


def test_appended_frames_are_written_when_a_sync_is_due(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.append([1], stream_id=STREAM, epoch=1, seq=0)
        writer.tick()
        assert recording.open(root).streams == ()
        make_writer.clock.advance(0.1)
        writer.tick()
        assert len(recording.open(root).frames(STREAM)) == 1


def test_sync_thread_writes_and_seals(root: Path, wait_until: Callable[..., object]) -> None:
    limits = recording.WriterLimits(sync_ns=2_000_000, segment_ns=5_000_000)
    with recording.RecordingWriter(root, limits=limits) as writer:
        writer.append([1], stream_id=STREAM, epoch=1, seq=0)
        wait_until(lambda: list(root.glob("stream=*/epoch=*/*.arrows")))
        assert [frame.seq for frame in recording.open(root).frames(STREAM)] == [0]


@pytest.mark.parametrize("limit", ["segment_bytes", "segment_ns"])
def test_segments_rotate_by_size_and_by_time(limit: str, make_writer: WriterFactory, root: Path) -> None:
    with make_writer(**{limit: 30_000 if limit == "segment_bytes" else 1_000_000_000}) as writer:
        for first in range(0, 40, 4):
            writer.write_batch(frames(first, 4, 1_000))
            make_writer.clock.advance(0.25)
    found = recording.open(root)
    sizes = found.segments["size_bytes"].tolist()
    assert len(sizes) in (3, 4, 5)
    if limit == "segment_bytes":
        assert max(sizes) <= 30_008
    assert seqs(found) == list(range(40))


def test_clock_anchors_are_periodic_and_follow_a_clock_step(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        start = make_writer.clock.wall_ns() - make_writer.clock.monotonic_ns()
        for _ in range(25):
            make_writer.clock.advance(1.0)
            writer.tick()
        make_writer.clock.step_wall(-3600)
        writer.tick()
    rows = recording.open(root).table("anchors").to_pylist()
    assert [row["wall_ns"] - row["monotonic_ns"] for row in rows] == [
        start,
        start,
        start,
        start - 3600 * 10**9,
    ]
    assert rows[0]["boot_id"]


def test_marks_and_messages_are_recorded_in_tables(make_writer: WriterFactory, root: Path) -> None:
    from tensorpool import sbe

    message = sbe.QosProducer(stream_id=STREAM, producer_id=7, epoch=2**63, current_seq=42).encode()
    with make_writer() as writer:
        writer.mark("door opened")
        writer.mark("here", stream_id=STREAM)
        writer.add_message("qos", message, stream_id=STREAM, epoch=2**63)
        writer.add_message("announces", b"gibberish", stream_id=STREAM)
        with pytest.raises(KeyError):
            writer.add_message("gaps", b"", stream_id=1)
    found = recording.open(root)
    assert [(row["label"], row["stream_id"]) for row in found.table("marks").to_pylist()] == [
        ("door opened", None), ("here", STREAM),
    ]  # fmt: skip
    (row,) = found.table("qos").to_pylist()
    assert (row["kind"], row["message"], row["epoch"]) == ("QosProducer", message, -(2**63))
    assert '"42"' in row["json"]
    (row,) = found.table("announces").to_pylist()
    assert (row["kind"], row["json"]) == ("unknown", None)
    with pytest.raises(KeyError, match="the tables are gaps, anchors"):
        found.table("nothing")
