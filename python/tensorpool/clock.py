"""Time as something that is handed in: real in a role, set by hand in a test.

`monotonic_ns` is CLOCK_MONOTONIC, the clock of the wire's MONOTONIC domain; it means nothing on another
host or after a reboot. `wall_ns` is the time of day, which may jump.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol


class Clock(Protocol):
    """Where everything that waits or stamps gets its time from."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that only ever grow."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; may jump either way."""
        ...

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told otherwise. Sleeping moves it, and is remembered."""

    def __init__(
        self, *, monotonic_ns: int = 1_000_000_000, wall_ns: int = 1_700_000_000_000_000_000
    ) -> None:
        self._lock = threading.Lock()
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self.sleeps: list[float] = []

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> None:
        """Moves both clocks on."""
        step = ns + round(seconds * 1e9)
        if step < 0:
            raise ValueError("a monotonic clock does not go back; step_wall moves the time of day")
        with self._lock:
            self._monotonic_ns += step
            self._wall_ns += step

    def step_wall(self, seconds: float) -> None:
        """Sets the time of day forward or back, as an administrator or a time server would."""
        with self._lock:
            self._wall_ns += round(seconds * 1e9)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
