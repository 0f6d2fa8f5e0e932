"""One stream with many consumers: what an offer costs its producer, and what each consumer gets.

The cost is the producer's own processor time: with few cores, elapsed time would show how long the readers
keep the producer from its core.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from . import driver_process
from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .fan_out_process import FanOutPlan
from .processes import ChildProcess, MeasurementFailed
from .section import Rows
from .targets import Target

FULL, QUICK = (1, 2, 4, 8, 16, 64), (1, 2, 8)
SIZES = {"64 B": 64, "64 KiB": 64 << 10}
HEAD = ["size", "consumers", "offer cpu µs", "÷ one consumer", "offer elapsed µs", "each got", "least got"]
BOUND = 1.1
_PROCESSES = 4
_ROUNDS, _QUICK_ROUNDS = 100, 10


@dataclass(slots=True)
class FanOutRuns:
    """All runs, by frame size. A run has one entry for each number of consumers."""

    counts: tuple[int, ...] = FULL
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def _median(self, size: str, count: int, key: str) -> float:
        values: list[float] = [run["steps"][str(count)][key] for run in self.runs[size]]
        return statistics.median(values)

    def ratio(self, size: str, count: int) -> float | None:
        """Cost of an offer with so many consumers, divided by that with one."""
        costs = [
            tuple(run["steps"][str(number)]["offer_cpu_ns"] for number in (count, self.counts[0]))
            for run in self.runs.get(size, [])
        ]
        return statistics.median(many / one for many, one in costs) if costs else None

    def targets(self) -> list[Target]:
        """Bounds on the growth of the producer's cost."""
        largest = self.counts[-1]
        return [
            Target(
                f"cost of an offer, {size}, {largest} consumers",
                "one consumer",
                BOUND,
                True,
                self.ratio(size, largest),
            )
            for size in self.runs
        ]

    def rows(self) -> Rows:
        """Rows of the table."""
        return [
            [
                size,
                str(count),
                f"{self._median(size, count, 'offer_cpu_ns') / 1e3:.2f}",
                f"{self.ratio(size, count):.2f}",
                f"{self._median(size, count, 'offer_ns') / 1e3:.2f}",
                f"{self._median(size, count, 'got_median'):.1%}",
                f"{self._median(size, count, 'got_least'):.1%}",
            ]
            for size, runs in self.runs.items()
            if runs
            for count in self.counts
        ]

    def note(self) -> str:
        """How the figures were measured."""
        return (
            f"Fan-out: consumers of one stream in {_PROCESSES} processes, on a driver; bursts of offers with "
            "pauses of 20 ms; every consumer reads every frame in place. An offer's cost is the processor "
            "time of the producer's thread; `each got` is the median of the consumers, `least got` the "
            "consumer that got least."
        )


def measure(settings: Settings) -> FanOutRuns:
    """Measures every number of consumers with small and with medium frames."""
    counts = QUICK if settings.is_quick else FULL
    result = FanOutRuns(counts)
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        for size, size_bytes in SIZES.items():
            show_progress(f"run {number + 1} of {settings.runs}: fan-out, {size}")

            def measure_once(directory: str, size_bytes: int = size_bytes) -> Run:
                rounds = _QUICK_ROUNDS if settings.is_quick else _ROUNDS
                return _measure_fan_out(FanOutPlan(directory, size_bytes, counts, rounds, _PROCESSES))

            try:
                run = measure_undisturbed(measure_once, deadline)
            except MeasurementFailed as error:
                result.failures.append(f"fan-out, {size}: {error}")
                continue
            result.runs.setdefault(size, []).append(run)
            if torn := sum(step["torn"] for step in run["steps"].values()):
                result.failures.append(f"fan-out, {size}: {torn} torn frames")
    show_progress("")
    return result


def _measure_fan_out(plan: FanOutPlan) -> Run:
    with ExitStack() as stack:
        stack.enter_context(driver_process.running(plan.directory))

        def child(role: str, share: int = 0) -> ChildProcess:
            text = dataclasses.replace(plan, share=share).to_json()
            process = ChildProcess("benchmarks.fan_out_process", role, text, state=plan.directory)
            stack.callback(process.end)
            process.expect_ready()
            return process

        producer = child("producer")
        readers = [child("readers", share) for share in range(plan.processes)]
        steps = {}
        for count in plan.counts:
            for process in readers:
                process.request_status()
            cost = producer.request_status()
            statuses = [process.request_status() for process in readers]
            received = [frames for status in statuses for frames in status["received"]]
            if len(received) != count or not cost["published"]:
                raise MeasurementFailed(
                    f"{len(received)} of {count} consumers answered, {cost['published']} frames published"
                )
            steps[str(count)] = cost | {
                "got_median": statistics.median(received) / cost["published"],
                "got_least": min(received) / cost["published"],
                "torn": sum(status["torn"] for status in statuses),
            }
    return {"steps": steps}
