"""Figures of a running system for Prometheus and OpenTelemetry, made from the supervisor's picture of it."""

from .address import Address
from .collect import Limits, collect
from .config import MetricsSettings
from .endpoint import Metrics
from .exposition import CONTENT_TYPE, Family, Metric, render
from .page import MetricsPage
from .server import EndpointTaken, MetricsServer

__all__ = [
    "CONTENT_TYPE",
    "Address",
    "EndpointTaken",
    "Family",
    "Limits",
    "Metric",
    "Metrics",
    "MetricsPage",
    "MetricsServer",
    "MetricsSettings",
    "collect",
    "render",
]
