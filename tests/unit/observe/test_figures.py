"""Rates and summaries, from numbers that are known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tensorpool.monitor import Intervals, SampledRate, summarize

MS = 1_000_000
S = 1_000_000_000


def test_even_frames_have_no_deviation() -> None:
    intervals = Intervals(100)
    assert intervals.rate() is None
    for at in range(11):
        intervals.add(at * 10 * MS)
    rate = intervals.rate()
    assert rate is not None
    assert rate.frames == 10
    assert [rate.hz, rate.seconds, rate.min_s, rate.max_s] == pytest.approx([100, 0.1, 0.01, 0.01])
    assert rate.std_dev_s == pytest.approx(0, abs=1e-12)


def test_the_window_forgets_what_is_older() -> None:
    intervals = Intervals(2)
    for at in (0, 1000, 1010, 1030):
        intervals.add(at * MS)
    rate = intervals.rate()
    assert rate is not None
    assert rate.frames == 2
    assert [rate.min_s, rate.max_s, rate.std_dev_s, rate.hz] == pytest.approx([0.01, 0.02, 0.005, 2 / 0.03])


def test_a_clock_that_jumps_back_begins_anew() -> None:
    intervals = Intervals(10)
    for at in (5 * S, 1 * S, 2 * S):
        intervals.add(at)
    rate = intervals.rate()
    assert rate is not None
    assert rate.hz == pytest.approx(1)


def test_a_gauge_knows_the_rate_between_looks_and_falls_off_in_silence() -> None:
    gauge = SampledRate(2 * S)
    assert gauge.per_second(0) is None
    for at in range(0, 4000, 20):
        gauge.add(at * MS, at * 50 // 1000)
    now = 3980 * MS
    assert gauge.per_second(now) == pytest.approx(50, rel=0.02)
    half = gauge.per_second(now + S)
    assert half is not None
    assert 20 < half < 40
    assert gauge.per_second(now + 3 * S) == 0.0


def test_a_gauge_begins_anew_with_a_new_epoch() -> None:
    gauge = SampledRate(2 * S)
    gauge.add(0, 1000)
    gauge.add(S, 1100)
    gauge.add(2 * S, 3)
    assert gauge.per_second(2 * S) is None
    gauge.add(3 * S, 13)
    assert gauge.per_second(3 * S) == pytest.approx(10)


def test_a_summary_of_whole_numbers() -> None:
    summary = summarize(np.arange(12, dtype=np.uint16).reshape(3, 4))
    assert (summary.shape, summary.dtype) == ((3, 4), "uint16")
    assert (summary.minimum, summary.maximum, summary.mean) == (0, 11, 5.5)
    assert str(summary) == "3x4 uint16  min 0  max 11  mean 5.5  [0 1 2 3 4 5 …]"


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    summary = summarize(np.array([np.nan, 1.0, 3.0, np.inf]))
    assert (summary.minimum, summary.maximum, summary.mean, summary.not_finite) == (1.0, 3.0, 2.0, 2)
    told = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert told["values"] == ["nan", 1.0, 3.0, "inf"]
    assert "nothing finite" in str(summarize(np.array([np.nan])))


def test_empty_and_boolean_and_wide_arrays() -> None:
    empty = summarize(np.zeros((0, 3), np.float32))
    assert (empty.minimum, empty.mean, str(empty)) == (None, None, "0x3 float32  empty  []")
    assert str(summarize(np.array([True, False]))) == "2 bool  min false  max true  mean 0.5  [true false]"
    wide = summarize(np.array([1 << 60], np.uint64)).to_json()
    assert wide["min"] == str(1 << 60)


def test_elements_without_an_order_are_compared_by_their_size() -> None:
    summary = summarize(np.array([3 + 4j, -1, np.nan + 1j]))
    assert (summary.minimum, summary.maximum, summary.mean, summary.not_finite) == (1.0, 5.0, 3.0, 1)
    assert json.loads(json.dumps(summary.to_json()))["values"][0] == "(3+4j)"
    half = summarize(np.array([0.5, 2], np.float16))
    assert (half.dtype, half.maximum, half.values) == ("float16", 2.0, (0.5, 2.0))
    times = summarize(np.array([1, 3], "datetime64[ns]"))
    assert (times.minimum, times.mean) == (1, 2.0)
    assert json.dumps(times.to_json())
