"""Two processes as a user would write them: no thread spins or is pinned, every option has its default.

Both sides wait for frames as their documentation shows: ours with `for frame in consumer`, iceoryx2 with a
listener that a notifier wakes for each frame. What such a program costs stands beside its latency: a program
that spins has a shorter one, and a core less. The other tables show both sides tuned.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from .dataplane import NSLOTS, OURS, SIZES, Run, Settings, measure_undisturbed, show_progress
from .library import Plan
from .processes import ChildProcess, MeasurementFailed
from .section import Rows
from .targets import PEER, Target

NAMES = ("64 B", "64 KiB", "640 KiB")
HEAD = ["size", "library", "p50 µs", "p99 µs", "p99.9 µs", "got", "sender cpu", "receiver cpu"]
_START_DELAY_NS = 100_000_000


@dataclass(slots=True)
class AsWrittenRuns:
    """All runs, by library and frame size."""

    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def targets(self) -> list[Target]:
        """None: these figures show what a default costs, and what an option would bring."""
        return []

    def rows(self) -> Rows:
        """Rows of the table."""
        rows = []
        for (library, size), runs in sorted(self.runs.items(), key=lambda item: NAMES.index(item[0][1])):

            def median(key: str, runs: list[Run] = runs) -> float:
                values: list[float] = [run[key] for run in runs]
                return statistics.median(values)

            rows.append(
                [
                    size,
                    library,
                    *(f"{median(key):.1f}" for key in ("p50_us", "p99_us", "p999_us")),
                    f"{median('got'):.1%}",
                    *(f"{median(key):.1%}" for key in ("sender_cores", "receiver_cores")),
                ]
            )
        return rows

    def to_json(self) -> list[Run]:
        """All runs as JSON."""
        return [
            {"library": library, "size": size, "runs": runs} for (library, size), runs in self.runs.items()
        ]

    def note(self) -> str:
        """How the figures were measured."""
        return (
            "As a user would write it: two processes with every option at its default, 1,000 frames a "
            "second; tensorpool with both drivers embedded by the process that came first, `offer(array)`, "
            f"and `for frame in consumer`; {PEER} with loan, copy, send and notify(), and a listener that "
            "waits; `cpu` is the processor time of all threads of the process, of one core. The other tables "
            "are tuned: pinned threads that spin, and drivers in processes of their own."
        )


def measure(settings: Settings) -> AsWrittenRuns:
    """Measures both libraries by turns."""
    result = AsWrittenRuns()
    libraries = [OURS, *(name for name in settings.libraries if name == PEER)]
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        for size in NAMES:
            for library in libraries[number % len(libraries) :] + libraries[: number % len(libraries)]:
                show_progress(f"run {number + 1} of {settings.runs}: {library} {size}, as written")

                def measure_once(directory: str, library: str = library, size: str = size) -> Run:
                    plan = Plan(
                        library=library,
                        size_bytes=SIZES[size],
                        nslots=NSLOTS[SIZES[size]],
                        directory=directory,
                        warmup_s=settings.warmup_s,
                        latency_s=settings.latency_s,
                        rate_s=0.0,
                    )
                    return _measure_pair(plan)

                try:
                    run = measure_undisturbed(measure_once, deadline)
                except MeasurementFailed as error:
                    result.failures.append(f"{library} {size}, as written: {error}")
                    continue
                result.runs.setdefault((library, size), []).append(run)
                if run["torn"]:
                    result.failures.append(f"{library} {size}, as written: {run['torn']} torn frames")
    show_progress("")
    return result


def _measure_pair(plan: Plan) -> Run:
    with ExitStack() as stack:

        def child(role: str) -> ChildProcess:
            process = ChildProcess(
                "benchmarks.as_written_process", role, plan.to_json(), state=plan.directory
            )
            stack.callback(process.end)
            return process

        sender, receiver = child("sender"), child("receiver")
        receiver.expect_ready()
        sender.expect_ready()
        sender.start(time.monotonic_ns() + _START_DELAY_NS)
        within_s = plan.warmup_s + plan.latency_s
        sent, received = sender.result(within_s), receiver.result(within_s)
    return sent | received | {"got": received["timed"] / sent["sent"]}
