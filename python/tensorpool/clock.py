"""Clocks as arguments: the system clock in a role, a manual clock in a test.

`monotonic_ns` is CLOCK_MONOTONIC, the clock of the wire's MONOTONIC domain. Its values have no meaning on
another host or after a reboot. `wall_ns` is the time of day, which may jump.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol


class Clock(Protocol):
    """The source of time for waiting and for timestamps."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; may jump forward or back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for this time."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """Blocks the thread."""
        time.sleep(seconds)


class ManualClock:
    """A clock that only `advance`, `step_wall` and `sleep` move. `sleeps` lists all sleeps."""

    def __init__(
        self, *, monotonic_ns: int = 1_000_000_000, wall_ns: int = 1_700_000_000_000_000_000
    ) -> None:
        self._lock = threading.Lock()
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self.sleeps: list[float] = []

    def monotonic_ns(self) -> int:
        """The monotonic time that was set."""
        return self._monotonic_ns

    def wall_ns(self) -> int:
        """The time of day that was set."""
        return self._wall_ns

    def sleep(self, seconds: float) -> None:
        """Moves both clocks on, without waiting."""
        with self._lock:
            self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> None:
        """Moves both clocks on."""
        step = ns + round(seconds * 1e9)
        if step < 0:
            raise ValueError("a monotonic clock cannot go back; step_wall moves the time of day")
        with self._lock:
            self._monotonic_ns += step
            self._wall_ns += step

    def step_wall(self, seconds: float) -> None:
        """Sets the time of day forward or back, as an administrator or a time server would."""
        with self._lock:
            self._wall_ns += round(seconds * 1e9)


SYSTEM_CLOCK: Final[Clock] = SystemClock()


def age_ns(timestamp_ns: int, clock: Clock = SYSTEM_CLOCK) -> int:
    """How long ago a timestamp of a region is; below 0 for a time to come.

    Regions of the domain REALTIME_SYNCED have the time of day in them, all others the monotonic clock. The
    two are decades apart, so the timestamp itself shows which one it is of.
    """
    monotonic_ns, wall_ns = clock.monotonic_ns(), clock.wall_ns()
    is_wall = abs(wall_ns - timestamp_ns) < abs(monotonic_ns - timestamp_ns)
    return (wall_ns if is_wall else monotonic_ns) - timestamp_ns


def monotonic_time_ns(timestamp_ns: int, clock: Clock = SYSTEM_CLOCK) -> int:
    """A timestamp of a region on the monotonic clock, whichever clock it is of."""
    monotonic_ns, wall_ns = clock.monotonic_ns(), clock.wall_ns()
    if abs(wall_ns - timestamp_ns) < abs(monotonic_ns - timestamp_ns):
        return monotonic_ns - (wall_ns - timestamp_ns)
    return timestamp_ns
