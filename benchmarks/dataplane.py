"""Every library, every size, again and again: libraries take turns, so that drift hits all alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .library import Plan
from .machine import Usage, wait_until_quiet
from .pair import MeasurementFailed, measure_one_process, measure_pair, private_directory

OURS = "tensorpool"
SIZES = {"64 B": 64, "64 KiB": 64 << 10, "640 KiB": 640 << 10, "4 MiB": 4 << 20}
# As people would choose them: small frames come at millions a second, and a deep ring of them costs nothing.
NSLOTS = {64: 256, 64 << 10: 8, 640 << 10: 8, 4 << 20: 8}

# Others below this many cores leave a measurement usable: both sides spin, so on two cores they lose what
# others take.
QUIET_CORES = 0.1
_ATTEMPTS = 20

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    libraries: list[str]
    sizes: list[str]
    runs: int = 5
    warmup_s: float = 0.3
    latency_s: float = 2.0
    rate_s: float = 1.0
    patience_s: float = 0.0
    """How long to wait in all for moments in which nothing else runs; disturbed measurements are repeated."""
    is_quick: bool = False
    """As little as shows that it works."""


@dataclass(slots=True)
class Measured:
    """All runs, by what was measured and the size of its frames."""

    pairs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    one_process: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def pair(self, library: str, size: str, key: str) -> float | None:
        return _median(run.get(key) for run in self.pairs.get((library, size), ()))

    def single(self, size: str, key: str) -> float | None:
        return _median(run.get(key) for run in self.one_process.get(size, ()))

    def others(self) -> float | None:
        """The most that other processes used during any measurement, in cores."""
        runs = [run for runs in (*self.pairs.values(), *self.one_process.values()) for run in runs]
        return max((run["others_cores"] for run in runs), default=None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def measure(settings: Settings, *, pairs: bool, one_process: bool) -> Measured:
    measured = Measured()
    deadline = time.monotonic() + settings.patience_s

    def take(what: Callable[[Plan], Run], library: str, size: str, into: list[Run], number: int) -> None:
        progress(f"run {number + 1} of {settings.runs}: {library} {size} {what.__name__}")

        def once(directory: str) -> Run:
            return what(_plan(settings, library, SIZES[size], directory))

        try:
            into.append(undisturbed(once, deadline))
        except MeasurementFailed as error:
            measured.failures.append(f"{library} {size}: {error}")

    for number in range(settings.runs):
        for size in settings.sizes:
            if one_process:
                take(measure_one_process, OURS, size, measured.one_process.setdefault(size, []), number)
            if pairs:
                turn = number % len(settings.libraries)
                for library in settings.libraries[turn:] + settings.libraries[:turn]:
                    take(measure_pair, library, size, measured.pairs.setdefault((library, size), []), number)
    progress("")
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


def undisturbed(what: Callable[[str], Run], deadline: float) -> Run:
    """One measurement, in a directory of its own; with patience, one that nothing else disturbed."""
    for _ in range(_ATTEMPTS):
        patient = wait_until_quiet(QUIET_CORES, deadline)
        usage = Usage()
        with usage.watched(), private_directory() as directory:
            run = what(directory)
        run["others_cores"] = usage.others
        if usage.others < QUIET_CORES or not patient:
            break
    return run


def progress(text: str) -> None:
    """One line on stderr that replaces itself; nothing when nobody looks."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
