"""The export of the metrics to an OpenTelemetry collector over OTLP/HTTP. Needs the extra `otel`.

A collector that writes for Prometheus turns the names back into those of the endpoint:
`tensorpool_consumer_latency_p99_seconds` is `tensorpool.consumer_latency_p99` with the unit s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import TensorPoolError
from .collect import CATALOGUE, MetricDefinition

if TYPE_CHECKING:
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics.export import MetricReader
    from prometheus_client import Metric
    from prometheus_client.samples import Sample

_UNITS: Final = {"_bytes_per_second": "By/s", "_seconds": "s", "_bytes": "By"}
_ROUND_NS: Final = 500_000_000
_TIMEOUT_S: Final = 5.0


class NoOpenTelemetry(TensorPoolError, ImportError):
    """The packages of the extra `otel` are not installed."""


def otel_name(metric: MetricDefinition) -> tuple[str, str]:
    """Name and unit by OpenTelemetry's conventions."""
    name, unit = metric.name.removesuffix("_total"), "1"
    for suffix, suffix_unit in _UNITS.items():
        if name.endswith(suffix):
            name, unit = name.removesuffix(suffix), suffix_unit
            break
    return name.replace("tensorpool_", "tensorpool.", 1), unit


class OtelExport:
    """Sends the families to a collector once a period, on a thread of the OpenTelemetry library."""

    def __init__(
        self,
        families: Callable[[], list[Metric]],
        *,
        endpoint: str = "",
        period_ns: int = 15_000_000_000,
        reader: MetricReader | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise NoOpenTelemetry(
                "metrics.otlp needs OpenTelemetry: pip install 'aeron-tensorpool[otel]'"
            ) from None
        self._families = families
        self._clock = clock
        self._lock = threading.Lock()
        self._collected_ns: int | None = None
        self._samples: dict[str, list[Sample]] = {}
        resource = Resource.create({"service.name": "tensorpool"})
        self._provider = MeterProvider(
            [_reader(endpoint, period_ns) if reader is None else reader], resource, shutdown_on_exit=False
        )
        meter = self._provider.get_meter("tensorpool")
        for metric in CATALOGUE:
            name, unit = otel_name(metric)
            make: Any = (
                meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            )
            make(name, callbacks=[self._callback(metric)], unit=unit, description=metric.doc)

    def _callback(self, metric: MetricDefinition) -> Callable[[Any], Iterator[Observation]]:
        from opentelemetry.metrics import Observation

        # The client library's counters carry their name without the suffix.
        family = metric.name.removesuffix("_total")

        def observe(_: object) -> Iterator[Observation]:
            for sample in self._samples_of(family):
                yield Observation(sample.value, sample.labels)

        return observe

    def _samples_of(self, family: str) -> list[Sample]:
        """Samples of a family; all families of one export are collected together, from one snapshot."""
        with self._lock:
            now = self._clock.monotonic_ns()
            if self._collected_ns is None or now - self._collected_ns >= _ROUND_NS:
                self._samples = {family.name: family.samples for family in self._families()}
                self._collected_ns = now
            return self._samples.get(family, [])

    def close(self) -> None:
        """Sends a last export, if the collector can be reached, and ends the thread."""
        self._provider.shutdown(timeout_millis=_TIMEOUT_S * 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _reader(endpoint: str, period_ns: int) -> MetricReader:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError:
        raise NoOpenTelemetry(
            "metrics.otlp needs the OTLP exporter: pip install 'aeron-tensorpool[otel]'"
        ) from None
    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
    return PeriodicExportingMetricReader(
        exporter, export_interval_millis=period_ns / 1e6, export_timeout_millis=_TIMEOUT_S * 1000
    )
