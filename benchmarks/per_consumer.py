"""Cost of per-consumer streams, and of progress that is not used, to a producer.

The cost of a per-consumer stream is the time that it adds to an offer. Growth is the cost with the largest
number of streams divided by the cost with the middle number: 1 is linear.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tensorpool import MediaDriver

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .driver_growth import LINEAR
from .per_consumer_process import PerConsumerPlan, media_driver_dir
from .processes import ChildProcess, MeasurementFailed
from .targets import Target

FULL, QUICK = (0, 1, 10, 100), (0, 1, 4)
_ROUNDS, _QUICK_ROUNDS = 100, 5
_TIMEOUT_S = 60.0
Rows = list[list[str]]
STREAMS_HEAD = ["per-consumer streams", "offer µs", "each ns", "÷ one offer"]
PROGRESS_HEAD = ["frames without progress", "not requested µs", "requested µs", "ratio"]


@dataclass(slots=True)
class PerConsumerCosts:
    """All runs of both measurements."""

    counts: tuple[int, ...] = FULL
    streams: list[Run] = field(default_factory=list)
    """Nanoseconds of an offer, by the number of per-consumer streams."""
    progress: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in (*self.streams, *self.progress)), default=None)

    def offer_ns(self, count: int) -> float | None:
        """Nanoseconds of an offer with so many per-consumer streams."""
        return _median(self.streams, lambda run: run["offer_ns"][str(count)])

    def each_ns(self, count: int) -> float | None:
        """Nanoseconds that each per-consumer stream adds to an offer."""
        return None if count == 0 else _median(self.streams, lambda run: _cost_each(run, count))

    def targets(self) -> list[Target]:
        """Bounds on the cost of a stream, on its growth, and on unused progress."""
        middle, largest = self.counts[-2:]
        targets = [
            Target(
                f"{largest} per-consumer streams, each",
                "one offer",
                1.0,
                True,
                _median(self.streams, lambda run: _cost_each(run, largest) / run["offer_ns"]["0"]),
            ),
            Target(
                f"cost of a per-consumer stream, {middle} → {largest}",
                f"that of {middle}",
                LINEAR,
                True,
                _median(
                    self.streams, lambda run: _cost_each(run, largest) / max(_cost_each(run, middle), 1e-9)
                ),
            ),
        ]
        for what in ("offer", "claim"):
            targets.append(
                Target(
                    f"{what} without progress where a consumer requests it",
                    "where none does",
                    LINEAR,
                    True,
                    self._progress_ratio(f"{what}_requested_ns", f"{what}_plain_ns"),
                )
            )
        return targets

    def _progress_ratio(self, above: str, below: str) -> float | None:
        return _median(self.progress, lambda run: run[above] / run[below])

    def _progress_ns(self, key: str) -> float | None:
        return _median(self.progress, lambda run: run[key])

    def stream_rows(self) -> Rows:
        """Rows of the table of per-consumer streams."""
        if not self.streams:
            return []
        rows = []
        for count in self.counts:
            each, offer, shared = self.each_ns(count), self.offer_ns(count), self.offer_ns(0)
            share = each / shared if each is not None and shared else None
            rows.append([str(count), _text(offer, ".2f", 1e-3), _text(each, ".0f"), _text(share, ".2f")])
        return rows

    def progress_rows(self) -> Rows:
        """Rows of the table of unused progress."""
        if not self.progress:
            return []
        rows = []
        for name, plain, other in (
            ("offer", "offer_plain_ns", "offer_requested_ns"),
            ("claim", "claim_plain_ns", "claim_requested_ns"),
            ("claim(progress=…), no listener", "claim_plain_ns", "claim_no_listener_ns"),
        ):
            figures = (_text(self._progress_ns(key), ".2f", 1e-3) for key in (plain, other))
            rows.append([name, *figures, _text(self._progress_ratio(other, plain), ".2f")])
        return rows

    def notes(self) -> list[str]:
        """How the figures were measured."""
        notes = []
        if self.streams:
            notes.append(
                "Per-consumer streams: bursts of offers of 64 B, with readers in another process; the time "
                "that each per-consumer descriptor stream adds to an offer."
            )
        if self.progress:
            notes.append(
                "Progress off: publish and consume 64 B in one process, on a stream without a request for "
                "progress and on one whose consumer requests it; `no listener` is a claim with progress on "
                "the first."
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """All runs as JSON."""
        return {"per_consumer_streams": self.streams, "progress_off": self.progress}


def _cost_each(run: Run, count: int) -> float:
    offers: dict[str, float] = run["offer_ns"]
    return (offers[str(count)] - offers["0"]) / count


def _median(runs: list[Run], of: Callable[[Run], float]) -> float | None:
    return statistics.median(of(run) for run in runs) if runs else None


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)


def measure(settings: Settings, *, streams: bool, progress: bool) -> PerConsumerCosts:
    """Measures per-consumer streams, unused progress, or both."""
    costs = PerConsumerCosts(QUICK if settings.is_quick else FULL)
    deadline = time.monotonic() + settings.patience_s
    rounds = _QUICK_ROUNDS if settings.is_quick else _ROUNDS
    measurements = (
        ("per-consumer streams", _measure_streams, costs.streams),
        ("progress off", _measure_unused_progress, costs.progress),
    )
    for number in range(settings.runs):
        for (name, work, runs), is_wanted in zip(measurements, (streams, progress), strict=True):
            if not is_wanted:
                continue
            show_progress(f"run {number + 1} of {settings.runs}: {name}")
            try:
                case = lambda d, w=work: w(PerConsumerPlan(d, costs.counts, rounds))  # noqa: E731
                runs.append(measure_undisturbed(case, deadline))
            except MeasurementFailed as error:
                costs.failures.append(f"{name}: {error}")
    show_progress("")
    return costs


def _measure_streams(plan: PerConsumerPlan) -> Run:
    with ExitStack() as stack:
        stack.enter_context(MediaDriver(media_driver_dir(plan.directory)))

        def child(role: str) -> ChildProcess:
            process = ChildProcess(
                "benchmarks.per_consumer_process", role, plan.to_json(), state=plan.directory
            )
            stack.callback(process.end)
            process.expect_ready()
            return process

        producer, readers = child("producer"), child("readers")
        offers: dict[str, float] = {}
        for count in plan.counts:
            readers.request_status()
            status = producer.request_status()
            if status["per_consumer_lost"] or status["per_consumer_published"] != count * status["published"]:
                raise MeasurementFailed(
                    f"{count} per-consumer streams, but not every one had every frame: {status}"
                )
            offers[str(count)] = status["offer_ns"]
    return {"offer_ns": offers}


def _measure_unused_progress(plan: PerConsumerPlan) -> Run:
    with ExitStack() as stack:
        stack.enter_context(MediaDriver(media_driver_dir(plan.directory)))
        child = ChildProcess(
            "benchmarks.per_consumer_process", "progress", plan.to_json(), state=plan.directory
        )
        stack.callback(child.end)
        return child.result(_TIMEOUT_S)
