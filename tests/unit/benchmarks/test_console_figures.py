"""The effect of the console on a stream: a ratio of percentiles, with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from benchmarks.console import Effect, Pair, effect, pooled_effect


def made_pairs(factor: float, *, disturbed: float = 1.0) -> list[Pair]:
    """Forty pairs of periods. With the viewer all latencies are `factor` times as long.

    A quarter of the pairs is disturbed as a whole, as by another program that runs for seconds.
    """
    random = np.random.default_rng(5)
    pairs = []
    for number in range(40):
        scale = disturbed if number % 4 == 0 else 1.0
        on, off = (list(scale * random.lognormal(5, 0.5, 25)) for _ in range(2))
        pairs.append(Pair([factor * value for value in on], off))
    return pairs


@pytest.mark.parametrize("disturbed", [1.0, 20.0])
@pytest.mark.parametrize("percentile", [50.0, 99.0])
@pytest.mark.parametrize("find", [effect, pooled_effect])
def test_interval_contains_the_true_effect(
    find: Callable[[Sequence[Pair], float], Effect], percentile: float, disturbed: float
) -> None:
    for factor in (1.0, 3.0):
        found = find(made_pairs(factor, disturbed=disturbed), percentile)
        assert found.low <= factor <= found.high
        assert found.low <= found.ratio <= found.high


def test_disturbance_does_not_widen_the_interval_of_a_usual_pair() -> None:
    quiet, busy = (made_pairs(1.0), made_pairs(1.0))
    # Another program holds up one period in eight by far.
    for pair in busy[::4]:
        pair.on[:5] = [1e6] * 5
    found = effect(busy, 99.0)
    assert found.high < 1.5 * effect(quiet, 99.0).high
    assert pooled_effect(busy, 99.0).ratio > 100


def test_disturbance_of_both_readers_cancels() -> None:
    watched = made_pairs(1.5)
    # Whatever the console costs both readers, and other programs do to both of them.
    scales = np.random.default_rng(6).lognormal(0.5, 1.0, len(watched))
    both = [Pair([scale * v for v in pair.on], pair.off) for scale, pair in zip(scales, watched, strict=True)]
    like = [
        Pair([scale * v for v in pair.on], pair.off)
        for scale, pair in zip(scales, made_pairs(1.0), strict=True)
    ]
    net = effect(both, 99.0, like)
    assert (net.low, net.high) == pytest.approx((1.5, 1.5))
    assert effect(both, 99.0).high > 2.0


def test_interval_leaves_out_what_is_not_so() -> None:
    assert effect(made_pairs(3.0), 99.0).low > 2.0
    assert effect(made_pairs(1.0), 50.0).high < 1.3


def test_equal_periods_have_no_effect() -> None:
    pairs = [Pair([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])] * 5
    assert effect(pairs, 99.0) == pooled_effect(pairs, 99.0) == Effect(1.0, 1.0, 1.0)
