"""How fast a stream runs: from the times of single frames, or from looks at its newest sequence.

How fast a count grows, from the last few looks at it. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate and spacing of the frames of a window, as `ros2 topic hz` has them."""

    frames: int
    seconds: float
    hz: float
    min_s: float
    max_s: float
    std_dev_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "window_s": self.seconds,
            "hz": self.hz,
            "min_s": self.min_s,
            "max_s": self.max_s,
            "std_dev_s": self.std_dev_s,
        }


class Intervals:
    """The times between the last `window` frames."""

    def __init__(self, window: int) -> None:
        self._times: deque[int] = deque(maxlen=window + 1)

    def add(self, at_ns: int) -> None:
        """A frame. Times that go backwards (another clock, another epoch) begin the window anew."""
        if self._times and at_ns < self._times[-1]:
            self._times.clear()
        self._times.append(at_ns)

    def clear(self) -> None:
        self._times.clear()

    def rate(self) -> Rate | None:
        """None until two frames were seen at different times."""
        times = list(self._times)
        if len(times) < 2 or times[-1] == times[0]:
            return None
        gaps = [(b - a) / 1e9 for a, b in pairwise(times)]
        seconds = (times[-1] - times[0]) / 1e9
        mean = seconds / len(gaps)
        deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        return Rate(len(gaps), seconds, len(gaps) / seconds, min(gaps), max(gaps), deviation)


class SampledRate:
    """The rate of something that only grows, from looks at it now and then, over the last `window_ns`."""

    def __init__(self, window_ns: int = 2_000_000_000) -> None:
        self._window_ns = window_ns
        self._changes: deque[tuple[int, int]] = deque()

    def add(self, at_ns: int, count: int) -> None:
        """A look. A count that fell (another epoch) begins anew."""
        if self._changes and count < self._changes[-1][1]:
            self._changes.clear()
        # Only changes are kept: the time between them is known better than that between looks.
        if not self._changes or count > self._changes[-1][1]:
            self._changes.append((at_ns, count))
        # The newest change that is a whole window old stays, so that the window is never shorter than it.
        while len(self._changes) > 2 and at_ns - self._changes[1][0] >= self._window_ns:
            self._changes.popleft()

    def per_second(self, now_ns: int) -> float | None:
        """None until there were two changes. Falls off when no more come."""
        if len(self._changes) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._changes[0], self._changes[-1]
        if now_ns - last_ns > self._window_ns:
            return 0.0
        usual_ns = (last_ns - first_ns) / (last - first)
        is_late = now_ns - last_ns > 2 * usual_ns
        return (last - first) * 1e9 / ((now_ns if is_late else last_ns) - first_ns)


_LOOKS: Final = 4


class RateMeter:
    """A rate over the last three periods. What goes backwards begins anew."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: list[tuple[int, int]] = []

    def add(self, now_ns: int, count: int) -> None:
        looks = self._looks
        if looks:
            last_ns, last = looks[-1]
            if count < last:
                looks.clear()
            elif now_ns <= last_ns:
                looks[-1] = (last_ns, count)
                return
            elif len(looks) == _LOOKS:
                del looks[0]
        looks.append((now_ns, count))

    def clear(self) -> None:
        self._looks.clear()

    def per_s(self) -> float | None:
        """None until there were two looks."""
        if len(self._looks) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._looks[0], self._looks[-1]
        return (last - first) * 1e9 / (last_ns - first_ns)
