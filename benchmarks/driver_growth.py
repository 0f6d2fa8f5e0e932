"""Cost of a driver by its number of streams and leases: attach time, memory, processor time.

Every load has a new driver. Growth is the cost of each stream (or lease) beyond the first at the largest
load, divided by that at the middle load: 1 is linear.
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

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .driver_load import DriverLoadPlan
from .driver_process import running
from .processes import ChildProcess, MeasurementFailed
from .targets import Target

LINEAR = 1.1
"""Up to this a factor counts as linear: two equal runs differ by as much."""
_TIMEOUT_S = 120.0
_STEADY_S, _QUICK_STEADY_S = 3.0, 0.3
# A driver needs two for each stream and a few more; the usual limit is 1,024.
_MAX_OPEN_FILES = 4096
# Small files, because a thousand streams have to fit; their size is not a cost of the driver.
_SMALL_LAYOUT = {"driver__nslots": "1", "driver__pools": '["64"]'}

# An allocator takes memory in steps: two drivers with the same load differ by as much.
_ALLOCATION_STEP_BYTES = 128 << 10


class LoadSize(NamedTuple):
    """Number of streams and of consumers of each stream."""

    streams: int
    consumers: int
    """Consumers of each stream, beside its producer."""

    @property
    def leases(self) -> int:
        """Leases of all producers and consumers."""
        return self.streams * (1 + self.consumers)

    def __str__(self) -> str:
        return f"{self.streams:,} stream{'s' * (self.streams > 1)}, {self.leases:,} leases"

    @property
    def varied(self) -> tuple[int, str]:
        """The count that varies in the series, and its name."""
        return (self.leases, "leases") if self.streams == 1 else (self.streams, "streams")


ONE = LoadSize(1, 1)


class Series(NamedTuple):
    """Two loads that differ in one count."""

    middle: LoadSize
    largest: LoadSize


FULL = (Series(LoadSize(100, 1), LoadSize(1000, 1)), Series(LoadSize(1, 100), LoadSize(1, 1000)))
QUICK = (Series(LoadSize(4, 1), LoadSize(40, 1)), Series(LoadSize(1, 4), LoadSize(1, 40)))


@dataclass(slots=True)
class Growth:
    """All runs, by load."""

    series: tuple[Series, ...] = FULL
    runs: dict[LoadSize, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def sizes(self) -> list[LoadSize]:
        """All measured loads."""
        return [ONE, *(size for series in self.series for size in series)]

    def median(self, size: LoadSize, key: str) -> float | None:
        """Median of a value over the runs."""
        known = [value for run in self.runs.get(size, ()) if (value := run.get(key)) is not None]
        return statistics.median(known) if known else None

    def each(self, size: LoadSize, key: str) -> float | None:
        """Cost of each stream beyond the first, or of each lease if there is one stream."""
        costs = [_cost_each(base, run, size, key) for base, run in self._with_base(size)]
        return statistics.median(costs) if costs and size != ONE else None

    def _with_base(self, size: LoadSize) -> Iterator[tuple[Run, Run]]:
        return zip(self.runs.get(ONE, []), self.runs.get(size, []), strict=False)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def targets(self) -> list[Target]:
        """No cost grows faster than the load."""
        return [
            Target(f"{what}, {_range_text(series)}", "linear growth", LINEAR, True, self._factor(series, key))
            for series in self.series
            for what, key in (
                ("attach one by one", "attach_us"),
                ("attach all at once", "at_once_us"),
                ("memory", "resident_bytes"),
                ("processor time", "busy_cores"),
            )
        ]

    def _factor(self, series: Series, key: str) -> float | None:
        """Median over the runs of the factor within each run."""
        factors = []
        for (base, middle), (_, largest) in zip(
            self._with_base(series.middle), self._with_base(series.largest), strict=False
        ):
            if key in _PER_LEASE:
                before, after = middle[key], largest[key]
            else:
                before = max(_cost_each(base, middle, series.middle, key), _min_cost(series.middle, key))
                after = _cost_each(base, largest, series.largest, key)
            if before > 0:
                factors.append(after / before)
        return statistics.median(factors) if factors else None


_PER_LEASE = ("attach_us", "at_once_us")


def _cost_each(base: Run, run: Run, size: LoadSize, key: str) -> float:
    added = size.leases - ONE.leases if size.streams == 1 else size.streams - ONE.streams
    return float(run[key] - base[key]) / max(1, added)


def _min_cost(size: LoadSize, key: str) -> float:
    """Smallest cost that a comparison of two processes can show."""
    return _ALLOCATION_STEP_BYTES / size.varied[0] if key == "resident_bytes" else 0.0


def _range_text(series: Series) -> str:
    (before, _), (after, name) = series.middle.varied, series.largest.varied
    return f"{before:,} → {after:,} {name}"


def measure(settings: Settings) -> Growth:
    """Measures all loads."""
    growth = Growth(QUICK if settings.is_quick else FULL)
    deadline = time.monotonic() + settings.patience_s
    steady_s = _QUICK_STEADY_S if settings.is_quick else _STEADY_S
    _allow_open_files()
    for number in range(settings.runs):
        for size in growth.sizes:
            show_progress(f"run {number + 1} of {settings.runs}: a driver with {size}")
            try:
                run = measure_undisturbed(partial(_run, size, steady_s), deadline)
            except MeasurementFailed as error:
                growth.failures.append(f"driver growth, {size}: {error}")
            else:
                growth.runs.setdefault(size, []).append(run)
    show_progress("")
    return growth


def _allow_open_files() -> None:
    """Raises the limit of open files, which the drivers inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _run(size: LoadSize, steady_s: float, directory: str) -> Run:
    run: Run = {}
    for at_once in (False, True):
        load_directory = Path(directory, "at-once" if at_once else "one-by-one")
        load_directory.mkdir()
        with running(str(load_directory), **_SMALL_LAYOUT) as driver:
            plan = DriverLoadPlan(
                directory=str(load_directory),
                driver_pid=driver.pid,
                streams=size.streams,
                consumers=size.consumers,
                at_once=at_once,
                settle_s=steady_s / 2,
                steady_s=steady_s,
            )
            child = ChildProcess("benchmarks.driver_load", plan.to_json(), state=str(load_directory))
            try:
                run |= child.result(_TIMEOUT_S)
            finally:
                child.end()
    return run
