"""Settings of the metrics endpoint and of the OpenTelemetry export: `[metrics]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ..runtime.config import DurationNs, parse_duration, setting, settings
from .server import address_fault

_MAX_SERIES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How many things of each kind get metrics of their own."""

    streams: int = 1024
    consumers: int = 4096
    mappings: int = 256
    others: int = 64
    """Drivers, recorders and names of services, each."""


DEFAULT_LIMITS: Final = Limits()


def _url_fault(text: str) -> str | None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not the URL of a collector; write http://HOST:4318/v1/metrics"
    return None


@settings("metrics")
class MetricsSettings:
    """Metrics for Prometheus and OpenTelemetry."""

    listen: str | None = setting(
        "HOST:PORT of the endpoint that Prometheus scrapes. HOST is an address; `9464` alone listens on "
        "127.0.0.1. None: no endpoint.",
        default=None,
        check=address_fault,
        flag="--metrics",
    )
    hosts: tuple[str, ...] = setting(
        "Host names that requests may use, besides localhost and addresses. Requests with other names are "
        "rejected, so that no web page can read the metrics through a name of its own (DNS rebinding).",
        default=(),
    )
    max_streams: int = setting(
        "Streams that get metrics of their own; the rest is counted.",
        default=DEFAULT_LIMITS.streams,
        minimum=0,
        maximum=_MAX_SERIES,
    )
    max_consumers: int = setting(
        "Consumers, of all streams together, that get metrics of their own; the rest is counted.",
        default=DEFAULT_LIMITS.consumers,
        minimum=0,
        maximum=_MAX_SERIES,
    )
    otlp: str | None = setting(
        "URL of an OpenTelemetry collector that receives the same metrics over OTLP/HTTP. Needs the extra "
        "`otel`. None: no export.",
        default=None,
        check=_url_fault,
    )
    otlp_period_ns: DurationNs = setting(
        "Period of the export.",
        default=parse_duration("15s"),
        minimum=parse_duration("1s"),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Names of hosts that are not valid, with the reason."""
        for host in self.hosts:
            if not host or ":" in host or "/" in host:
                yield "hosts", f"{host!r} is not a host name; write it without a port"

    @property
    def limits(self) -> Limits:
        """The limits that these settings give."""
        return Limits(streams=self.max_streams, consumers=self.max_consumers)
