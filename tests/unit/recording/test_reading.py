"""Frames by number, sequence and time, and a recording that is read while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import FrameNotRecorded
from tests.unit.recording.conftest import STREAM, Writing, frames, seqs


@pytest.fixture
def varied(writing: Writing, root: Path) -> Iterator[recording.Recording]:
    """Two streams, two epochs, several segments and batches: 0..29 but 10..14 in epoch 1, 0..9 in epoch 2."""
    with writing() as writer:
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
    with pytest.raises(FrameNotRecorded, match="recorded are: 7, 10000"):
        varied.frames(8)


def test_a_number_means_the_same_frame_as_iterating(varied: recording.Recording) -> None:
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
def test_a_range_of_sequences_includes_both_ends(
    varied: recording.Recording, bounds: tuple[int | None, int | None]
) -> None:
    low, high = (0 if bounds[0] is None else bounds[0]), (99 if bounds[1] is None else bounds[1])
    expected = [seq for seq in FIRST_EPOCH if low <= seq <= high]
    chosen = varied.frames(STREAM, epoch=1, seq=bounds)
    assert [frame.seq for frame in chosen] == expected
    assert len(chosen) == len(expected)
    assert [chosen[i].seq for i in range(len(expected))] == expected


def test_a_range_of_time_is_that_of_receipt(varied: recording.Recording) -> None:
    # Frame n was received n microseconds after the beginning of 1970.
    chosen = varied.frames(STREAM, epoch=1, time=(4_000, 16_999))
    assert [frame.seq for frame in chosen] == [4, 5, 6, 7, 8, 9, 15, 16]
    assert (len(chosen), chosen[6].seq) == (8, 15)
    early = datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)
    assert [frame.seq for frame in varied.frames(STREAM, epoch=1, time=(None, early))] == [0, 1, 2]
    with pytest.raises(ValueError, match="zone"):
        varied.frames(STREAM, time=(datetime(1970, 1, 1), None))


def test_time_may_run_backwards(writing: Writing, root: Path) -> None:
    times = np.array([50, 10, 40, 20], np.int64)
    with writing() as writer:
        writer.write_batch(frames(0, 4, receive_time_ns=times))
        writer.write_batch(frames(4, 4, receive_time_ns=times + 25))
    chosen = recording.open(root).frames(STREAM, time=(20, 45))
    assert [frame.seq for frame in chosen] == [2, 3, 5, 7]
    assert [chosen[i].seq for i in range(len(chosen))] == [2, 3, 5, 7]


def test_a_single_frame_is_found_in_the_newest_epoch_that_has_it(varied: recording.Recording) -> None:
    assert varied.frame(STREAM, 5).epoch == 2
    assert varied.frame(STREAM, 20).epoch == 1
    assert varied.frame(STREAM, 5, epoch=1).cursor == recording.Cursor(STREAM, 1, 5)
    with pytest.raises(FrameNotRecorded, match="no frame 12"):
        varied.frame(STREAM, 12)


def test_frames_outlive_the_recording_and_its_files(varied: recording.Recording, root: Path) -> None:
    frame = varied.frames(STREAM)[3]
    view, expected = frame.array, frame.copy()
    for path in root.glob("stream=*/epoch=*/*"):
        path.unlink()
    varied.close()
    del frame
    assert np.array_equal(view, expected)


def test_a_removed_segment_is_named_when_it_is_needed(varied: recording.Recording, root: Path) -> None:
    chosen = varied.frames(STREAM)
    for path in root.glob(f"stream={STREAM}/epoch=1/*15.arrows"):
        path.unlink()
    with pytest.raises(FrameNotRecorded, match="refresh"):
        list(chosen)


# --- while it is written


def test_a_growing_recording_is_followed_without_loss(writing: Writing, root: Path) -> None:
    with writing() as writer:
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


def test_what_is_chosen_up_to_a_cursor_ends_there(varied: recording.Recording) -> None:
    def between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
        chosen = varied.after(recording.Cursor(STREAM, *start), until=recording.Cursor(STREAM, *end))
        found = [(frame.epoch, frame.seq) for frame in chosen]
        assert len(chosen) == len(found)
        return found

    assert between((1, 7), (1, 16)) == [(1, 8), (1, 9), (1, 15), (1, 16)]
    assert between((1, 27), (2, 1)) == [(1, 28), (1, 29), (2, 0), (2, 1)]
    assert between((2, 9), (2, 9)) == []


def test_a_batch_that_is_half_written_is_not_there_yet(writing: Writing, root: Path) -> None:
    writer = writing()
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
def test_a_segment_that_has_only_begun_has_no_frames_yet(size: int, writing: Writing, root: Path) -> None:
    writer = writing()
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


def test_frames_of_a_live_recording_keep_their_numbers(writing: Writing, root: Path) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
        chosen = recording.open(root).frames(STREAM)
        assert len(chosen) == 3
        writer.write_batch(frames(3, 3))
        writer.rotate()
        assert (len(chosen), chosen[2].seq, chosen[-1].seq) == (3, 2, 2)


def test_appended_frames_are_written_when_a_sync_is_due(writing: Writing, root: Path) -> None:
    with writing() as writer:
        writer.append([1], stream_id=STREAM, epoch=1, seq=0)
        writer.tick()
        assert recording.open(root).streams == ()
        writing.clock.advance(0.1)
        writer.tick()
        assert len(recording.open(root).frames(STREAM)) == 1


def test_the_writers_own_thread_writes_and_seals_in_time(
    root: Path, wait_until: Callable[..., object]
) -> None:
    limits = recording.WriterLimits(sync_ns=2_000_000, segment_ns=5_000_000)
    with recording.RecordingWriter(root, limits=limits) as writer:
        writer.append([1], stream_id=STREAM, epoch=1, seq=0)
        wait_until(lambda: list(root.glob("stream=*/epoch=*/*.arrows")))
        assert [frame.seq for frame in recording.open(root).frames(STREAM)] == [0]


@pytest.mark.parametrize("limit", ["segment_bytes", "segment_ns"])
def test_segments_end_by_size_and_by_time(limit: str, writing: Writing, root: Path) -> None:
    with writing(**{limit: 30_000 if limit == "segment_bytes" else 1_000_000_000}) as writer:
        for first in range(0, 40, 4):
            writer.write_batch(frames(first, 4, 1_000))
            writing.clock.advance(0.25)
    found = recording.open(root)
    sizes = found.segments["size_bytes"].tolist()
    assert len(sizes) in (3, 4, 5)
    if limit == "segment_bytes":
        assert max(sizes) <= 30_008
    assert seqs(found) == list(range(40))


def test_anchors_tie_the_two_clocks_and_notice_a_step(writing: Writing, root: Path) -> None:
    with writing() as writer:
        start = writing.clock.wall_ns() - writing.clock.monotonic_ns()
        for _ in range(25):
            writing.clock.advance(1.0)
            writer.tick()
        writing.clock.step_wall(-3600)
        writer.tick()
    rows = recording.open(root).table("anchors").to_pylist()
    assert [row["wall_ns"] - row["monotonic_ns"] for row in rows] == [
        start,
        start,
        start,
        start - 3600 * 10**9,
    ]
    assert rows[0]["boot_id"]


def test_marks_and_messages_are_kept_beside_the_frames(writing: Writing, root: Path) -> None:
    from tensorpool import sbe

    message = sbe.QosProducer(stream_id=STREAM, producer_id=7, epoch=2**63, current_seq=42).encode()
    with writing() as writer:
        writer.mark("door opened")
        writer.mark("here", stream_id=STREAM)
        writer.note("qos", message, stream_id=STREAM, epoch=2**63)
        writer.note("announces", b"gibberish", stream_id=STREAM)
        with pytest.raises(KeyError):
            writer.note("gaps", b"", stream_id=1)
    found = recording.open(root)
    assert [(row["label"], row["stream_id"]) for row in found.table("marks").to_pylist()] == [
        ("door opened", None), ("here", STREAM),
    ]  # fmt: skip
    (row,) = found.table("qos").to_pylist()
    assert (row["kind"], row["message"], row["epoch"]) == ("QosProducer", message, -(2**63))
    assert '"42"' in row["json"]
    (row,) = found.table("announces").to_pylist()
    assert (row["kind"], row["json"]) == ("unknown", None)
    with pytest.raises(KeyError, match="there are gaps, anchors"):
        found.table("nothing")
