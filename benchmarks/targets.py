"""Target ratios of the benchmarks and their verdicts. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .dataplane import OURS, DataPlaneRuns, Run

PEER = "iceoryx2"
# TensorPool without a driver, so without leases.
STANDALONE = "standalone"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of two measured values."""

    what: str
    against: str
    bound: float
    at_most: bool
    ratio: float | None
    """Median over the runs of the ratio within each run; None if one of the two was not measured."""

    @property
    def verdict(self) -> str:
        """`reached`, `missed` or `not measured`."""
        if self.ratio is None:
            return "not measured"
        reached = self.ratio <= self.bound if self.at_most else self.ratio >= self.bound
        return "reached" if reached else "missed"

    @property
    def goal(self) -> str:
        """The bound as text."""
        return f"{'≤' if self.at_most else '≥'} {self.bound} x {self.against}"


def targets(measured: DataPlaneRuns) -> list[Target]:
    """Targets of the data plane."""

    def pair(size: str, key: str, other: str = PEER) -> float | None:
        ours, theirs = measured.pairs.get((OURS, size), []), measured.pairs.get((other, size), [])
        return _ratio(ours, key, theirs, key)

    def bare(size: str) -> float | None:
        runs = measured.pairs.get((OURS, size), [])
        return _ratio(runs, "delivered_hz", runs, "bare_copy_hz")

    single = measured.one_process.get("640 KiB", [])
    together = _ratio(single, "publish_consume_us", single, "bare_copy_us")
    result = [Target("640 KiB publish + consume in one process", "the bare copy", 1.2, True, together)]
    for size, bound in (("64 B", 2.5), ("64 KiB", 2.5), ("640 KiB", 1.2)):
        result.append(Target(f"delivered rate, {size}", PEER, bound, False, pair(size, "delivered_hz")))
    result.append(Target("delivered rate, 4 MiB", "the bare copy, same ring", 0.9, False, bare("4 MiB")))
    for size in ("64 B", "64 KiB"):
        result.append(Target(f"p50 latency, {size}", PEER, 0.6, True, pair(size, "p50_us")))
    for size in ("64 B", "64 KiB"):
        result.append(Target(f"p99 latency, {size}", PEER, 1.0, True, pair(size, "p99_us")))
        result.append(Target(f"p99.9 latency, {size}", PEER, 2.0, True, pair(size, "p999_us")))
    for size in ("64 B", "64 KiB", "640 KiB"):
        with_leases = pair(size, "delivered_hz", STANDALONE)
        result.append(
            Target(f"delivered rate with leases, {size}", "without a driver", 0.95, False, with_leases)
        )
    return result


def _ratio(above: Sequence[Run], key: str, below: Sequence[Run], below_key: str) -> float | None:
    ratios = [
        over[key] / under[below_key]
        for over, under in zip(above, below, strict=False)
        if over.get(key) and under.get(below_key)
    ]
    return statistics.median(ratios) if ratios else None
