"""One media driver for a test, and what stands on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Stage:
    """Opens contexts in a place of the test's own; all are closed at its end."""

    options: dict[str, Any]
    stream_id: int
    stack: ExitStack

    def context(self, **more: Any) -> tp.Context:
        return self.stack.enter_context(tp.open(**{**self.options, **more}))

    def pair(self, **producing: Any) -> tuple[tp.Producer, tp.Consumer]:
        """A consumer that was there first, and a producer that it has mapped."""
        consumer = self.context().consumer(self.stream_id, timeout=DEADLINE_S)
        producer = self.context().producer(self.stream_id, **{"pools": ["1MiB"], **producing})
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        return producer, consumer


@pytest.fixture(autouse=True)
def _without_a_driver(standalone_mode: None) -> None:
    """Metadata needs no driver; where there is one, the test says so."""


@pytest.fixture
def stage(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[Stage]:
    options = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 0.2}
    with tp.MediaDriver(aeron_dir), ExitStack() as stack:
        yield Stage({**options, "media_driver": "external"}, free_stream_id, stack)


@pytest.fixture
def until(wait_until: Callable[..., Any]) -> Callable[[Callable[[], Any]], Any]:
    return lambda predicate: wait_until(predicate, timeout=DEADLINE_S)
