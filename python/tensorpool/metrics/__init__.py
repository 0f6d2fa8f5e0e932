"""Figures of a running system for Prometheus and OpenTelemetry, made from the supervisor's picture of it."""

from .agent import MetricsExporter, MetricsSource
from .collect import Limits, collect
from .config import MetricsSettings
from .exposition import CONTENT_TYPE, Family, Metric, render
from .server import Address, AddressInUse, MetricsServer

__all__ = [
    "CONTENT_TYPE",
    "Address",
    "AddressInUse",
    "Family",
    "Limits",
    "Metric",
    "MetricsExporter",
    "MetricsServer",
    "MetricsSettings",
    "MetricsSource",
    "collect",
    "render",
]
