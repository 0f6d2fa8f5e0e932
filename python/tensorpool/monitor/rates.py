"""Rates of frames and counts: `FrameIntervals`, `SampledRate` and `RateMeter`. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from ..text import JsonMapping

_MAX_SAMPLES: Final = 4
"""Samples that a `RateMeter` keeps: three periods lie between four reports."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate and spacing of the frames of a window, as in `ros2 topic hz`."""

    frames: int
    seconds: float
    hz: float
    min_s: float
    max_s: float
    std_dev_s: float

    def to_json(self) -> JsonMapping:
        """The rate as `stream hz --json` prints it."""
        return {
            "frames": self.frames,
            "window_s": self.seconds,
            "hz": self.hz,
            "min_s": self.min_s,
            "max_s": self.max_s,
            "std_dev_s": self.std_dev_s,
        }


class FrameIntervals:
    """The times between the last `window` frames."""

    def __init__(self, window: int) -> None:
        self._times: deque[int] = deque(maxlen=window + 1)

    def add(self, at_ns: int) -> None:
        """Adds a frame. A time that goes backwards (another clock, another epoch) starts a new window."""
        if self._times and at_ns < self._times[-1]:
            self._times.clear()
        self._times.append(at_ns)

    def clear(self) -> None:
        """Starts a new window."""
        self._times.clear()

    def rate(self) -> Rate | None:
        """The rate of the window; None until it has two frames of different times."""
        times = list(self._times)
        if len(times) < 2 or times[-1] == times[0]:
            return None
        gaps = [(b - a) / 1e9 for a, b in pairwise(times)]
        seconds = (times[-1] - times[0]) / 1e9
        mean = seconds / len(gaps)
        deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        return Rate(len(gaps), seconds, len(gaps) / seconds, min(gaps), max(gaps), deviation)


class _CountSample(NamedTuple):
    at_ns: int
    total: int


class SampledRate:
    """The rate of a growing count over the last `window_ns`, from samples taken at any time."""

    def __init__(self, window_ns: int = 2_000_000_000) -> None:
        self._window_ns = window_ns
        self._changes: deque[_CountSample] = deque()

    def add(self, at_ns: int, count: int) -> None:
        """Adds a sample. A count that fell (another epoch) starts a new window."""
        if self._changes and count < self._changes[-1].total:
            self._changes.clear()
        # Only changes are kept: the time between two changes is more exact than that between two samples.
        if not self._changes or count > self._changes[-1].total:
            self._changes.append(_CountSample(at_ns, count))
        # The newest change that is a whole window old stays: the changes always span a whole window.
        while len(self._changes) > 2 and at_ns - self._changes[1].at_ns >= self._window_ns:
            self._changes.popleft()

    def per_second(self, now_ns: int) -> float | None:
        """The rate; None until the count has changed twice. It falls when changes stop."""
        if len(self._changes) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._changes[0], self._changes[-1]
        if now_ns - last_ns > self._window_ns:
            return 0.0
        usual_ns = (last_ns - first_ns) / (last - first)
        is_late = now_ns - last_ns > 2 * usual_ns
        return (last - first) * 1e9 / ((now_ns if is_late else last_ns) - first_ns)


class RateMeter:
    """The rate of a growing count over the last three periods, from one sample a report."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []

    def add(self, now_ns: int, count: int) -> None:
        """Adds a sample. A count that fell starts again; a sample of the same time replaces the last one."""
        samples = self._samples
        if samples:
            last_ns, last = samples[-1]
            if count < last:
                samples.clear()
            elif now_ns <= last_ns:
                samples[-1] = (last_ns, count)
                return
            elif len(samples) == _MAX_SAMPLES:
                del samples[0]
        samples.append((now_ns, count))

    def clear(self) -> None:
        """Drops all samples."""
        self._samples.clear()

    def per_s(self) -> float | None:
        """The rate; None until there are two samples."""
        if len(self._samples) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._samples[0], self._samples[-1]
        return (last - first) * 1e9 / (last_ns - first_ns)
