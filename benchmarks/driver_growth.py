"""What a driver costs as streams and leases grow: attach time, memory, processor time.

Every crowd has a driver of its own. Growth is what each stream (or lease) beyond the first costs in the
largest crowd, by what it costs in the middle one: 1 is linear.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .dataplane import Run, Settings, progress, undisturbed
from .driver_crowd import CrowdPlan
from .driver_process import running
from .pair import Child, MeasurementFailed
from .targets import Target

LINEAR = 1.1
"""Up to this a factor counts as linear: two runs of the same differ by as much."""
_WITHIN_S = 120.0
_STEADY_S, _QUICK_STEADY_S = 3.0, 0.3
# Two for each stream, and some; what is usual is 1,024.
_OPEN_FILES = 4096
# Small, so that a thousand of them are: what the files hold is not what a driver costs.
_SMALL = {"driver__nslots": "1", "driver__pools": '["64"]'}


# An allocator takes memory in steps: two drivers that hold the same differ by as much.
_MEMORY_STEP = 128 << 10


class Crowd(NamedTuple):
    streams: int
    consumers: int
    """Of each stream, beside its producer."""

    @property
    def leases(self) -> int:
        return self.streams * (1 + self.consumers)

    def __str__(self) -> str:
        return f"{self.streams:,} stream{'s' * (self.streams > 1)}, {self.leases:,} leases"

    @property
    def many(self) -> tuple[int, str]:
        """What there is more than one of, and its name."""
        return (self.leases, "leases") if self.streams == 1 else (self.streams, "streams")


ONE = Crowd(1, 1)


class Series(NamedTuple):
    """Crowds that differ in one thing."""

    middle: Crowd
    largest: Crowd


FULL = (Series(Crowd(100, 1), Crowd(1000, 1)), Series(Crowd(1, 100), Crowd(1, 1000)))
QUICK = (Series(Crowd(4, 1), Crowd(40, 1)), Series(Crowd(1, 4), Crowd(1, 40)))


@dataclass(slots=True)
class Growth:
    """All runs, by crowd."""

    series: tuple[Series, ...] = FULL
    runs: dict[Crowd, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def crowds(self) -> list[Crowd]:
        return [ONE, *(crowd for series in self.series for crowd in series)]

    def median(self, crowd: Crowd, key: str) -> float | None:
        known = [value for run in self.runs.get(crowd, ()) if (value := run.get(key)) is not None]
        return statistics.median(known) if known else None

    def each(self, crowd: Crowd, key: str) -> float | None:
        """What each stream beyond the first costs, or each lease if there is one stream."""
        costs = [_each(one, run, crowd, key) for one, run in self._with_one(crowd)]
        return statistics.median(costs) if costs and crowd != ONE else None

    def _with_one(self, crowd: Crowd) -> Iterator[tuple[Run, Run]]:
        return zip(self.runs.get(ONE, []), self.runs.get(crowd, []), strict=False)

    def others(self) -> float | None:
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def targets(self) -> list[Target]:
        """Nothing grows faster than the crowd."""
        return [
            Target(f"{what}, {_from_to(series)}", "linear growth", LINEAR, True, self._factor(series, key))
            for series in self.series
            for what, key in (
                ("attach one by one", "attach_us"),
                ("attach all at once", "at_once_us"),
                ("memory", "resident_bytes"),
                ("processor time", "busy_cores"),
            )
        ]

    def _factor(self, series: Series, key: str) -> float | None:
        """The median over the runs of the factor within one run."""
        factors = []
        for (one, middle), (_, largest) in zip(
            self._with_one(series.middle), self._with_one(series.largest), strict=False
        ):
            if key in _PER_LEASE:
                before, after = middle[key], largest[key]
            else:
                before = max(_each(one, middle, series.middle, key), _resolution(series.middle, key))
                after = _each(one, largest, series.largest, key)
            if before > 0:
                factors.append(after / before)
        return statistics.median(factors) if factors else None


_PER_LEASE = ("attach_us", "at_once_us")


def _each(one: Run, run: Run, crowd: Crowd, key: str) -> float:
    more = crowd.leases - ONE.leases if crowd.streams == 1 else crowd.streams - ONE.streams
    return float(run[key] - one[key]) / max(1, more)


def _resolution(crowd: Crowd, key: str) -> float:
    """What each would have to add for a difference between two processes to say anything."""
    return _MEMORY_STEP / crowd.many[0] if key == "resident_bytes" else 0.0


def _from_to(series: Series) -> str:
    (before, _), (after, name) = series.middle.many, series.largest.many
    return f"{before:,} → {after:,} {name}"


def measure(settings: Settings) -> Growth:
    found = Growth(QUICK if settings.is_quick else FULL)
    deadline = time.monotonic() + settings.patience_s
    steady_s = _QUICK_STEADY_S if settings.is_quick else _STEADY_S
    _allow_open_files()
    for number in range(settings.runs):
        for crowd in found.crowds:
            progress(f"run {number + 1} of {settings.runs}: a driver with {crowd}")
            try:
                run = undisturbed(partial(_run, crowd, steady_s), deadline)
            except MeasurementFailed as error:
                found.failures.append(f"driver growth, {crowd}: {error}")
            else:
                found.runs.setdefault(crowd, []).append(run)
    progress("")
    return found


def _allow_open_files() -> None:
    """For the drivers, which inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(crowd: Crowd, steady_s: float, directory: str) -> Run:
    run: Run = {}
    for at_once in (False, True):
        place = Path(directory, "at-once" if at_once else "one-by-one")
        place.mkdir()
        with running(str(place), **_SMALL) as driver:
            plan = CrowdPlan(
                directory=str(place),
                driver_pid=driver.pid,
                streams=crowd.streams,
                consumers=crowd.consumers,
                at_once=at_once,
                settle_s=steady_s / 2,
                steady_s=steady_s,
            )
            child = Child("benchmarks.driver_crowd", plan.to_json(), state=str(place))
            try:
                run |= child.result(_WITHIN_S)
            finally:
                child.end()
    return run
