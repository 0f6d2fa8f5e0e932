"""Rates of frames and counts with known values."""

from __future__ import annotations

import pytest

from tensorpool.monitor.rates import FrameIntervals, RateMeter, SampledRate

MS = 1_000_000
S = 1_000_000_000


def test_even_frames_have_no_deviation() -> None:
    intervals = FrameIntervals(100)
    assert intervals.rate() is None
    for at in range(11):
        intervals.add(at * 10 * MS)
    rate = intervals.rate()
    assert rate is not None
    assert rate.frames == 10
    assert [rate.hz, rate.seconds, rate.min_s, rate.max_s] == pytest.approx([100, 0.1, 0.01, 0.01])
    assert rate.std_dev_s == pytest.approx(0, abs=1e-12)


def test_frame_intervals_keep_only_their_window() -> None:
    intervals = FrameIntervals(2)
    for at in (0, 1000, 1010, 1030):
        intervals.add(at * MS)
    rate = intervals.rate()
    assert rate is not None
    assert rate.frames == 2
    assert [rate.min_s, rate.max_s, rate.std_dev_s, rate.hz] == pytest.approx([0.01, 0.02, 0.005, 2 / 0.03])


def test_frame_intervals_restart_when_the_clock_goes_back() -> None:
    intervals = FrameIntervals(10)
    for at in (5 * S, 1 * S, 2 * S):
        intervals.add(at)
    rate = intervals.rate()
    assert rate is not None
    assert rate.hz == pytest.approx(1)


def test_sampled_rate_falls_when_the_count_stops() -> None:
    sampled = SampledRate(2 * S)
    assert sampled.per_second(0) is None
    for at in range(0, 4000, 20):
        sampled.add(at * MS, at * 50 // 1000)
    now = 3980 * MS
    assert sampled.per_second(now) == pytest.approx(50, rel=0.02)
    half = sampled.per_second(now + S)
    assert half is not None
    assert 20 < half < 40
    assert sampled.per_second(now + 3 * S) == 0.0


def test_sampled_rate_restarts_when_the_count_falls() -> None:
    sampled = SampledRate(2 * S)
    sampled.add(0, 1000)
    sampled.add(S, 1100)
    sampled.add(2 * S, 3)
    assert sampled.per_second(2 * S) is None
    sampled.add(3 * S, 13)
    assert sampled.per_second(3 * S) == pytest.approx(10)


def test_rate_meter_covers_three_periods_and_restarts_when_the_count_falls() -> None:
    meter = RateMeter()
    assert meter.per_s() is None
    for second, count in enumerate((0, 1000, 1010, 1020, 1030)):
        meter.add(second * S, count)
    assert meter.per_s() == 10
    # Of two samples at the same time the later one counts.
    meter.add(4 * S, 1060)
    assert meter.per_s() == 20
    meter.add(5 * S, 7)
    assert meter.per_s() is None
    meter.add(6 * S, 12)
    assert meter.per_s() == 5
    meter.clear()
    assert meter.per_s() is None
