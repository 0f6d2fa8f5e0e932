"""What the benchmarks of consumers' wishes make of what they measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.wishes import FULL, Wishes


def measured(offer_ns: Callable[[int], float], asked: float = 1.0) -> Wishes:
    """A quick run and one on a machine three times as slow: ratios are of one run."""
    found = Wishes()
    for speed in (1, 3):
        offers = {str(count): speed * offer_ns(count) for count in FULL}
        found.own.append({"offer_ns": offers, "others_cores": 0.01 * speed})
        times: dict[str, float] = {"offer_plain_ns": 700, "claim_plain_ns": 1200, "claim_unheard_ns": 1300}
        times |= {"offer_asked_ns": 700 * asked, "claim_asked_ns": 1200 * asked}
        found.quiet.append({key: ns * speed for key, ns in times.items()} | {"others_cores": 0.02})
    return found


def test_streams_that_cost_as_much_each_are_linear() -> None:
    targets = measured(lambda count: 500 + 100 * count).targets()
    assert [target.ratio for target in targets] == pytest.approx([0.2, 1.0, 1.0, 1.0])
    assert {target.verdict for target in targets} == {"reached"}


def test_a_price_that_grows_with_the_crowd_is_missed() -> None:
    price, growth, _, _ = measured(lambda count: 500 + 10 * count * count).targets()
    assert price.ratio == pytest.approx(2.0)
    assert price.verdict == "missed"
    assert growth.ratio == pytest.approx(10.0)
    assert growth.verdict == "missed"


def test_progress_that_costs_those_who_do_not_use_it_is_missed() -> None:
    _, _, offer, claim = measured(lambda count: 500 + count, asked=1.2).targets()
    assert offer.ratio == pytest.approx(1.2)
    assert offer.verdict == "missed"
    assert claim.ratio == pytest.approx(1.2)
    assert claim.verdict == "missed"


def test_rows_tell_the_price_of_each() -> None:
    found = measured(lambda count: 500 + 100 * count)
    assert [row[0] for row in found.own_rows()] == ["0", "1", "10", "100"]
    assert found.own_rows()[0][2:] == ["-", "-"]
    assert found.own_rows()[3] == ["100", "21.00", "200", "0.20"]
    assert found.progress_rows()[0] == ["offer", "1.40", "1.40", "1.00"]
    assert found.others() == pytest.approx(0.03)


def test_what_was_not_measured_is_not_judged() -> None:
    nothing = Wishes()
    assert {target.verdict for target in nothing.targets()} == {"not measured"}
    assert (nothing.own_rows(), nothing.progress_rows(), nothing.words(), nothing.others()) == (
        [],
        [],
        [],
        None,
    )
