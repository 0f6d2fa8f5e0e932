"""`tensorpool metrics`: metrics of the whole system for Prometheus and OpenTelemetry."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import click

from .. import context
from ..context.startup import CONTEXT_TABLES
from ..metrics.config import MetricsSettings
from ..metrics.server import Address
from ..runtime.config import Config
from ..runtime.role import run_role
from ..text import safe_lines
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

_SHOW_EPILOG = """
\b
Examples:
  tensorpool metrics show
  tensorpool metrics show > /var/lib/prometheus/node-exporter/tensorpool.prom
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def metrics() -> None:
    """Serve metrics of the whole system to Prometheus, or send them to OpenTelemetry.

    Without a verb it runs, on port 9464 of 127.0.0.1 unless --metrics says otherwise. A supervisor does the
    same with --metrics; one of the two is enough.
    """


@metrics.command(epilog=_EPILOG)
@role_options(*CONTEXT_TABLES, MetricsSettings)
def run(config: Config) -> None:
    """Serve the metrics here until SIGTERM or Ctrl-C. Starts no media driver."""
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


@metrics.command(epilog=_SHOW_EPILOG)
@connect_options
def show(to: ConnectOptions) -> None:
    """Print the metrics once, in Prometheus' text format."""
    from ..metrics.collect import MetricsCollector
    from ..top.app import MonitorSource, settle

    with to.context() as ctx:
        source = MonitorSource(ctx)
        try:
            snapshot = settle(source, to.timeout)
        finally:
            source.close()
    collector = MetricsCollector(lambda: snapshot)
    if not to.json_output:
        page = collector.page()
        # Programs get the exact labels; a terminal must not be controlled by them.
        click.echo(safe_lines(page) if sys.stdout.isatty() else page, nl=False)
        return
    for family in collector.collect():
        for sample in family.samples:
            click.echo(json.dumps({"name": sample.name, "labels": sample.labels, "value": sample.value}))
