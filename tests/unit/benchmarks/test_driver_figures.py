"""Figures and verdicts of the driver benchmarks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.driver_growth import FULL, ONE, Growth, LoadSize
from benchmarks.driver_report import growth_rows, restart_rows
from benchmarks.driver_restart import END_SIGNALS, ConsumerGaps, Restarts

MS = 1_000_000
MIB = 1 << 20


def grown(cost: Callable[[int], float], each_us: Callable[[int], float] = lambda n: 100.0) -> Growth:
    """Runs of a driver with 40 MiB and a hundredth of a core, plus the cost of `n` streams or leases."""
    growth = Growth()
    for size in growth.sizes:
        count, _ = size.varied if size != ONE else (1, "")
        growth.runs[size] = [
            {
                "attach_us": each_us(count) * speed,
                "attach_p99_us": None if size == ONE else 5 * each_us(count),
                "at_once_us": each_us(count) * speed,
                "resident_bytes": 40 * MIB + cost(count),
                "busy_cores": 0.01 + cost(count) / 1e9,
                "descriptors": 5 + 2 * size.streams,
                "others_cores": 0.02 * speed,
            }
            # A fast run and a slow one: factors are within a run.
            for speed in (1, 3)
        ]
    return growth


def test_costs_that_grow_with_the_load_are_linear() -> None:
    targets = grown(lambda n: 16_384 * n).targets()
    assert len(targets) == 8
    # Leases start at two and streams at one, so their factors differ slightly.
    assert [target.ratio for target in targets] == pytest.approx([1.0] * 8, rel=0.02)
    assert {target.verdict for target in targets} == {"reached"}


def test_base_cost_does_not_affect_growth() -> None:
    """Memory of a driver without load counts neither for nor against its streams."""
    linear = grown(lambda n: 10 * MIB + 16_384 * n).targets()
    assert linear[2].ratio == pytest.approx(1.0)


def test_costs_that_grow_faster_miss_the_target() -> None:
    targets = grown(lambda n: 50.0 * n * n, each_us=lambda n: 10.0 * n).targets()
    assert {target.verdict for target in targets} == {"missed"}
    assert all(target.ratio == pytest.approx(10, rel=0.1) for target in targets)


def test_targets_without_runs_are_not_measured() -> None:
    growth = grown(lambda n: 16_384 * n)
    del growth.runs[FULL[1].largest]
    verdicts = [target.verdict for target in growth.targets()]
    assert verdicts == ["reached"] * 4 + ["not measured"] * 4
    assert growth.others() == pytest.approx(0.06)
    assert Growth().others() is None


def test_rows_show_the_load_and_the_cost_of_each() -> None:
    rows = growth_rows(grown(lambda n: 16_384 * n))
    assert [row[0] for row in rows] == [
        "1 stream, 2 leases",
        "100 streams, 200 leases",
        "1,000 streams, 2,000 leases",
        "1 stream, 101 leases",
        "1 stream, 1,001 leases",
    ]
    thousand = rows[2]
    assert thousand[1:] == ["200", "500", "200", "55.6", "16.0", "0.026", "16", "2,005"]
    assert rows[0][5] == rows[0][7] == "-"


class FakeChildProcess:
    """A child process with prepared status reports."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self._reports = iter(reports)

    def request_status(self) -> dict[str, Any]:
        return next(self._reports)


def consumer_gaps(*gaps_ms: tuple[int, int]) -> ConsumerGaps:
    gaps = [[since * MS, to * MS] for since, to in gaps_ms]
    reports = ({"epoch": 7, "received": 9, "gaps": [gap]} for gap in gaps)
    consumer = ConsumerGaps(FakeChildProcess(*reports))  # type: ignore[arg-type]
    for _ in gaps:
        consumer.update()
    return consumer


@pytest.mark.parametrize(
    ("gaps_ms", "without_ms"),
    [
        ([], 0),
        ([(0, 20)], 20),
        ([(0, 20), (500, 545)], 45),
        ([(0, 20), (500, 550), (900, 1100)], 250),
    ],
)
def test_long_gaps_are_summed_and_the_longest_short_gap_counts(
    gaps_ms: list[tuple[int, int]], without_ms: int
) -> None:
    assert consumer_gaps(*gaps_ms).without_ns() == without_ms * MS


def test_last_gap_ignores_short_gaps() -> None:
    assert consumer_gaps((10, 90), (100, 120)).last_gap_ns == 90 * MS


def test_restart_rows_show_announce_periods() -> None:
    rounds = [
        {"down_ms": 400.0, "without_ms": [900.0, 1100.0]},
        {"down_ms": 600.0, "without_ms": [1000.0, 1500.0]},
        {"down_ms": 500.0, "without_ms": [950.0, 1000.0]},
    ]
    restarts = Restarts({("100 Hz", "in order"): {"rounds": rounds, "others_cores": 0.5}})
    assert restart_rows(restarts) == [
        ["100 Hz", "in order", "500", "1,000", "1,500", "1.00", "1.50"],
    ]
    assert restarts.others() == 0.5


def test_restarts_end_the_driver_by_sigterm_and_sigkill() -> None:
    assert set(END_SIGNALS.values()) == {signal.SIGTERM, signal.SIGKILL}
    assert LoadSize(1000, 1).leases == 2000
