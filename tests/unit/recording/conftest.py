"""Frames to record, writers for them, and a comparison of recorded frames with the originals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.recording.batch import NO_TIMESTAMP, FrameBatch
from tensorpool.recording.tensors import MAX_DIMS

# pyarrow starts its threads, if any, now: before the first snapshot of a leak check.
pa.table({"a": [1]}).column(0).to_pylist()

STREAM = 10_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@dataclass
class WriterFactory:
    """Makes writers of one recording, without a sync thread and with a manual clock."""

    root: Path
    clock: ManualClock

    def __call__(self, **limits: int) -> recording.RecordingWriter:
        return recording.RecordingWriter(
            self.root, limits=recording.WriterLimits(**limits), background=False, clock=self.clock
        )


@pytest.fixture
def make_writer(root: Path, clock: ManualClock) -> WriterFactory:
    return WriterFactory(root, clock)


def payload(seq: int, nbytes: int = 100) -> npt.NDArray[np.uint8]:
    """Bytes that differ for each sequence and can be computed again."""
    return np.random.default_rng(seq).integers(0, 256, nbytes, np.uint8)


def frames(first: int, count: int = 4, nbytes: int = 100, *, epoch: int = 1, **changes: Any) -> FrameBatch:
    """A batch as the recorder's native loop hands it over."""
    step = -(-nbytes // 64) * 64
    arena = np.zeros(count * step, np.uint8)
    for number in range(count):
        arena[number * step : number * step + nbytes] = payload(first + number, nbytes)
    dims, strides = np.zeros((count, MAX_DIMS), np.int32), np.zeros((count, MAX_DIMS), np.int64)
    dims[:, 0], strides[:, 0] = nbytes, 1
    seq = np.arange(first, first + count, dtype=np.uint64)
    columns: dict[str, Any] = {
        "seq": seq,
        "timestamp_ns": seq + np.uint64(5_000),
        "publish_timestamp_ns": np.full(count, NO_TIMESTAMP, np.uint64),
        "receive_time_ns": seq.astype(np.int64) * 1_000,
        "meta_version": np.ones(count, np.uint32),
        "trace_id": np.zeros(count, np.uint64),
        "dtype": np.ones(count, np.int16),
        "major_order": np.ones(count, np.int16),
        "ndims": np.ones(count, np.uint8),
        "dims": dims,
        "strides": strides,
        "payload_offset": np.arange(count, dtype=np.uint64) * np.uint64(step),
        "payload_bytes": np.full(count, nbytes, np.uint64),
    }
    return FrameBatch(STREAM, epoch, arena, **(columns | changes))


def seqs(of: recording.Recording, stream_id: int = STREAM, **selection: Any) -> list[int]:
    """The recorded sequences. Compares each payload with the original."""
    sequences = []
    for frame in of.frames(stream_id, **selection):
        assert np.array_equal(frame.payload, payload(frame.seq, frame.nbytes)), frame
        assert frame.valid()
        sequences.append(frame.seq)
    return sequences


def segment_files(root: Path) -> list[Path]:
    return sorted(root.glob("stream=*/epoch=*/*.arrows*"))


@pytest.fixture
def make_recording(tmp_path: Path) -> Callable[..., Path]:
    """`make_recording(name, *(first, count), …)`: a sealed recording with these batches."""

    def make(name: str, *batches: tuple[int, int], epoch: int = 1, segment_bytes: int = 1 << 20) -> Path:
        limits = recording.WriterLimits(segment_bytes=segment_bytes)
        with recording.RecordingWriter(tmp_path / name, limits=limits, background=False) as writer:
            for first, count in batches:
                writer.write_batch(frames(first, count, epoch=epoch))
        return tmp_path / name

    return make
