"""A media driver for each test, with contexts, producers and consumers."""

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
class MetadataHarness:
    """Opens contexts on the media driver of a test; all are closed at its end."""

    options: dict[str, Any]
    stream_id: int
    stack: ExitStack

    def context(self, **more: Any) -> tp.Context:
        """A new context."""
        return self.stack.enter_context(tp.open(**{**self.options, **more}))

    def pair(self, **options: Any) -> tuple[tp.Producer, tp.Consumer]:
        """A consumer that was opened first, and a producer whose regions it has mapped."""
        consumer = self.context().consumer(self.stream_id, timeout=DEADLINE_S)
        producer = self.context().producer(self.stream_id, **{"pools": ["1MiB"], **options})
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        return producer, consumer


@pytest.fixture(autouse=True)
def _standalone(standalone_mode: None) -> None:
    """Metadata needs no driver; tests with a driver pass a mode."""


@pytest.fixture
def harness(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[MetadataHarness]:
    options = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 0.2}
    with tp.MediaDriver(aeron_dir), ExitStack() as stack:
        yield MetadataHarness({**options, "media_driver": "external"}, free_stream_id, stack)


@pytest.fixture
def until(wait_until: Callable[..., Any]) -> Callable[[Callable[[], Any]], Any]:
    return lambda predicate: wait_until(predicate, timeout=DEADLINE_S)
