"""Prometheus' text format."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.metrics.exposition import LONGEST_LABEL, Family, Metric, label_text, number, render

FRAMES = Metric("frames_total", "counter", 'all "frames"\nand more \\', ("name",))
_SAMPLE = re.compile(r'frames_total\{name="((?:[^"\\\n]|\\[\\n"])*)"\} (\S+)\Z')


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def test_a_family_is_a_help_line_a_type_line_and_its_samples() -> None:
    family = Family(FRAMES)
    family.put(3, "left")
    family.put(0.5, 'a"b\\c\nd')
    assert render([family]) == (
        '# HELP frames_total all "frames"\\nand more \\\\\n'
        "# TYPE frames_total counter\n"
        'frames_total{name="left"} 3\n'
        'frames_total{name="a\\"b\\\\c\\nd"} 0.5\n'
    )


def test_what_nobody_told_is_left_out_and_not_zero() -> None:
    family = Family(Metric("age_seconds", "gauge", "an age"))
    family.put(None)
    assert render([family]) == ""
    family.put(0)
    assert render([family]).endswith("age_seconds 0\n")


def test_the_same_value_stands_under_each_familys_own_labels() -> None:
    families = [Family(FRAMES), Family(Metric("age_seconds", "gauge", "an age", ("who",)))]
    for one in families:
        one.put_at(("left",), 1)
        one.put_at(("right",), None)
    lines = [line for line in render(families).splitlines() if not line.startswith("#")]
    assert lines == ['frames_total{name="left"} 1', 'age_seconds{who="left"} 1']


@settings(deadline=None)
@given(st.text(max_size=200), st.floats())
def test_any_name_is_one_line_that_reads_back(name: str, value: float) -> None:
    family = Family(FRAMES)
    family.put(value, name)
    *_, line, rest = render([family]).split("\n")
    assert rest == ""
    found = _SAMPLE.match(line)
    assert found is not None, line
    expected = name[:LONGEST_LABEL].encode("utf-8", "replace").decode()
    assert unescaped(found[1]) == expected
    assert float(found[2]) == value or math.isnan(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e18, "1000000000000000000"), (float("inf"), "+Inf"), (1e300, "1e+300"), (0.1, "0.1")],
)
def test_numbers_are_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number(value) == text


def test_names_follow_the_conventions() -> None:
    with pytest.raises(ValueError, match="_total"):
        Metric("frames", "counter", "")
    with pytest.raises(ValueError, match="_total"):
        Metric("frames_total", "gauge", "")
    with pytest.raises(ValueError, match="no name"):
        Metric("frames-total", "counter", "")
    with pytest.raises(ValueError, match="labels"):
        Family(FRAMES).put(1)


def test_a_long_name_is_cut_and_what_is_no_unicode_is_written_all_the_same() -> None:
    assert label_text("x" * 1000) == "x" * 128
    assert label_text("\ud800a") == "?a"
    assert label_text(7) == "7"
