"""Where metrics are served, and how many: `[metrics]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from ..runtime.config import DurationNs, parse_duration, setting, settings
from .collect import DEFAULT_LIMITS, Limits
from .server import address_fault

_MOST_SERIES: Final = 1_000_000


def _url_fault(text: str) -> str | None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is no URL of a collector; write http://HOST:4318/v1/metrics"
    return None


@settings("metrics")
class MetricsSettings:
    """Figures for Prometheus and OpenTelemetry."""

    listen: str | None = setting(
        "HOST:PORT where Prometheus finds them; HOST is an address, `9464` alone is on this machine only. "
        "None: nowhere.",
        default=None,
        check=address_fault,
        flag="--metrics",
    )
    hosts: tuple[str, ...] = setting(
        "Names by which the endpoint may be called, besides localhost and addresses: whatever else a browser "
        "was told to be this machine is refused.",
        default=(),
    )
    max_streams: int = setting(
        "Streams that get metrics of their own; the rest is counted.",
        default=DEFAULT_LIMITS.streams,
        minimum=0,
        maximum=_MOST_SERIES,
    )
    max_consumers: int = setting(
        "The same for consumers, of all streams together.",
        default=DEFAULT_LIMITS.consumers,
        minimum=0,
        maximum=_MOST_SERIES,
    )
    otlp: str | None = setting(
        "URL of an OpenTelemetry collector that gets the same, over OTLP/HTTP. Needs the extra `otel`.",
        default=None,
        check=_url_fault,
    )
    otlp_period_ns: DurationNs = setting(
        "How often it gets them.",
        default=parse_duration("15s"),
        minimum=parse_duration("1s"),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        for host in self.hosts:
            if not host or ":" in host or "/" in host:
                yield "hosts", f"{host!r} is no name; write it without a port"

    @property
    def limits(self) -> Limits:
        return Limits(streams=self.max_streams, consumers=self.max_consumers)
