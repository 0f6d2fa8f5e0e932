"""How long consumers are without frames when the driver is restarted beneath them.

A producer and two consumers run on a driver in processes of their own. The driver is ended, in order or by
kill -9, and started again at once; all of them attach again by themselves. Default settings throughout.
"""

from __future__ import annotations

import signal
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .dataplane import Run, Settings, progress, undisturbed
from .driver_actor import GAP_NS, ActorPlan
from .driver_process import DriverProcess, media_driver
from .pair import Child, MeasurementFailed
from .targets import Target

ANNOUNCE_PERIOD_S = 1.0
"""The default. Keepalives come as often."""
LOADS: dict[str, int | None] = {"100 Hz": 100, "full speed": None}
ENDS = {"in order": signal.SIGTERM, "kill -9": signal.SIGKILL}
_CONSUMERS = 2
_RECOVERY_S = 30.0
# Frames have to flow for so long before a restart counts as over, and before the next one begins.
_CALM_S = 1.0
_LOOK_S = 0.02


@dataclass(slots=True)
class Restarts:
    """By load and by the way the driver ended."""

    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def without_ms(self, load: str, end: str) -> list[float]:
        """Of each consumer in each round."""
        return [ms for one in self.runs[load, end]["rounds"] for ms in one["without_ms"]]

    def away_ms(self, load: str, end: str) -> float:
        return float(statistics.median(one["away_ms"] for one in self.runs[load, end]["rounds"]))

    def others(self) -> float | None:
        return max((run["others_cores"] for run in self.runs.values()), default=None)

    def targets(self) -> list[Target]:
        """None were set: how long it takes is told."""
        return []


def measure(settings: Settings) -> Restarts:
    found = Restarts()
    deadline = time.monotonic() + settings.patience_s
    loads = dict(list(LOADS.items())[:1]) if settings.is_quick else LOADS
    for load, pace_hz in loads.items():
        for end, how in ENDS.items():
            progress(f"the driver restarts, {end}, at {load}")
            try:
                case = partial(restarts, pace_hz=pace_hz, how=how, rounds=settings.runs)
                found.runs[load, end] = undisturbed(case, deadline)
            except MeasurementFailed as error:
                found.failures.append(f"driver restart, {end}, {load}: {error}")
    progress("")
    return found


class Consumer:
    """What one of them has had, and when it had nothing."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.epoch = self.received = 0
        self.gaps: list[tuple[int, int]] = []

    def look(self) -> None:
        answer = self._child.ask()
        self.epoch, self.received = answer["epoch"], answer["received"]
        self.gaps += [(since, to) for since, to in answer["gaps"]]

    @property
    def last_gap_ns(self) -> int:
        return max((to for since, to in self.gaps if to - since >= GAP_NS), default=0)

    def without_ns(self) -> int:
        """All long gaps together, since there may be several; the longest one, if all are short."""
        lengths = [to - since for since, to in self.gaps]
        return sum(length for length in lengths if length >= GAP_NS) or max(lengths, default=0)


def restarts(directory: str, *, pace_hz: int | None, how: signal.Signals, rounds: int) -> Run:
    """One system, and its driver restarted again and again."""
    plan = ActorPlan(directory, pace_hz).to_json()
    with ExitStack() as stack:
        stack.enter_context(media_driver(directory))
        driver = stack.enter_context(DriverProcess(directory))
        driver.wait_ready()

        def child(role: str) -> Child:
            made = Child("benchmarks.driver_actor", role, plan, state=directory)
            stack.callback(made.end)
            made.expect_ready()
            return made

        child("producer")
        consumers = [Consumer(child("consumer")) for _ in range(_CONSUMERS)]
        _flow(consumers, after_epoch=0)
        taken = []
        for number in range(rounds):
            # Each time at another moment of the second between two announces and keepalives.
            time.sleep((number + 0.5) / rounds * ANNOUNCE_PERIOD_S)
            taken.append(_restart(driver, how, consumers))
    return {"rounds": taken}


def _restart(driver: DriverProcess, how: signal.Signals, consumers: list[Consumer]) -> dict[str, Any]:
    for consumer in consumers:
        consumer.look()
        consumer.gaps.clear()
    epoch = max(consumer.epoch for consumer in consumers)
    at_ns = time.monotonic_ns()
    driver.restart(how)
    away_ns = driver.wait_ready() - at_ns
    _flow(consumers, after_epoch=epoch)
    return {
        "away_ms": away_ns / 1e6,
        "without_ms": [consumer.without_ns() / 1e6 for consumer in consumers],
        "gaps_ms": [
            [((since - at_ns) / 1e6, (to - at_ns) / 1e6) for since, to in consumer.gaps]
            for consumer in consumers
        ],
    }


def _flow(consumers: list[Consumer], *, after_epoch: int) -> None:
    """Waits until all of them have had frames of a later epoch for a while, without a gap."""
    deadline = time.monotonic() + _RECOVERY_S
    calm_since: int | None = None
    while True:
        for consumer in consumers:
            consumer.look()
        now = time.monotonic_ns()
        if any(consumer.epoch <= after_epoch for consumer in consumers):
            calm_since = None
        else:
            calm_since = max(calm_since or now, *(consumer.last_gap_ns for consumer in consumers))
            if now - calm_since > _CALM_S * 1e9:
                return
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"frames did not come back within {_RECOVERY_S:.0f} s")
        time.sleep(_LOOK_S)
