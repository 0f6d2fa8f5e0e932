"""Measurements of the data plane: every library and frame size, several runs.

The libraries take turns within a run, so that a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .library import Plan
from .machine import Usage, wait_until_quiet
from .processes import MeasurementFailed, measure_one_process, measure_pair, private_directory

OURS = "tensorpool"
SIZES = {"64 B": 64, "64 KiB": 64 << 10, "640 KiB": 640 << 10, "4 MiB": 4 << 20}
# Typical choices: small frames are published millions of times a second, and a deep ring of them is cheap.
NSLOTS = {64: 256, 64 << 10: 8, 640 << 10: 8, 4 << 20: 8}

# A measurement is reliable if other processes used less than this many cores: producer and consumer spin, so
# on two cores they lose what others use.
QUIET_CORES = 0.1
_MAX_ATTEMPTS = 20

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a benchmark run."""

    libraries: list[str]
    sizes: list[str]
    runs: int = 5
    warmup_s: float = 0.3
    latency_s: float = 2.0
    rate_s: float = 1.0
    patience_s: float = 0.0
    """Total time to wait for an idle machine; disturbed measurements are repeated."""
    is_quick: bool = False
    """Measure as little as shows that the benchmarks work."""


@dataclass(slots=True)
class DataPlaneRuns:
    """All runs of the data plane, by library and frame size."""

    pairs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    one_process: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def pair(self, library: str, size: str, key: str) -> float | None:
        """Median of a value with two processes."""
        return _median(run.get(key) for run in self.pairs.get((library, size), ()))

    def single(self, size: str, key: str) -> float | None:
        """Median of a value with one process."""
        return _median(run.get(key) for run in self.one_process.get(size, ()))

    def others(self) -> float | None:
        """Largest load by other processes during any measurement, in cores."""
        runs = [run for runs in (*self.pairs.values(), *self.one_process.values()) for run in runs]
        return max((run["others_cores"] for run in runs), default=None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def measure(settings: Settings, *, pairs: bool, one_process: bool) -> DataPlaneRuns:
    """Measures the data plane."""
    measured = DataPlaneRuns()
    deadline = time.monotonic() + settings.patience_s

    def measure_into(
        measure_once: Callable[[Plan], Run], library: str, size: str, into: list[Run], number: int
    ) -> None:
        show_progress(f"run {number + 1} of {settings.runs}: {library} {size} {measure_once.__name__}")

        def once(directory: str) -> Run:
            return measure_once(_plan(settings, library, SIZES[size], directory))

        try:
            into.append(measure_undisturbed(once, deadline))
        except MeasurementFailed as error:
            measured.failures.append(f"{library} {size}: {error}")

    for number in range(settings.runs):
        for size in settings.sizes:
            if one_process:
                measure_into(
                    measure_one_process, OURS, size, measured.one_process.setdefault(size, []), number
                )
            if pairs:
                first = number % len(settings.libraries)
                for library in settings.libraries[first:] + settings.libraries[:first]:
                    measure_into(
                        measure_pair, library, size, measured.pairs.setdefault((library, size), []), number
                    )
    show_progress("")
    return measured


def _plan(settings: Settings, library: str, size_bytes: int, directory: str) -> Plan:
    return Plan(
        library=library,
        size_bytes=size_bytes,
        nslots=NSLOTS[size_bytes],
        directory=directory,
        warmup_s=settings.warmup_s,
        latency_s=settings.latency_s,
        rate_s=settings.rate_s,
    )


def measure_undisturbed(measure_once: Callable[[str], Run], deadline: float) -> Run:
    """One measurement in a private directory. Until the deadline, disturbed measurements are repeated."""
    for _ in range(_MAX_ATTEMPTS):
        is_quiet = wait_until_quiet(QUIET_CORES, deadline)
        usage = Usage()
        with usage.watched(), private_directory() as directory:
            run = measure_once(directory)
        run["others_cores"] = usage.others
        if usage.others < QUIET_CORES or not is_quiet:
            break
    return run


def show_progress(text: str) -> None:
    """Replaces the progress line on stderr; does nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
