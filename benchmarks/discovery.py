"""Cost of a registry by its number of streams: response time, response bytes, memory, processor time.

A registry in its own process receives the announces of twenty drivers, which another process sends. Growth is
the cost of each stream with many streams divided by that with few: 1 is linear.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .discovery_load import FIRST_ANNOUNCE_STREAM, FIRST_METADATA_STREAM, DiscoveryLoadPlan
from .driver_process import DriverProcess, media_driver
from .processes import ChildProcess, MeasurementFailed
from .targets import Target

LINEAR = 1.1
"""Up to this a factor counts as linear: two equal runs differ by as much."""
HEAD = ["a registry with", "by name p50 µs", "p99 µs", "all p50 µs", "all KiB", "memory MiB", "cores"]
_TIMEOUT_S = 120.0
_FULL, _QUICK = (100, 1000), (10, 40)
_DRIVERS, _QUICK_DRIVERS = 20, 2
_REQUESTS, _QUICK_REQUESTS = 300, 10
_STEADY_S, _QUICK_STEADY_S = 3.0, 0.3


@dataclass(slots=True)
class RegistryCosts:
    """All runs, by number of streams."""

    sizes: tuple[int, ...] = _FULL
    drivers: int = _DRIVERS
    runs: dict[int, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, size: int, key: str) -> float | None:
        """Median of a value over the runs."""
        known = [run[key] for run in self.runs.get(size, ())]
        return statistics.median(known) if known else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def targets(self) -> list[Target]:
        """No cost grows faster than the streams, and a search by name takes as long among many as among
        few."""
        if not self.runs:
            return []
        few, many = self.sizes
        span = f"{few:,} → {many:,} streams"
        return [
            Target(
                f"response with all streams, {span}",
                "linear growth",
                LINEAR,
                True,
                self._factor("all_p50_us"),
            ),
            Target(
                f"bytes of that response, {span}", "linear growth", LINEAR, True, self._factor("all_bytes")
            ),
            Target(
                f"registry's processor time, {span}",
                "linear growth",
                LINEAR,
                True,
                self._factor("busy_cores"),
            ),
            Target(
                f"response by name, {span}",
                "that with few streams",
                1.5,
                True,
                self._factor("by_name_p50_us", each=False),
            ),
        ]

    def _factor(self, key: str, *, each: bool = True) -> float | None:
        """Median over the runs of the factor within each run."""
        few, many = self.sizes
        factors = [
            large[key] / small[key] / (many / few if each else 1)
            for small, large in zip(self.runs.get(few, []), self.runs.get(many, []), strict=False)
            if small[key] > 0
        ]
        return statistics.median(factors) if factors else None

    def rows(self) -> list[list[str]]:
        """Rows of the table."""

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

    def notes(self) -> list[str]:
        """How the figures were measured."""
        if not self.runs:
            return []
        return [
            "Registry: in its own process, on aeron:ipc; announces, names and tags once a second; time from "
            "the discovery request to the client's result, by name and tag and for all streams; bytes of "
            "the response with all streams; memory and processor time of the registry without requests."
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """All runs as JSON."""
        return [
            {
                "streams": size,
                "drivers": self.drivers,
                "runs": runs,
                "median": {key: self.median(size, key) for key in runs[0]},
            }
            for size, runs in self.runs.items()
        ]


def measure(settings: Settings) -> RegistryCosts:
    """Measures all sizes."""
    costs = RegistryCosts(_QUICK, _QUICK_DRIVERS) if settings.is_quick else RegistryCosts()
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        for size in costs.sizes:
            show_progress(f"run {number + 1} of {settings.runs}: a registry with {size:,} streams")
            try:
                run = measure_undisturbed(partial(_run, size, costs.drivers, settings.is_quick), deadline)
            except MeasurementFailed as error:
                costs.failures.append(f"discovery, {size} streams: {error}")
            else:
                costs.runs.setdefault(size, []).append(run)
    show_progress("")
    return costs


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
        plan = DiscoveryLoadPlan(
            directory=directory,
            registry_pid=registry.pid,
            drivers=drivers,
            streams=size,
            requests=_QUICK_REQUESTS if is_quick else _REQUESTS,
            steady_s=_QUICK_STEADY_S if is_quick else _STEADY_S,
        )
        child = ChildProcess("benchmarks.discovery_load", plan.to_json(), state=directory)
        try:
            run: Run = child.result(_TIMEOUT_S)
        finally:
            child.end()
    return run
