"""The same metrics to an OpenTelemetry collector, over OTLP/HTTP. Needs the extra `otel`.

Names are such that a collector which writes for Prometheus makes the ones of our endpoint of them:
`tensorpool_consumer_latency_p99_seconds` is `tensorpool.consumer_latency_p99` in seconds here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import TensorPoolError
from .collect import CATALOGUE
from .exposition import Family, Metric

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

_UNITS: Final = {"_bytes_per_second": "By/s", "_seconds": "s", "_bytes": "By"}
_FRESH_NS: Final = 500_000_000
_TIMEOUT_S: Final = 5.0


class NoOpenTelemetry(TensorPoolError, ImportError):
    """The packages of the extra are not there."""


def otel_name(metric: Metric) -> tuple[str, str]:
    """Name and unit, in OpenTelemetry's way."""
    name, unit = metric.name.removesuffix("_total"), "1"
    for suffix, found in _UNITS.items():
        if name.endswith(suffix):
            name, unit = name.removesuffix(suffix), found
            break
    return name.replace("tensorpool_", "tensorpool.", 1), unit


class OtelExport:
    """Sends the families to a collector, again and again, on a thread of the library's."""

    def __init__(
        self,
        families: Callable[[], list[Family]],
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
        self._looked_ns: int | None = None
        self._seen: dict[str, Family] = {}
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

    def _callback(self, metric: Metric) -> Callable[[Any], Iterator[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: object) -> Iterator[Any]:
            for labels, value in self._family(metric).samples.items():
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return observe

    def _family(self, metric: Metric) -> Family:
        """One look for all metrics of a round: they have to be of one moment."""
        with self._lock:
            now = self._clock.monotonic_ns()
            if self._looked_ns is None or now - self._looked_ns >= _FRESH_NS:
                self._seen = {one.metric.name: one for one in self._families()}
                self._looked_ns = now
            return self._seen[metric.name]

    def close(self) -> None:
        """Sends once more, as far as the collector is there."""
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
