"""The interface of a measured library, and the plan and source bytes that all libraries share.

A frame is a copy of a source of fixed size. The producer changes the first and the last 8 bytes for each
frame and copies the source into the payload (the fill). The consumer reads these two values in place. Both
hold the time of the frame, or its number at full speed: if they are equal, the frame is not torn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol

import numpy as np

from .plan import JsonPlan

WORD_BYTES = 8

LIBRARIES = {
    "tensorpool": "benchmarks.peers.tensorpool",
    "standalone": "benchmarks.peers.standalone",
    "iceoryx2": "benchmarks.peers.iceoryx2",
    "zenoh": "benchmarks.peers.zenoh",
    "pyzmq": "benchmarks.peers.pyzmq",
}


@dataclass(frozen=True, slots=True)
class Plan(JsonPlan):
    """Plan of one measurement: a producer and a consumer of one library, frames of one size."""

    library: str
    size_bytes: int
    nslots: int
    directory: str
    """Private to this measurement, which always removes it."""
    warmup_s: float
    latency_s: float
    rate_s: float
    pace_hz: int = 1000

    @property
    def duration_s(self) -> float:
        """Duration of both phases with their warm-ups and of the bare copy after them."""
        return 3 * self.warmup_s + self.latency_s + 2 * self.rate_s


class Source:
    """Bytes that the producer copies into each payload."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes = bytearray(size_bytes)
        self.values = memoryview(self.bytes).cast("Q")
        self.array = np.frombuffer(self.bytes, np.uint64)
        self.address = self.array.ctypes.data


class Sender(NamedTuple):
    """Functions of a producer that a measurement calls."""

    send: Callable[[], object]
    """Copies the source into a payload and publishes it."""
    bare_copy: Callable[[], object] | None = None
    """Copies the source into the next slot of the same memory and does nothing else."""


FrameStamps = tuple[int, int]
"""First and last value of a frame."""

Frames = Iterator[FrameStamps | None]
"""Endless iterator over received frames. Spins while there is none, and yields None now and then."""


class Library(Protocol):
    """A library that carries arrays between processes."""

    def version(self) -> str:
        """Version text for the report."""

    def terms(self) -> str:
        """How the benchmark uses the library, as one line of the report."""

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        """Runs what the library needs beside the two measured processes."""

    def producer(self, plan: Plan, source: Source) -> AbstractContextManager[Sender]:
        """Opens a producer."""

    def consumer(self, plan: Plan) -> AbstractContextManager[Frames]:
        """Opens a consumer."""


def load(name: str) -> Library:
    """Imports the library with this name."""
    library: Library = import_module(LIBRARIES[name]).LIBRARY
    return library
