"""What a library has to offer to be measured, and the work that is the same for all of them.

A frame is a source of fixed size whose first and last word are new each time. The producer copies all of
it into the payload (the fill), the consumer reads the first and the last word where they lie. Both words
are the time of the frame, or its number at full speed: equal ones prove the frame whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol

import numpy as np

from .plan_text import PlanText

WORD_BYTES = 8

LIBRARIES = {
    "tensorpool": "benchmarks.ours",
    "standalone": "benchmarks.peers.standalone",
    "iceoryx2": "benchmarks.peers.iceoryx2",
    "zenoh": "benchmarks.peers.zenoh",
    "pyzmq": "benchmarks.peers.pyzmq",
}


@dataclass(frozen=True, slots=True)
class Plan(PlanText):
    """One measurement: a producer and a consumer of one library, frames of one size."""

    library: str
    size_bytes: int
    nslots: int
    directory: str
    """Private to this measurement; removed after it, whatever happened."""
    warmup_s: float
    latency_s: float
    rate_s: float
    pace_hz: int = 1000

    @property
    def duration_s(self) -> float:
        """Both phases with their warm-ups, and the bare copy after them."""
        return 3 * self.warmup_s + self.latency_s + 2 * self.rate_s


class Source:
    """The bytes that the producer copies into each payload."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes = bytearray(size_bytes)
        self.words = memoryview(self.bytes).cast("Q")
        self.array = np.frombuffer(self.bytes, np.uint64)
        self.address = self.array.ctypes.data


class Sender(NamedTuple):
    send: Callable[[], object]
    """Copies the source into a payload and publishes it."""
    bare_copy: Callable[[], object] | None = None
    """Copies the source into the next slot of the same memory, and nothing else."""


Words = tuple[int, int]
"""The first and the last word of a frame."""

Frames = Iterator[Words | None]
"""Every frame that arrived; None once in a while when there is none. Spins meanwhile, and never ends."""


class Library(Protocol):
    def version(self) -> str: ...
    def terms(self) -> str:
        """How it was used, in one line of the report."""

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        """What has to run in a third process."""

    def producer(self, plan: Plan, source: Source) -> AbstractContextManager[Sender]: ...
    def consumer(self, plan: Plan) -> AbstractContextManager[Frames]: ...


def load(name: str) -> Library:
    library: Library = import_module(LIBRARIES[name]).LIBRARY
    return library
