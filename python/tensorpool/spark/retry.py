"""Tries again what the disk refused: an exception in Spark's planning ends a query for good."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import RecordingError

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


def retried(
    work: Callable[[], T],
    *,
    timeout_ns: int,
    pause: Callable[[float], None],
    final: tuple[type[Exception], ...] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """What `work` gives, once it gives something. After `timeout_ns` its last error is raised, and at once if
    it is a `final` one: no use in asking again.
    """
    deadline = clock.monotonic_ns() + timeout_ns
    wait = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except final:
            raise
        except (OSError, RecordingError) as error:
            if clock.monotonic_ns() >= deadline:
                raise
            _LOG.warning("planning failed, trying again: %s", error)
        pause(wait)
        wait = min(2 * wait, _LONGEST_PAUSE_S)
