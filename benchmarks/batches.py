"""Small frames in batches: `offer_many` and `take`, beside a loop of single frames and beside iceoryx2.

All three are measured one after the other in each run, with frames of 64 B and rings of one depth.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from .batches_process import BLOCK
from .dataplane import OURS, Run, Settings, measure_undisturbed, show_progress
from .library import Plan, load
from .processes import ChildProcess, MeasurementFailed, measure_pair
from .targets import PEER, Target

SIZE_BYTES, NSLOTS = 64, 4096
BATCHES = "batches"
HEAD = ["64 B frames", "sent /s", "delivered /s", "loss", "÷ single frames", f"÷ {PEER}"]
_START_DELAY_NS = 100_000_000
# The pairs of `endpoint_process` have a phase of paced frames, which is not used here.
_LATENCY_S = 0.05
Rows = list[list[str]]


@dataclass(slots=True)
class BatchRuns:
    """All runs, by what was measured."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def _ratio(self, name: str, to: str) -> float | None:
        pairs = list(zip(self.runs.get(name, []), self.runs.get(to, []), strict=False))
        # A reader that other programs kept from running received nothing in a short run.
        ratios = [a["delivered_hz"] / b["delivered_hz"] for a, b in pairs if b["delivered_hz"]]
        return statistics.median(ratios) if ratios else None

    def targets(self) -> list[Target]:
        """Bounds on the delivered rate of batches."""
        what = "64 B frames delivered by offer_many and take"
        targets = [Target(what, "single frames", 4.0, False, self._ratio(BATCHES, OURS))]
        if PEER in self.runs:
            targets.append(Target(what, PEER, 10.0, False, self._ratio(BATCHES, PEER)))
        return targets

    def rows(self) -> Rows:
        """Rows of the table."""
        rows = []
        for name, runs in self.runs.items():
            medians = [
                statistics.median(run[key] for run in runs) for key in ("sent_hz", "delivered_hz", "loss")
            ]
            ratios = [self._ratio(name, to) for to in (OURS, PEER)]
            label = "tensorpool, offer_many and take" if name == BATCHES else name
            rows.append(
                [
                    label,
                    f"{medians[0]:,.0f}",
                    f"{medians[1]:,.0f}",
                    f"{medians[2]:.1%}",
                    *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
                ]
            )
        return rows

    def note(self) -> str:
        """How the figures were measured."""
        return (
            f"Batches: two processes, frames of 64 B at full speed, rings of {NSLOTS} slots; offer_many() of "
            f"{BLOCK} frames, poll_batch() into one array, every number checked; the others as in the table "
            "of two processes."
        )


def measure(settings: Settings) -> BatchRuns:
    """Measures batches, single frames, and the peer if it was asked for."""
    result = BatchRuns()
    names = [BATCHES, OURS, *(name for name in settings.libraries if name == PEER)]
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        for name in names:
            show_progress(f"run {number + 1} of {settings.runs}: {name}, 64 B")
            library = OURS if name == BATCHES else name

            def measure_once(directory: str, name: str = name, library: str = library) -> Run:
                plan = Plan(
                    library=library,
                    size_bytes=SIZE_BYTES,
                    nslots=NSLOTS,
                    directory=directory,
                    warmup_s=settings.warmup_s,
                    latency_s=_LATENCY_S,
                    rate_s=settings.rate_s,
                )
                return _measure_batches(plan) if name == BATCHES else measure_pair(plan)

            try:
                run = measure_undisturbed(measure_once, deadline)
            except MeasurementFailed as error:
                result.failures.append(f"{name}: {error}")
                continue
            result.runs.setdefault(name, []).append(run)
            if run["torn"] or not run.get("balanced", True):
                result.failures.append(f"{name}: {run['torn']} torn frames, or a ledger that does not add up")
    show_progress("")
    return result


def _measure_batches(plan: Plan) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(load(plan.library).beside(plan))

        def child(role: str) -> ChildProcess:
            process = ChildProcess("benchmarks.batches_process", role, plan.to_json(), state=plan.directory)
            stack.callback(process.end)
            return process

        producer, consumer = child("producer"), child("consumer")
        producer.expect_ready()
        consumer.expect_ready()
        at_ns = time.monotonic_ns() + _START_DELAY_NS
        consumer.start(at_ns)
        producer.start(at_ns)
        duration_s = plan.warmup_s + plan.rate_s
        return producer.result(duration_s) | consumer.result(duration_s)
