"""Properties of buckets, percentiles and ticks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.pipeline.report.charts import ticks
from tensorpool.pipeline.report.timeline import BucketSeries, TimeRange
from tensorpool.pipeline.report.values import Histogram

times = st.integers(0, 2**61)


@given(start=times, length=st.integers(0, 10**18), finest=st.integers(1, 10**12), most=st.integers(1, 300))
def test_buckets_are_whole_intervals_and_cover_the_range(
    start: int, length: int, finest: int, most: int
) -> None:
    span = TimeRange.over(start, start + length, finest, most)
    assert 1 <= span.buckets <= most
    assert span.bucket_ns % finest == 0
    assert span.end_ns >= start + length
    assert span.end_ns - span.start_ns == span.buckets * span.bucket_ns
    ends = span.place(np.array([start, start + length], np.int64))
    assert ends[0] == 0
    assert 0 <= ends[1] < span.buckets


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=60))
def test_bucket_series_does_not_depend_on_batch_limits(rows: list[tuple[int, int]]) -> None:
    span = TimeRange.over(0, 10**6, 1000, 7)
    whole, parts = BucketSeries(span), BucketSeries(span)
    for series, chunks in ((whole, [rows]), (parts, [[row] for row in rows])):
        for chunk in chunks:
            at = span.place(np.array([when for when, _ in chunk], np.int64))
            values = np.array([value for _, value in chunk], np.float64)
            series.add("n", at, values)
            series.raise_to("n", at, values)
            series.weigh("n", at, values, np.ones(len(chunk)))
    assert whole.sum("n").sum() == sum(value for _, value in rows)
    np.testing.assert_array_equal(whole.sum("n"), parts.sum("n"))
    np.testing.assert_array_equal(whole.peak("n"), parts.peak("n"))
    np.testing.assert_allclose(whole.mean("n"), parts.mean("n"))


@given(st.lists(st.integers(-5, 2**62), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_percentile_is_exact_to_one_bucket(values: list[int], share: float) -> None:
    histogram = Histogram()
    histogram.add(np.array(values, np.int64))
    exact = sorted(max(value, 0) for value in values)[max(int(np.ceil(share * len(values))), 1) - 1]
    found = histogram.percentile(share)
    assert found is not None
    assert exact / 1.03 - 1 <= found <= exact * 1.03 + 1
    assert histogram.largest == max(0, *values, 0)


def test_histogram_counts_weighted_values() -> None:
    histogram = Histogram()
    histogram.add(np.array([10, 1_000], np.int64), np.array([1, 99], np.int64))
    assert histogram.percentile(0.5) == pytest.approx(1_000, rel=0.03)
    assert Histogram().percentile(0.5) is None


@given(st.floats(1e-9, 1e15))
def test_ticks_reach_the_top_in_few_steps(top: float) -> None:
    marks = ticks(top)
    assert 2 <= len(marks) <= 6
    assert marks[0] == 0
    assert marks[-1] >= top * (1 - 1e-6)
    assert marks[-2] < top
