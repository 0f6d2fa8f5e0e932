"""`tensorpool metrics`: figures for Prometheus and OpenTelemetry, from what is heard."""

from __future__ import annotations

import click

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..discovery import DiscoverySettings
from ..driver import DriverSettings
from ..metrics.config import MetricsSettings
from ..metrics.server import Address
from ..runtime.config import Config
from ..runtime.role import run_role
from ..service.config import ServiceSettings
from .options import ConnectOptions, connect_options, role_options
from .params import DefaultRunGroup

_EPILOG = """
\b
Examples:
  tensorpool metrics
  tensorpool metrics --metrics 0.0.0.0:9464 --set metrics.hosts=lab-7
  tensorpool metrics --set metrics.otlp=http://127.0.0.1:4318/v1/metrics
  tensorpool metrics show | grep dropped
"""

_SHOW = """
\b
Examples:
  tensorpool metrics show
  tensorpool metrics show > /var/lib/prometheus/node-exporter/tensorpool.prom
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def metrics() -> None:
    """Serve figures of the whole system to Prometheus, or send them to OpenTelemetry.

    Without a verb it runs, on this machine's port 9464 unless told otherwise. A supervisor does the same with
    --metrics; one of the two is enough.
    """


@metrics.command(epilog=_EPILOG)
@role_options(
    ContextSettings,
    AeronSettings,
    ShmSettings,
    ServiceSettings,
    DriverSettings,
    DiscoverySettings,
    MetricsSettings,
)
def run(config: Config) -> None:
    """Serve them here until SIGTERM or Ctrl-C. Starts no media driver: it only listens."""
    from dataclasses import replace

    from ..metrics.agent import MetricsAgent
    from ..monitor.listener import reduced_gc

    settings = config[MetricsSettings]
    if settings.listen is None and settings.otlp is None:
        settings = replace(settings, listen=str(Address()))
    with (
        reduced_gc(),
        context.open(mode="standalone", config=config, media_driver="external") as ctx,
    ):
        run_role("metrics", config, lambda: MetricsAgent(ctx, settings))


@metrics.command(epilog=_SHOW)
@connect_options
def show(to: ConnectOptions) -> None:
    """Print them once, as Prometheus would read them."""
    import json

    from ..metrics import MetricsSource
    from ..top.app import MonitorSource, settle

    with to.context() as ctx:
        feed = MonitorSource(ctx)
        try:
            snapshot = settle(feed, to.timeout)
        finally:
            feed.close()
    page = MetricsSource(lambda: snapshot)
    if not to.as_json:
        click.echo(page(), nl=False)
        return
    for family in page.families():
        for labels, value in family.samples.items():
            named = dict(zip(family.metric.labels, labels, strict=True))
            click.echo(json.dumps({"name": family.metric.name, "labels": named, "value": value}))
