"""What the driver's benchmarks make of what they measure."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.driver_growth import FULL, ONE, Crowd, Growth
from benchmarks.driver_report import growth_rows, restart_rows
from benchmarks.driver_restart import ENDS, Consumer, Restarts

MS = 1_000_000
MIB = 1 << 20


def grown(cost: Callable[[int], float], each_us: Callable[[int], float] = lambda n: 100.0) -> Growth:
    """A driver of 40 MiB and a hundredth of a core, and what `n` streams, or leases, cost beyond that."""
    growth = Growth()
    for crowd in growth.crowds:
        count, _ = crowd.many if crowd != ONE else (1, "")
        growth.runs[crowd] = [
            {
                "attach_us": each_us(count) * speed,
                "attach_p99_us": None if crowd == ONE else 5 * each_us(count),
                "at_once_us": each_us(count) * speed,
                "resident_bytes": 40 * MIB + cost(count),
                "busy_cores": 0.01 + cost(count) / 1e9,
                "descriptors": 5 + 2 * crowd.streams,
                "others_cores": 0.02 * speed,
            }
            # A slow run and a quick one: factors are of one run.
            for speed in (1, 3)
        ]
    return growth


def test_what_grows_as_the_crowd_does_is_linear() -> None:
    targets = grown(lambda n: 16_384 * n).targets()
    assert len(targets) == 8
    # Leases start from two, streams from one, so that the lines through both are not quite the same.
    assert [target.ratio for target in targets] == pytest.approx([1.0] * 8, rel=0.02)
    assert {target.verdict for target in targets} == {"reached"}


def test_a_dear_start_hides_no_growth() -> None:
    """Memory that all drivers have is not held against the streams, nor for them."""
    linear = grown(lambda n: 10 * MIB + 16_384 * n).targets()
    assert linear[2].ratio == pytest.approx(1.0)


def test_what_grows_faster_is_missed() -> None:
    targets = grown(lambda n: 50.0 * n * n, each_us=lambda n: 10.0 * n).targets()
    assert {target.verdict for target in targets} == {"missed"}
    assert all(target.ratio == pytest.approx(10, rel=0.1) for target in targets)


def test_what_was_not_measured_is_not_judged() -> None:
    growth = grown(lambda n: 16_384 * n)
    del growth.runs[FULL[1].largest]
    verdicts = [target.verdict for target in growth.targets()]
    assert verdicts == ["reached"] * 4 + ["not measured"] * 4
    assert growth.others() == pytest.approx(0.06)
    assert Growth().others() is None


def test_a_row_tells_the_crowd_and_what_each_costs() -> None:
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


class Told:
    """Stands for a child: answers what it is told to."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = iter(answers)

    def ask(self) -> dict[str, Any]:
        return next(self._answers)


def consumer(*gaps_ms: tuple[int, int]) -> Consumer:
    gaps = [[since * MS, to * MS] for since, to in gaps_ms]
    answers = ({"epoch": 7, "received": 9, "gaps": [gap]} for gap in gaps)
    made = Consumer(Told(*answers))  # type: ignore[arg-type]
    for _ in gaps:
        made.look()
    return made


@pytest.mark.parametrize(
    ("gaps_ms", "without_ms"),
    [
        ([], 0),
        ([(0, 20)], 20),
        ([(0, 20), (500, 545)], 45),
        ([(0, 20), (500, 550), (900, 1100)], 250),
    ],
)
def test_long_gaps_are_added_up_and_of_short_ones_the_longest_counts(
    gaps_ms: list[tuple[int, int]], without_ms: int
) -> None:
    assert consumer(*gaps_ms).without_ns() == without_ms * MS


def test_only_a_long_gap_ends_the_calm() -> None:
    assert consumer((10, 90), (100, 120)).last_gap_ns == 90 * MS


def test_restarts_are_told_in_periods_too() -> None:
    rounds = [
        {"away_ms": 400.0, "without_ms": [900.0, 1100.0]},
        {"away_ms": 600.0, "without_ms": [1000.0, 1500.0]},
        {"away_ms": 500.0, "without_ms": [950.0, 1000.0]},
    ]
    restarts = Restarts({("100 Hz", "in order"): {"rounds": rounds, "others_cores": 0.5}})
    assert restart_rows(restarts) == [
        ["100 Hz", "in order", "500", "1,000", "1,500", "1.00", "1.50"],
    ]
    assert restarts.others() == 0.5


def test_the_driver_ends_in_order_and_by_force() -> None:
    assert set(ENDS.values()) == {signal.SIGTERM, signal.SIGKILL}
    assert Crowd(1000, 1).leases == 2000
