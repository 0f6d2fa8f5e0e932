"""Fixtures of the fault tests: worker processes in a private environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.environment import Environment, newest_epoch
from tests.remote_process import RemoteProcess

# A tenth of the default, so that a killed producer is detected in a third of a second.
ANNOUNCE_PERIOD = 0.1

__all__ = ["ANNOUNCE_PERIOD", "Environment"]


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[Environment]:
    """A private environment without processes."""
    with ExitStack() as stack:
        yield Environment(aeron_dir, shm_base, free_stream_id, ANNOUNCE_PERIOD, stack)


@pytest.fixture
def frames_flow(wait_until: Callable[..., Any]) -> Callable[..., int]:
    """A function that waits until a consumer receives frames of an epoch later than `after`; returns it."""

    def wait(consumer: RemoteProcess, *, after: int = 0, timeout: float = 60) -> int:
        wait_until(lambda: newest_epoch(consumer) > after, timeout=timeout)
        return newest_epoch(consumer)

    return wait


@pytest.fixture(autouse=True)
def _standalone(standalone_mode: None) -> None:
    """The tests run without a driver: producers own their regions."""
