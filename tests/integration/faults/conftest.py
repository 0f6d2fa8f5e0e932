"""Workers in processes of their own, all in one private place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.environment import Environment, newest_epoch
from tests.remote_process import RemoteProcess

# Announces come ten times as often as by default, so that a dead producer is noticed in a third of a second.
ANNOUNCE_PERIOD = 0.1

__all__ = ["ANNOUNCE_PERIOD", "Environment"]


@pytest.fixture
def place(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[Environment]:
    with ExitStack() as stack:
        yield Environment(aeron_dir, shm_base, free_stream_id, ANNOUNCE_PERIOD, stack)


@pytest.fixture
def frames_flow(wait_until: Callable[..., Any]) -> Callable[..., int]:
    """Waits until the consumer receives frames of an epoch (any new one, if not named); gives the epoch."""

    def flow(consumer: RemoteProcess, *, after: int = 0, timeout: float = 60) -> int:
        wait_until(lambda: newest_epoch(consumer) > after, timeout=timeout)
        return newest_epoch(consumer)

    return flow


@pytest.fixture(autouse=True)
def _without_a_driver(standalone_mode: None) -> None:
    """Faults of the data plane alone: producers own their memory."""
