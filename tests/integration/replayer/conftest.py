"""Recordings to replay, a context, and a consumer that collects its frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorpool as tp
from tensorpool import _native, recording
from tests.fork_server import ForkServer
from tests.integration.recovery.conftest import deployment, mount
from tests.leaks import wait_for

__all__ = ["deployment", "mount"]

# Arrow starts its threads now, before the first snapshot of a leak check.
pa.table({"a": [1]}).sort_by("a").filter(pa.compute.field("a") == 1).to_pylist()

TIMEOUT_S = 60.0
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts processes that tests kill."""
    with ForkServer("tests.integration.recovery.client_process", f"{__package__}.roles") as fork_server:
        yield fork_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.1) as context:
        yield context


def image(stream: int, seq: int) -> np.ndarray:
    """Values that depend on the stream and the sequence."""
    return np.random.default_rng([stream, seq]).integers(0, 1 << 16, (12, 10), np.uint16)


def record(
    root: Path,
    *streams: int,
    frames: int = 40,
    every_ns: int = MS,
    epoch: int = 5,
    first_seq: int = 0,
    start_ns: int = START_NS,
    **limits: int,
) -> None:
    """Records `frames` of each stream, `every_ns` apart; streams alternate."""
    writer_limits = recording.WriterLimits(**{"batch_rows": 7, **limits})
    with recording.RecordingWriter(root, background=False, limits=writer_limits) as writer:
        for number in range(frames):
            for index, stream in enumerate(streams):
                time_ns = start_ns + number * every_ns + index * every_ns // (2 * len(streams))
                seq = first_seq + number
                writer.append(
                    image(stream, seq), stream_id=stream, epoch=epoch, seq=seq, receive_time_ns=time_ns,
                    timestamp_ns=1_000 + 10 * seq, trace_id=stream * 1_000 + seq + 1,
                )  # fmt: skip


@dataclass
class ReceivedFrame:
    """A received frame."""

    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int
    publish_timestamp_ns: int
    trace_id: int | None
    meta_version: int
    array: np.ndarray
    meta: dict[str, Any] | None

    @property
    def crc32c(self) -> int:
        return _native.crc32c(self.array.tobytes("A"))


@dataclass
class FrameCollector:
    """A consumer, and all frames that it received."""

    consumer: tp.Consumer
    frames: list[ReceivedFrame] = field(default_factory=list)

    def poll(self) -> int:
        for frame in self.consumer.poll():
            meta = frame.meta
            array = frame.copy()
            assert frame.publish_timestamp_ns is not None, "a replay publishes with timestamps"
            self.frames.append(
                ReceivedFrame(
                    frame.stream_id, frame.epoch, frame.seq, frame.timestamp_ns, frame.publish_timestamp_ns,
                    frame.trace_id, frame.meta_version, array, None if meta is None else dict(meta),
                )
            )  # fmt: skip
        return len(self.frames)

    def until(self, count: int) -> list[ReceivedFrame]:
        """Waits until `count` frames are received."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.poll() < count:
            assert time.monotonic() < deadline, f"{len(self.frames)} frames of {count}"
            self.consumer.wait(0.05)
        return self.frames


OpenCollector = Callable[..., FrameCollector]


@pytest.fixture
def open_collector(ctx: tp.Context) -> Iterator[OpenCollector]:
    """`open_collector(stream_id)`: a collector in this process."""
    consumers: list[tp.Consumer] = []

    def make(stream_id: int) -> FrameCollector:
        consumers.append(ctx.consumer(stream_id, max_outstanding_seq_gap=0))
        return FrameCollector(consumers[-1])

    yield make
    for consumer in consumers:
        consumer.close()


def until(condition: Callable[[], Any]) -> None:
    assert wait_for(condition, timeout=TIMEOUT_S)
