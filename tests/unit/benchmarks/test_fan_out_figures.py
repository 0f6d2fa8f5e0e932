"""Figures and verdicts of the fan-out benchmark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fan_out import FULL, FanOutRuns
from benchmarks.fan_out_process import FanOutPlan


def measured(cost_ns: Callable[[int], float]) -> FanOutRuns:
    """A fast run and one three times as slow: ratios are within a run."""
    runs = FanOutRuns()
    for speed in (1, 3):
        steps = {
            str(count): {
                "offer_cpu_ns": speed * cost_ns(count),
                "offer_ns": 2 * speed * cost_ns(count),
                "got_median": 1.0,
                "got_least": 1 - count / 128,
            }
            for count in FULL
        }
        runs.runs.setdefault("64 B", []).append({"steps": steps, "others_cores": 0.01 * speed})
    return runs


def test_equal_cost_with_every_number_of_consumers_reaches_the_target() -> None:
    (target,) = measured(lambda count: 1000).targets()
    assert (target.ratio, target.verdict) == (1.0, "reached")


def test_cost_that_grows_with_the_consumers_misses_the_target() -> None:
    (target,) = measured(lambda count: 1000 + 2 * count).targets()
    assert target.ratio == pytest.approx(1128 / 1002)
    assert target.verdict == "missed"


def test_rows_show_what_the_consumers_got() -> None:
    runs = measured(lambda count: 1000)
    assert [row[1] for row in runs.rows()] == ["1", "2", "4", "8", "16", "64"]
    assert runs.rows()[-1] == ["64 B", "64", "2.00", "1.00", "4.00", "100.0%", "50.0%"]
    assert runs.others() == pytest.approx(0.03)


@pytest.mark.parametrize("count", FULL)
def test_every_consumer_belongs_to_one_process(count: int) -> None:
    plans = [FanOutPlan("", 64, FULL, 1, 4, share) for share in range(4)]
    assert sum(plan.consumers(count) for plan in plans) == count


def test_targets_without_runs_are_absent() -> None:
    empty = FanOutRuns()
    assert (empty.targets(), empty.rows(), empty.others()) == ([], [], None)
