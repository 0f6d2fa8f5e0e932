"""The same figures in OpenTelemetry's form."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from tensorpool.clock import ManualClock
from tensorpool.metrics import MetricsSource
from tensorpool.metrics.collect import CATALOGUE
from tensorpool.metrics.otel import OtelExport, otel_name
from tests.unit.top.scene import system


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_every_sample_of_the_page_is_exported_with_its_labels_and_unit() -> None:
    reader = InMemoryMetricReader()
    page = MetricsSource(system)
    with OtelExport(page.families, reader=reader):
        found = exported(reader)
        for family in page.families():
            name, unit = otel_name(family.metric)
            if not family.samples:
                assert name not in found
                continue
            points = found[name].data.data_points
            assert found[name].unit == unit
            assert {tuple(point.attributes.values()): point.value for point in points} == family.samples
            assert isinstance(found[name].data, Sum) == (family.metric.kind == "counter")


def test_names_become_ours_again_behind_a_collector() -> None:
    suffixes = {"s": "_seconds", "By": "_bytes", "By/s": "_bytes_per_second", "1": ""}
    for metric in CATALOGUE:
        name, unit = otel_name(metric)
        again = name.replace(".", "_") + suffixes[unit] + ("_total" if metric.kind == "counter" else "")
        assert again == metric.name


def test_all_metrics_of_one_round_are_of_one_moment() -> None:
    clock, looks = ManualClock(), []
    reader = InMemoryMetricReader()

    def families() -> Any:
        looks.append(clock.monotonic_ns())
        return MetricsSource(system).families()

    with OtelExport(families, reader=reader, clock=clock):
        exported(reader)
        assert len(looks) == 1
        clock.advance(15)
        exported(reader)
        assert len(looks) == 2
