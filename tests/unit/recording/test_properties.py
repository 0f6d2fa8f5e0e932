"""Properties of recordings: after any sequence of operations complete frames are read back, and the ledger
balances.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import LockHeld
from tensorpool.recording import layout, manifest, manifest_store
from tensorpool.recording.gaps import Gap, classify_missing
from tensorpool.recording.tensors import tensors_fit
from tests.unit.recording.conftest import STREAM, frames, payload

LONG = os.environ.get("TENSORPOOL_TEST_LONG") == "1"


class CompletedBatch(NamedTuple):
    """A complete batch: its epoch and sequences, its segment, and its end in the segment's file."""

    epoch: int
    seqs: list[int]
    segment: layout.SegmentName
    end: int


class RecordingMachine(RuleBasedStateMachine):
    """Successive writers of one stream. The model has the complete batches."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="recording-"))
        self.clock = ManualClock()
        self.batches: list[CompletedBatch] = []
        self.waiting: list[int] = []
        self.epoch = 1
        self.seq = 0

    @initialize()
    def begin(self) -> None:
        limits = recording.WriterLimits(segment_bytes=12_000, batch_rows=3, batch_bytes=1_000)
        self.writer = recording.RecordingWriter(self.root, limits=limits, background=False, clock=self.clock)

    def add_batch(self, seqs: list[int]) -> None:
        segment = self.writer._streams[STREAM].segment
        assert segment is not None
        self.batches.append(CompletedBatch(self.epoch, seqs, segment.name, segment.end))

    def add_waiting(self) -> None:
        if self.waiting:
            self.add_batch(self.waiting)
            self.waiting = []

    @rule(count=st.integers(1, 5), nbytes=st.integers(0, 300), skip=st.integers(0, 3), declare=st.booleans())
    def write_batch(self, count: int, nbytes: int, skip: int, declare: bool) -> None:
        self.flush()
        gaps = [Gap(STREAM, self.epoch, self.seq, skip, "late")] if skip and declare else []
        self.seq += skip
        self.writer.write_batch(frames(self.seq, count, nbytes, epoch=self.epoch), gaps)
        self.add_batch(list(range(self.seq, self.seq + count)))
        self.seq += count

    @rule(nbytes=st.integers(1, 300), skip=st.integers(0, 2))
    def append(self, nbytes: int, skip: int) -> None:
        stream = self.writer._streams.get(STREAM)
        if stream is not None and len(stream.builder) and not stream.builder.has_room(nbytes):
            self.flush()
        self.seq += skip
        self.writer.append(payload(self.seq, nbytes), stream_id=STREAM, epoch=self.epoch, seq=self.seq)
        self.waiting.append(self.seq)
        self.seq += 1

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        self.add_waiting()

    @rule()
    def sync(self) -> None:
        self.writer.sync()
        self.add_waiting()

    @rule()
    def rotate(self) -> None:
        self.flush()
        self.writer.rotate()

    @rule(first=st.integers(0, 9))
    def next_epoch(self, first: int) -> None:
        self.flush()
        self.epoch += 1
        self.seq = first

    @rule()
    def new_snapshot(self) -> None:
        if (self.root / layout.MANIFEST_FILE).exists():
            with manifest_store.locked(self.root):
                manifest_store.compact_locked(self.root, manifest.load(self.root))

    @rule()
    def remove_manifest(self) -> None:
        for path in self.root.glob("_manifest*"):
            path.unlink()

    @rule()
    def close_and_reopen(self) -> None:
        self.flush()
        self.writer.close()
        self.begin()

    @rule(cut=st.integers(0, 3_000))
    def crash(self, cut: int) -> None:
        """The writer crashes, and the end of the open segment is lost."""
        stream = self.writer._streams.get(STREAM)
        if stream is not None:
            if stream.segment is not None:
                path = stream.segment.path
                stream.segment.abandon()
                size = max(0, path.stat().st_size - cut)
                os.truncate(path, size)
                name = stream.segment.name
                self.batches = [batch for batch in self.batches if batch.segment != name or batch.end <= size]
            stream.release()
        for file in self.writer._tables._files.values():
            for fd in file.fds:
                os.close(fd)
        self.writer._tables._table_index.close()
        self.waiting = []
        self.begin()

    @precondition(lambda self: STREAM in self.writer._streams)
    @rule()
    def repair_fails_while_a_writer_is_running(self) -> None:
        with pytest.raises(LockHeld):
            recording.repair(self.root)

    @invariant()
    def complete_frames_are_read_back(self) -> None:
        expected = [(batch.epoch, seq) for batch in self.batches for seq in batch.seqs]
        with recording.open(self.root) as found:
            if not expected and STREAM not in found.streams:
                return
            chosen = found.frames(STREAM)
            read = []
            for frame in chosen:
                assert np.array_equal(frame.payload, payload(frame.seq, frame.nbytes))
                assert frame.valid()
                read.append((frame.epoch, frame.seq))
            assert read == expected
            assert len(chosen) == len(expected)
            if expected:
                assert (chosen[-1].epoch, chosen[-1].seq) == expected[-1]
                assert found.latest(STREAM) == recording.Cursor(STREAM, *expected[-1])
            for ledger in found.ledger(STREAM):
                assert ledger.balanced, str(ledger)
                assert ledger.rows == sum(epoch == ledger.epoch for epoch, _ in expected)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.flush()
            self.writer.close()
            report = recording.verify(self.root)
            assert report.ok, report.problems
            assert report.rows == sum(len(batch.seqs) for batch in self.batches)
        shutil.rmtree(self.root)


TestRecordingMachine = RecordingMachine.TestCase
TestRecordingMachine.settings = settings(
    max_examples=300 if LONG else 40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=6)


@given(ranges, ranges)
def test_classify_missing_covers_every_sequence_once(
    missing: list[tuple[int, int]], declared: list[tuple[int, int]]
) -> None:
    holes, at = [], 0
    for skip, count in missing:
        holes.append((at + skip, at + skip + count - 1))
        at += skip + count
    gaps = [Gap(1, 1, first, count, f"r{number}") for number, (first, count) in enumerate(declared)]
    classified = classify_missing(holes, gaps, "?")
    covered = [seq for first, last, _ in classified for seq in range(first, last + 1)]
    assert covered == [seq for first, last in holes for seq in range(first, last + 1)]
    for first, last, reason in classified:
        for seq in range(first, last + 1):
            reasons = [gap.reason for gap in gaps if gap.first_seq <= seq <= gap.last_seq]
            assert reason in (reasons or ["?"])


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.lists(st.integers(-3, 40), min_size=4, max_size=4),
    room=st.integers(0, 300),
)
def test_fitting_tensor_stays_inside_its_payload(shape: list[int], steps: list[int], room: int) -> None:
    dims, strides = np.zeros((1, 8), np.int32), np.zeros((1, 8), np.int64)
    dims[0, : len(shape)] = shape
    strides[0, : len(shape)] = steps[: len(shape)]
    fits = tensors_fit(dims, strides, np.array([len(shape)]), np.array([2]), np.array([room]))[0]
    reached = [
        sum(i * step for i, step in zip(index, steps, strict=False)) + byte
        for index in np.ndindex(*shape)
        for byte in (0, 1)
    ]
    if fits:
        assert all(0 <= at < room for at in reached)
    elif reached and all(step >= 0 for step in steps):
        assert max(reached) >= room
