"""Recordings for the Spark source, and readers that are called as Spark calls them."""

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

# pyarrow starts its threads, if any, now: before the first snapshot of a leak check.
pa.table({"a": [1]}).column(0).to_pylist()

STREAM_ID = 10_000


def tensor(seq: int, shape: tuple[int, ...] = (4, 8)) -> npt.NDArray[np.uint16]:
    """Values that differ for each sequence and can be computed again."""
    return np.random.default_rng(seq).integers(0, 60_000, shape, np.uint16)


def write(
    root: Path, seqs: Any, *, stream_id: int = STREAM_ID, epoch: int = 1, per_segment: int = 10, **more: Any
) -> None:
    """Writes frames in sealed segments of `per_segment` frames."""
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
    """Half the size of a recording's segments."""
    return sum(path.stat().st_size for path in root.glob("stream=*/epoch=*/*")) // 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def options(root: Path, use: str = READ, **given: Any) -> Options:
    return Options({"path": str(root), **{key: str(value) for key, value in given.items()}}, use)


def batch_reader(root: Path, **given: Any) -> FrameReader:
    read_options = options(root, **given)
    return FrameReader(read_options, spark_schema(read_options))


def rows_of(
    partitions: list[InputPartition], read: Callable[..., Iterator[pa.RecordBatch]]
) -> list[dict[str, Any]]:
    return [row for partition in partitions for batch in read(partition) for row in batch.to_pylist()]


def read(root: Path, **given: Any) -> list[dict[str, Any]]:
    """The rows of a batch read, task by task, through the same steps as in Spark."""
    reader = batch_reader(root, **given)
    return rows_of(reader.partitions(), reader.read)


@pytest.fixture
def stream_reader() -> Iterator[Callable[..., FrameStreamReader]]:
    """`stream_reader(root, **options)`: a reader that is stopped at the end of the test."""
    readers: list[FrameStreamReader] = []

    def make(root: Path, **given: Any) -> FrameStreamReader:
        read_options = options(root, STREAM, **given)
        readers.append(FrameStreamReader(read_options, spark_schema(read_options)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()
