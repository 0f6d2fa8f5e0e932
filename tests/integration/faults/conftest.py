"""Workers in processes of their own, all in one private place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.remote import Remote

from .worker import Worker

# Announces come ten times as often as by default, so that a dead producer is noticed in a third of a second.
ANNOUNCE_PERIOD = 0.1


@dataclass
class Place:
    """Where the processes of one test meet."""

    aeron_dir: Path
    base: Path
    stream_id: int
    _stack: ExitStack = field(repr=False)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base),
            "announce_period": ANNOUNCE_PERIOD,
        }

    def worker(self, **options: Any) -> Remote:
        """A process with an open context."""
        remote = self.process()
        remote.call("open", **{**self.options, **options})
        return remote

    def process(self) -> Remote:
        """A process that has not opened anything yet."""
        return self._stack.enter_context(Remote(Worker))

    def driver(self) -> Remote:
        """A process that runs nothing but the media driver."""
        remote = self.process()
        remote.call("launch", aeron_dir=str(self.aeron_dir))
        return remote

    def producer(self, *, at_full_speed: bool = False, **options: Any) -> Remote:
        remote = self.worker(**options)
        remote.call("produce", stream_id=self.stream_id)
        if at_full_speed:
            remote.call("offer_always")
        return remote

    def consumer(self, **options: Any) -> Remote:
        remote = self.worker(**options)
        remote.call("consume", stream_id=self.stream_id)
        remote.call("receive_always")
        return remote

    def epochs(self) -> set[int]:
        """The epoch directories of the stream that exist now."""
        return {int(path.name) for path in self.base.glob(f"tensorpool-*/default/{self.stream_id}/*")}


@pytest.fixture
def place(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(aeron_dir, shm_base, free_stream_id, stack)


@pytest.fixture
def frames_flow(wait_until: Callable[..., Any]) -> Callable[..., int]:
    """Waits until the consumer receives frames of an epoch (any new one, if not named); gives the epoch."""

    def flow(consumer: Remote, *, after: int = 0, timeout: float = 60) -> int:
        def newest() -> int:
            received = consumer.call("receiving")["received"]
            return max((int(epoch) for epoch, (_, _, count) in received.items() if count > 2), default=0)

        wait_until(lambda: newest() > after, timeout=timeout)
        return newest()

    return flow
