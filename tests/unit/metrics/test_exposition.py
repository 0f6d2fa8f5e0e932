"""Prometheus' text format, compared with the client library's parser and its own text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample
from prometheus_client.parser import text_string_to_metric_families

from tensorpool.metrics.collect import MetricDefinition, MetricsCollector
from tensorpool.metrics.server import MAX_LABEL, label_text, number, render
from tests.unit.top.snapshots import system

_SAMPLE = re.compile(r'frames_total\{name="((?:[^"\\\n]|\\[\\n"])*)"\} (\S+)\Z')


def frames() -> CounterMetricFamily:
    return CounterMetricFamily("frames_total", 'all "frames"\nand more \\', labels=("name",))


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def parse(text: str) -> list[tuple[str, str, str, list[Sample]]]:
    families: Iterable[Metric] = text_string_to_metric_families(text)
    return [(one.name, one.type, one.documentation, one.samples) for one in families]


def test_family_is_a_help_line_a_type_line_and_samples() -> None:
    family = frames()
    family.add_metric(["left"], 3)
    family.add_metric(['a"b\\c\nd'], 0.5)
    assert render([family]) == (
        '# HELP frames_total all "frames"\\nand more \\\\\n'
        "# TYPE frames_total counter\n"
        'frames_total{name="left"} 3\n'
        'frames_total{name="a\\"b\\\\c\\nd"} 0.5\n'
    )


def test_family_without_labels_has_no_braces() -> None:
    family = GaugeMetricFamily("age_seconds", "an age", value=0)
    assert render([family]).endswith("age_seconds 0\n")


def test_shared_label_set_appears_under_each_family() -> None:
    labels = {"name": "left"}
    families = [frames(), GaugeMetricFamily("age_seconds", "an age", labels=("name",))]
    for family in families:
        family.samples.append(Sample(family.name, labels, 1.0))
    lines = [line for line in render(families).splitlines() if not line.startswith("#")]
    assert lines == ['frames_total{name="left"} 1', 'age_seconds{name="left"} 1']


def test_page_means_the_same_as_the_librarys_own() -> None:
    collector = MetricsCollector(system)
    registry = CollectorRegistry()
    registry.register(collector)
    ours = parse(collector.page())
    assert len(ours) > 40
    assert ours == parse(generate_latest(registry).decode())


@settings(deadline=None)
@given(st.text(max_size=200), st.floats())
def test_any_name_is_one_line_that_reads_back(name: str, value: float) -> None:
    family = frames()
    family.add_metric([label_text(name)], value)
    *_, line, rest = render([family]).split("\n")
    assert rest == ""
    match = _SAMPLE.match(line)
    assert match is not None, line
    expected = name[:MAX_LABEL].encode("utf-8", "replace").decode()
    assert unescape(match[1]) == expected
    assert float(match[2]) == value or math.isnan(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e18, "1000000000000000000"), (float("inf"), "+Inf"), (1e300, "1e+300"), (0.1, "0.1")],
)
def test_numbers_are_in_prometheus_syntax(value: float, text: str) -> None:
    assert number(value) == text


def test_metric_names_follow_the_conventions() -> None:
    with pytest.raises(ValueError, match="_total"):
        MetricDefinition("frames", "counter", "")
    with pytest.raises(ValueError, match="_total"):
        MetricDefinition("frames_total", "gauge", "")
    with pytest.raises(ValueError, match="not a valid name"):
        MetricDefinition("frames-total", "counter", "")
    with pytest.raises(ValueError, match="argument"):
        MetricDefinition("frames_total", "counter", "", ("name",)).label_set()


def test_label_values_are_cut_and_always_encodable() -> None:
    assert label_text("x" * 1000) == "x" * 128
    assert label_text("\ud800a") == "?a"
    assert label_text(7) == "7"
