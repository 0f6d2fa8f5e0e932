"""Figures and verdicts of the per-consumer benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.per_consumer import FULL, PerConsumerCosts


def measured(offer_ns: Callable[[int], float], requested: float = 1.0) -> PerConsumerCosts:
    """Costs of a fast run and of one three times as slow: ratios are within a run."""
    costs = PerConsumerCosts()
    for speed in (1, 3):
        offers = {str(count): speed * offer_ns(count) for count in FULL}
        costs.streams.append({"offer_ns": offers, "others_cores": 0.01 * speed})
        times: dict[str, float] = {
            "offer_plain_ns": 700,
            "claim_plain_ns": 1200,
            "claim_no_listener_ns": 1300,
        }
        times |= {"offer_requested_ns": 700 * requested, "claim_requested_ns": 1200 * requested}
        costs.progress.append({key: ns * speed for key, ns in times.items()} | {"others_cores": 0.02})
    return costs


def test_equal_cost_of_each_stream_is_linear() -> None:
    targets = measured(lambda count: 500 + 100 * count).targets()
    assert [target.ratio for target in targets] == pytest.approx([0.2, 1.0, 1.0, 1.0])
    assert {target.verdict for target in targets} == {"reached"}


def test_cost_that_grows_with_the_streams_misses_the_target() -> None:
    cost, growth, _, _ = measured(lambda count: 500 + 10 * count * count).targets()
    assert cost.ratio == pytest.approx(2.0)
    assert cost.verdict == "missed"
    assert growth.ratio == pytest.approx(10.0)
    assert growth.verdict == "missed"


def test_cost_of_unused_progress_misses_the_target() -> None:
    _, _, offer, claim = measured(lambda count: 500 + count, requested=1.2).targets()
    assert offer.ratio == pytest.approx(1.2)
    assert offer.verdict == "missed"
    assert claim.ratio == pytest.approx(1.2)
    assert claim.verdict == "missed"


def test_rows_show_the_cost_of_each_stream() -> None:
    costs = measured(lambda count: 500 + 100 * count)
    assert [row[0] for row in costs.stream_rows()] == ["0", "1", "10", "100"]
    assert costs.stream_rows()[0][2:] == ["-", "-"]
    assert costs.stream_rows()[3] == ["100", "21.00", "200", "0.20"]
    assert costs.progress_rows()[0] == ["offer", "1.40", "1.40", "1.00"]
    assert costs.others() == pytest.approx(0.03)


def test_targets_without_runs_are_not_measured() -> None:
    empty = PerConsumerCosts()
    assert {target.verdict for target in empty.targets()} == {"not measured"}
    assert (empty.stream_rows(), empty.progress_rows(), empty.notes(), empty.others()) == (
        [],
        [],
        [],
        None,
    )
