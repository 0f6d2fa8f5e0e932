"""Summaries of arrays with known values."""

from __future__ import annotations

import json

import numpy as np

from tensorpool.preview import summarize


def test_a_summary_of_whole_numbers() -> None:
    summary = summarize(np.arange(12, dtype=np.uint16).reshape(3, 4))
    assert (summary.shape, summary.dtype) == ((3, 4), "uint16")
    assert (summary.minimum, summary.maximum, summary.mean) == (0, 11, 5.5)
    assert str(summary) == "3x4 uint16  min 0  max 11  mean 5.5  [0 1 2 3 4 5 …]"


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    summary = summarize(np.array([np.nan, 1.0, 3.0, np.inf]))
    assert (summary.minimum, summary.maximum, summary.mean, summary.not_finite) == (1.0, 3.0, 2.0, 2)
    parsed = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert parsed["values"] == ["nan", 1.0, 3.0, "inf"]
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
