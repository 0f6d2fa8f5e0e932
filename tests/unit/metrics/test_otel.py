"""The OpenTelemetry export of the metrics."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from prometheus_client import Metric

from tensorpool.clock import ManualClock
from tensorpool.metrics.collect import CATALOGUE, MetricsCollector
from tensorpool.metrics.otel import OtelExport, otel_name
from tests.unit.top.snapshots import system


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_every_sample_is_exported_with_its_labels_and_unit() -> None:
    reader = InMemoryMetricReader()
    collector = MetricsCollector(system)
    families = {family.name: family for family in collector.collect()}
    with OtelExport(collector.collect, reader=reader):
        metrics = exported(reader)
    for definition in CATALOGUE:
        name, unit = otel_name(definition)
        family = families.get(definition.name.removesuffix("_total"))
        if family is None:
            assert name not in metrics
            continue
        points = metrics[name].data.data_points
        assert metrics[name].unit == unit
        assert [(dict(point.attributes), point.value) for point in points] == [
            (sample.labels, sample.value) for sample in family.samples
        ]
        assert isinstance(metrics[name].data, Sum) == (definition.kind == "counter")


def test_collector_restores_the_prometheus_names() -> None:
    suffixes = {"s": "_seconds", "By": "_bytes", "By/s": "_bytes_per_second", "1": ""}
    for metric in CATALOGUE:
        name, unit = otel_name(metric)
        restored = name.replace(".", "_") + suffixes[unit] + ("_total" if metric.kind == "counter" else "")
        assert restored == metric.name


def test_all_metrics_of_an_export_are_of_one_snapshot() -> None:
    clock = ManualClock()
    collections: list[int] = []
    reader = InMemoryMetricReader()

    def families() -> list[Metric]:
        collections.append(clock.monotonic_ns())
        return MetricsCollector(system).collect()

    with OtelExport(families, reader=reader, clock=clock):
        exported(reader)
        assert len(collections) == 1
        clock.advance(15)
        exported(reader)
        assert len(collections) == 2
