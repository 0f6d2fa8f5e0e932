"""Idle strategies: how a runner waits after a duty cycle without work.

The names are those of the native side. Shorter waits reduce latency and use more processor time. A strategy
belongs to one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal, Protocol, get_args

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError

IdleName = Literal["backoff", "busy-spin", "yield", "sleep"]
DEFAULT_PERIOD_NS: Final = 5_000_000

# A Python duty cycle takes tens of microseconds, and other threads wait for the interpreter meanwhile. So
# there are fewer spins than in native strategies.
_SPINS: Final = 10
_YIELDS: Final = 5
_MIN_PARK_NS: Final = 50_000


class IdleStrategy(Protocol):
    """A way to wait between duty cycles."""

    def idle(self, work: int) -> None:
        """Waits if the last duty cycle returned no work."""
        ...


class BackoffIdle:
    """Spins, then yields, then sleeps with doubled times up to `period_ns`: almost no load when idle."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._clock = clock
        self._period_ns = period_ns
        self._idle_cycles = 0
        self._park_ns = min(_MIN_PARK_NS, period_ns)

    def idle(self, work: int) -> None:
        """Waits longer with every duty cycle without work."""
        if work > 0:
            self._idle_cycles = 0
            self._park_ns = min(_MIN_PARK_NS, self._period_ns)
            return
        self._idle_cycles += 1
        if self._idle_cycles <= _SPINS:
            return
        if self._idle_cycles <= _SPINS + _YIELDS:
            os.sched_yield()
            return
        self._clock.sleep(self._park_ns / 1e9)
        self._park_ns = min(self._park_ns * 2, self._period_ns)


class BusySpinIdle:
    """Never waits: uses the core completely."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        pass

    def idle(self, work: int) -> None:
        """Returns at once."""


class YieldIdle:
    """Yields the core to other runnable threads."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        pass

    def idle(self, work: int) -> None:
        """Yields once."""
        if work <= 0:
            os.sched_yield()


class SleepIdle:
    """Sleeps `period_ns` after every duty cycle without work."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._clock = clock
        self._period_ns = period_ns

    def idle(self, work: int) -> None:
        """Sleeps one period."""
        if work <= 0:
            self._clock.sleep(self._period_ns / 1e9)


_STRATEGIES: dict[str, Callable[[Clock, int], IdleStrategy]] = {
    "backoff": BackoffIdle,
    "busy-spin": BusySpinIdle,
    "yield": YieldIdle,
    "sleep": SleepIdle,
}
IDLE_NAMES: Final[tuple[str, ...]] = get_args(IdleName)


def idle_strategy(
    name: str, *, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS
) -> IdleStrategy:
    """A new strategy by its name. Raises ConfigError for an unknown name."""
    if name not in _STRATEGIES:
        raise ConfigError(f"idle strategy {name!r}: use {', '.join(IDLE_NAMES[:-1])} or {IDLE_NAMES[-1]}")
    return _STRATEGIES[name](clock, period_ns)
