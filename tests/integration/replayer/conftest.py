"""Recordings to play, a place to play them in, and a consumer that keeps what it gets."""

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

# Its threads, if it has any, start now: before the first snapshot of a leak check.
pa.table({"a": [1]}).sort_by("a").filter(pa.compute.field("a") == 1).to_pylist()

PATIENCE = 60.0
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Processes that are started to be killed."""
    with ForkServer("tests.integration.recovery.client_process", f"{__package__}.roles") as fork_server:
        yield fork_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.1) as context:
        yield context


def picture(stream: int, seq: int) -> np.ndarray:
    """Different for each frame, and cheap to make again."""
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
    """`frames` of each stream, `every_ns` apart; streams take turns, a little after one another."""
    made = recording.WriterLimits(**{"batch_rows": 7, **limits})
    with recording.RecordingWriter(root, background=False, limits=made) as writer:
        for number in range(frames):
            for place, stream in enumerate(streams):
                at_ns = start_ns + number * every_ns + place * every_ns // (2 * len(streams))
                seq = first_seq + number
                writer.append(
                    picture(stream, seq), stream_id=stream, epoch=epoch, seq=seq, receive_time_ns=at_ns,
                    timestamp_ns=1_000 + 10 * seq, trace_id=stream * 1_000 + seq + 1,
                )  # fmt: skip


@dataclass
class Got:
    """One received frame."""

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
class Listener:
    """A consumer, and everything that it got."""

    consumer: tp.Consumer
    frames: list[Got] = field(default_factory=list)

    def poll(self) -> int:
        for frame in self.consumer.poll():
            meta = frame.meta
            array = frame.copy()
            assert frame.publish_timestamp_ns is not None, "a replay says when it publishes"
            self.frames.append(
                Got(
                    frame.stream_id, frame.epoch, frame.seq, frame.timestamp_ns, frame.publish_timestamp_ns,
                    frame.trace_id, frame.meta_version, array, None if meta is None else dict(meta),
                )
            )  # fmt: skip
        return len(self.frames)

    def until(self, count: int) -> list[Got]:
        """Waits until so many frames have come."""
        deadline = time.monotonic() + PATIENCE
        while self.poll() < count:
            assert time.monotonic() < deadline, f"{len(self.frames)} frames of {count}"
            self.consumer.wait(0.05)
        return self.frames


Listen = Callable[..., Listener]


@pytest.fixture
def listen(ctx: tp.Context) -> Iterator[Listen]:
    """`listen(stream_id)`: a listener in this process."""
    made: list[tp.Consumer] = []

    def make(stream_id: int) -> Listener:
        made.append(ctx.consumer(stream_id, max_outstanding_seq_gap=0))
        return Listener(made[-1])

    yield make
    for consumer in made:
        consumer.close()


def until(condition: Callable[[], Any]) -> None:
    assert wait_for(condition, timeout=PATIENCE)
