"""What a registry costs as streams grow: time to an answer, its bytes, memory, processor time.

A registry in a process of its own hears twenty drivers, which another process plays. Growth is what each
stream costs in the larger fleet, by what it costs in the smaller one: 1 is linear.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .dataplane import Run, Settings, progress, undisturbed
from .discovery_fleet import FIRST_ANNOUNCE_STREAM, FIRST_METADATA_STREAM, FleetPlan
from .driver_process import DriverProcess, media_driver
from .pair import Child, MeasurementFailed
from .targets import Target

LINEAR = 1.1
"""Up to this a factor counts as linear: two runs of the same differ by as much."""
HEAD = ["a registry with", "by name p50 µs", "p99 µs", "all p50 µs", "all KiB", "memory MiB", "cores"]
_WITHIN_S = 120.0
_FULL, _QUICK = (100, 1000), (10, 40)
_DRIVERS, _QUICK_DRIVERS = 20, 2
_QUESTIONS, _QUICK_QUESTIONS = 300, 10
_STEADY_S, _QUICK_STEADY_S = 3.0, 0.3


@dataclass(slots=True)
class Fleets:
    """All runs, by number of streams."""

    sizes: tuple[int, ...] = _FULL
    drivers: int = _DRIVERS
    runs: dict[int, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, size: int, key: str) -> float | None:
        known = [run[key] for run in self.runs.get(size, ())]
        return statistics.median(known) if known else None

    def others(self) -> float | None:
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def targets(self) -> list[Target]:
        """Nothing grows faster than the fleet, and a name is found as fast among many as among few."""
        if not self.runs:
            return []
        few, many = self.sizes
        span = f"{few:,} → {many:,} streams"
        return [
            Target(f"all streams found, {span}", "linear growth", LINEAR, True, self._factor("all_p50_us")),
            Target(f"bytes of that, {span}", "linear growth", LINEAR, True, self._factor("all_bytes")),
            Target(
                f"registry's processor time, {span}",
                "linear growth",
                LINEAR,
                True,
                self._factor("busy_cores"),
            ),
            Target(
                f"found by name, {span}",
                "the smaller fleet's",
                1.5,
                True,
                self._factor("by_name_p50_us", each=False),
            ),
        ]

    def _factor(self, key: str, *, each: bool = True) -> float | None:
        """The median over the runs of the factor within one run."""
        few, many = self.sizes
        factors = [
            large[key] / small[key] / (many / few if each else 1)
            for small, large in zip(self.runs.get(few, []), self.runs.get(many, []), strict=False)
            if small[key] > 0
        ]
        return statistics.median(factors) if factors else None

    def rows(self) -> list[list[str]]:
        def text(size: int, key: str, form: str, factor: float = 1.0) -> str:
            value = self.median(size, key)
            return "-" if value is None else format(value * factor, form)

        return [
            [
                f"{size:,} streams of {self.drivers} drivers",
                text(size, "by_name_p50_us", ",.0f"),
                text(size, "by_name_p99_us", ",.0f"),
                text(size, "all_p50_us", ",.0f"),
                text(size, "all_bytes", ",.0f", 1 / 1024),
                text(size, "resident_bytes", ".1f", 1 / (1 << 20)),
                text(size, "busy_cores", ".3f"),
            ]
            for size in self.sizes
            if size in self.runs
        ]

    def words(self) -> list[str]:
        if not self.runs:
            return []
        return [
            "Registry: in a process of its own, on aeron:ipc; announces, names and tags once a second; from "
            "the question to the streams in the client's hands, by name and tag and of everything; bytes of "
            "the answer with everything; memory and processor time of the registry while it only listens."
        ]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "streams": size,
                "drivers": self.drivers,
                "runs": runs,
                "median": {key: self.median(size, key) for key in runs[0]},
            }
            for size, runs in self.runs.items()
        ]


def measure(settings: Settings) -> Fleets:
    found = Fleets(_QUICK, _QUICK_DRIVERS) if settings.is_quick else Fleets()
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        for size in found.sizes:
            progress(f"run {number + 1} of {settings.runs}: a registry with {size:,} streams")
            try:
                run = undisturbed(partial(_run, size, found.drivers, settings.is_quick), deadline)
            except MeasurementFailed as error:
                found.failures.append(f"discovery, {size} streams: {error}")
            else:
                found.runs.setdefault(size, []).append(run)
    progress("")
    return found


def _config(drivers: int) -> str:
    return "".join(
        f"""
        [[registry.drivers]]
        instance_id = "driver-{number}"
        announce_stream_id = {FIRST_ANNOUNCE_STREAM + number}
        metadata_stream_id = {FIRST_METADATA_STREAM + number}
        control_stream_id = {1000 + number}
        """
        for number in range(drivers)
    )


def _run(size: int, drivers: int, is_quick: bool, directory: str) -> Run:
    config = Path(directory, "registry.toml")
    config.write_text(_config(drivers), "utf-8")
    with media_driver(directory), DriverProcess(directory, role="registry", config=config) as registry:
        registry.wait_ready()
        plan = FleetPlan(
            directory=directory,
            registry_pid=registry.pid,
            drivers=drivers,
            streams=size,
            questions=_QUICK_QUESTIONS if is_quick else _QUESTIONS,
            steady_s=_QUICK_STEADY_S if is_quick else _STEADY_S,
        )
        child = Child("benchmarks.discovery_fleet", plan.to_json(), state=directory)
        try:
            found: Run = child.result(_WITHIN_S)
        finally:
            child.end()
    return found
