"""Time without frames that a restart of the driver causes to consumers.

A producer, two consumers and the driver run in their own processes. The driver is ended, in order or by kill
-9, and started again at once; all clients reattach. Default settings.
"""

from __future__ import annotations

import signal
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .driver_client import GAP_NS, DriverClientPlan
from .driver_process import DriverProcess, media_driver
from .processes import ChildProcess, MeasurementFailed
from .targets import Target

ANNOUNCE_PERIOD_S = 1.0
"""The default; also the default keepalive period."""
LOADS: dict[str, int | None] = {"100 Hz": 100, "full speed": None}
END_SIGNALS = {"in order": signal.SIGTERM, "kill -9": signal.SIGKILL}
_CONSUMERS = 2
_RECOVERY_TIMEOUT_S = 30.0
# Frames have to arrive without a gap for this long before a restart counts as over.
_STEADY_S = 1.0
_POLL_S = 0.02


@dataclass(slots=True)
class Restarts:
    """All runs, by load and by how the driver ended."""

    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def without_ms(self, load: str, end: str) -> list[float]:
        """Milliseconds without frames of each consumer in each round."""
        return [ms for restart in self.runs[load, end]["rounds"] for ms in restart["without_ms"]]

    def down_ms(self, load: str, end: str) -> float:
        """Median of the milliseconds until the driver is ready again."""
        return float(statistics.median(restart["down_ms"] for restart in self.runs[load, end]["rounds"]))

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs.values()), default=None)

    def targets(self) -> list[Target]:
        """Empty: the durations are reported without a bound."""
        return []


def measure(settings: Settings) -> Restarts:
    """Measures all loads and ends."""
    restarts = Restarts()
    deadline = time.monotonic() + settings.patience_s
    loads = dict(list(LOADS.items())[:1]) if settings.is_quick else LOADS
    for load, pace_hz in loads.items():
        for end, number in END_SIGNALS.items():
            show_progress(f"the driver restarts, {end}, at {load}")
            try:
                case = partial(measure_restarts, pace_hz=pace_hz, end_signal=number, rounds=settings.runs)
                restarts.runs[load, end] = measure_undisturbed(case, deadline)
            except MeasurementFailed as error:
                restarts.failures.append(f"driver restart, {end}, {load}: {error}")
    show_progress("")
    return restarts


class ConsumerGaps:
    """Received frames of a consumer process, and the gaps between them."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self.epoch = self.received = 0
        self.gaps: list[tuple[int, int]] = []

    def update(self) -> None:
        """Gets the status of the process."""
        status = self._child.request_status()
        self.epoch, self.received = status["epoch"], status["received"]
        self.gaps += [(since, to) for since, to in status["gaps"]]

    @property
    def last_gap_ns(self) -> int:
        """End of the last long gap."""
        return max((to for since, to in self.gaps if to - since >= GAP_NS), default=0)

    def without_ns(self) -> int:
        """Sum of the long gaps; the longest gap if all are short."""
        lengths = [to - since for since, to in self.gaps]
        return sum(length for length in lengths if length >= GAP_NS) or max(lengths, default=0)


def measure_restarts(directory: str, *, pace_hz: int | None, end_signal: signal.Signals, rounds: int) -> Run:
    """Restarts the driver of one system several times."""
    plan = DriverClientPlan(directory, pace_hz).to_json()
    with ExitStack() as stack:
        stack.enter_context(media_driver(directory))
        driver = stack.enter_context(DriverProcess(directory))
        driver.wait_ready()

        def child(role: str) -> ChildProcess:
            process = ChildProcess("benchmarks.driver_client", role, plan, state=directory)
            stack.callback(process.end)
            process.expect_ready()
            return process

        child("producer")
        consumers = [ConsumerGaps(child("consumer")) for _ in range(_CONSUMERS)]
        _wait_for_frames(consumers, after_epoch=0)
        restarts = []
        for number in range(rounds):
            # Each round at another moment between two announces and keepalives.
            time.sleep((number + 0.5) / rounds * ANNOUNCE_PERIOD_S)
            restarts.append(_restart(driver, end_signal, consumers))
    return {"rounds": restarts}


def _restart(
    driver: DriverProcess, end_signal: signal.Signals, consumers: list[ConsumerGaps]
) -> dict[str, Any]:
    for consumer in consumers:
        consumer.update()
        consumer.gaps.clear()
    epoch = max(consumer.epoch for consumer in consumers)
    at_ns = time.monotonic_ns()
    driver.restart(end_signal)
    down_ns = driver.wait_ready() - at_ns
    _wait_for_frames(consumers, after_epoch=epoch)
    return {
        "down_ms": down_ns / 1e6,
        "without_ms": [consumer.without_ns() / 1e6 for consumer in consumers],
        "gaps_ms": [
            [((since - at_ns) / 1e6, (to - at_ns) / 1e6) for since, to in consumer.gaps]
            for consumer in consumers
        ],
    }


def _wait_for_frames(consumers: list[ConsumerGaps], *, after_epoch: int) -> None:
    """Waits until all consumers receive frames of a later epoch without a gap for a while."""
    deadline = time.monotonic() + _RECOVERY_TIMEOUT_S
    steady_since: int | None = None
    while True:
        for consumer in consumers:
            consumer.update()
        now = time.monotonic_ns()
        if any(consumer.epoch <= after_epoch for consumer in consumers):
            steady_since = None
        else:
            steady_since = max(steady_since or now, *(consumer.last_gap_ns for consumer in consumers))
            if now - steady_since > _STEADY_S * 1e9:
                return
        if time.monotonic() > deadline:
            raise MeasurementFailed(
                f"consumers received no frames within {_RECOVERY_TIMEOUT_S:.0f} s of the restart"
            )
        time.sleep(_POLL_S)
