"""How a runner waits when a turn found nothing to do. The names are those of the native side.

Shorter waits mean quicker answers and more processor time. A strategy belongs to one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal, Protocol, get_args

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError

IdleName = Literal["backoff", "busy-spin", "yield", "sleep"]
DEFAULT_PERIOD_NS: Final = 5_000_000

# A turn of Python takes tens of microseconds, most of which others in the process wait for the interpreter.
_SPINS = 10
_YIELDS = 5
_MIN_PARK_NS = 50_000


class IdleStrategy(Protocol):
    """Called after every turn with what the turn did."""

    def idle(self, work: int) -> None: ...


class BackoffIdle:
    """Spins a little, yields a little, then sleeps, doubling up to `period_ns`: next to no load when idle."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._clock = clock
        self._period_ns = period_ns
        self._turns = 0
        self._park_ns = min(_MIN_PARK_NS, period_ns)

    def idle(self, work: int) -> None:
        if work > 0:
            self._turns = 0
            self._park_ns = min(_MIN_PARK_NS, self._period_ns)
            return
        self._turns += 1
        if self._turns <= _SPINS:
            return
        if self._turns <= _SPINS + _YIELDS:
            os.sched_yield()
            return
        self._clock.sleep(self._park_ns / 1e9)
        self._park_ns = min(self._park_ns * 2, self._period_ns)


class BusySpinIdle:
    """Never lets go of the core."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        pass

    def idle(self, work: int) -> None:
        pass


class YieldIdle:
    """Offers the core to whoever else is ready to run."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        pass

    def idle(self, work: int) -> None:
        if work <= 0:
            os.sched_yield()


class SleepIdle:
    """Sleeps `period_ns` at once."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._clock = clock
        self._period_ns = period_ns

    def idle(self, work: int) -> None:
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
    """A strategy by its name."""
    if name not in _STRATEGIES:
        raise ConfigError(f"idle strategy {name!r}: use {', '.join(IDLE_NAMES[:-1])} or {IDLE_NAMES[-1]}")
    return _STRATEGIES[name](clock, period_ns)
