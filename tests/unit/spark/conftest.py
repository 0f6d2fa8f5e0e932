"""Recordings to be read by Spark, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from tensorpool import recording
from tensorpool.spark.options import READ, STREAM, Options, spark_schema
from tensorpool.spark.reader import FrameReader, FrameStreamReader

# Its threads, if it has any, start now: before the first snapshot of a leak check.
pa.table({"a": [1]}).column(0).to_pylist()

STREAM_ID = 10_000


def tensor(seq: int, shape: tuple[int, ...] = (4, 8)) -> npt.NDArray[np.uint16]:
    """Values that are different for each sequence, and cheap to make again."""
    return np.random.default_rng(seq).integers(0, 60_000, shape, np.uint16)


def write(
    root: Path, seqs: Any, *, stream_id: int = STREAM_ID, epoch: int = 1, per_segment: int = 10, **more: Any
) -> None:
    """Frames in segments of so many, all sealed."""
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, seqs, stream_id=stream_id, epoch=epoch, per_segment=per_segment, **more)


def add(
    writer: recording.RecordingWriter,
    seqs: Any,
    *,
    stream_id: int = STREAM_ID,
    epoch: int = 1,
    per_segment: int | None = None,
    shape: tuple[int, ...] = (4, 8),
) -> None:
    for number, seq in enumerate(seqs):
        if per_segment and number and number % per_segment == 0:
            writer.rotate(stream_id)
        writer.append(
            tensor(seq, shape), stream_id=stream_id, epoch=epoch, seq=seq, receive_time_ns=1_000 * (seq + 1)
        )
    writer.flush()


def half_of(root: Path) -> int:
    """Half the bytes of its segments."""
    return sum(path.stat().st_size for path in root.glob("stream=*/epoch=*/*")) // 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def options(root: Path, use: str = READ, **given: Any) -> Options:
    return Options({"path": str(root), **{key: str(value) for key, value in given.items()}}, use)


def batch_reader(root: Path, **given: Any) -> FrameReader:
    chosen = options(root, **given)
    return FrameReader(chosen, spark_schema(chosen))


def rows_of(
    partitions: list[InputPartition], read: Callable[..., Iterator[pa.RecordBatch]]
) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in read(one) for row in batch.to_pylist()]


def read(root: Path, **given: Any) -> list[dict[str, Any]]:
    """What a batch read gives, task by task, through the same steps as in Spark."""
    reader = batch_reader(root, **given)
    return rows_of(reader.partitions(), reader.read)


@pytest.fixture
def stream_reader() -> Iterator[Callable[..., FrameStreamReader]]:
    """`stream_reader(root, **options)`: one that is stopped at the end."""
    made: list[FrameStreamReader] = []

    def make(root: Path, **given: Any) -> FrameStreamReader:
        chosen = options(root, STREAM, **given)
        made.append(FrameStreamReader(chosen, spark_schema(chosen)))
        return made[-1]

    yield make
    for one in made:
        one.stop()
