"""`tensorpool limit`: run rate limiters, or show the status of running ones."""

from __future__ import annotations

import json

import click

from .. import context
from ..context.startup import CONTEXT_TABLES
from ..errors import NoSuchService
from ..limiter import LimiterAgent, LimiterSettings, LimiterStatus
from ..runtime.config import Config
from ..runtime.role import run_role
from ..service.config import ServiceSettings
from .options import ConnectOptions, connect_options, role_options
from .output import columns, console
from .params import DefaultRunGroup

_EPILOG = """
\b
Examples:
  tensorpool limit --config limiter.toml
  tensorpool limit run --config limiter.toml --check
  tensorpool limit status
"""

_RUN_EPILOG = """
\b
Examples:
  tensorpool limit run --config limiter.toml
  tensorpool limit run --config limiter.toml --set limiter.max_rate_hz=5
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def limit() -> None:
    """Publish streams again, at most this many frames a second.

    Without a verb it runs. Consumers of the destination receive the newest frames of the source, with its
    sequences, capture times and metadata.
    """


@limit.command(epilog=_RUN_EPILOG)
@role_options(*CONTEXT_TABLES, LimiterSettings)
def run(config: Config) -> None:
    """Run the limiters here until SIGTERM or Ctrl-C.

    `[[limiter.mappings]]` of the configuration lists the streams. A source may come and go: its limiter
    follows, and a new epoch of the source begins a new one of the destination.
    """
    with context.open(config=config) as ctx:

        def make_agent() -> LimiterAgent:
            return LimiterAgent(
                ctx, settings=config[LimiterSettings], service_token=config[ServiceSettings].token
            )

        run_role("limiter", config, make_agent)


@limit.command(epilog="\b\nExamples:\n  tensorpool limit status\n  tensorpool limit status --json\n")
@click.option("--instance", help="The instance_id of the limiter, if it has one.")
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """Show the streams of a running limiter, and what it forwarded and left out."""
    try:
        with to.client(f"limiter:{instance}" if instance else "limiter") as client:
            reply = client.call("status")
    except NoSuchService:
        raise NoSuchService(
            "no limiter answers on this media driver: start one with tensorpool limit --config FILE"
        ) from None
    if to.json_output:
        click.echo(json.dumps(reply, indent=2))
        return
    table = columns(
        "source",
        "destination",
        "rate",
        "forwarded",
        "rate limited",
        "dropped",
        right=("forwarded", "rate limited"),
    )
    mappings: list[LimiterStatus] = reply["mappings"]
    for mapping in mappings:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in mapping["dropped"].items() if count)
        table.add_row(
            str(mapping["source_stream_id"]),
            str(mapping["dest_stream_id"]),
            f"{mapping['max_rate_hz']:g} Hz" if mapping["max_rate_hz"] else "all",
            f"{mapping['forwarded']:,}",
            f"{mapping['rate_limited']:,}",
            dropped or "none",
        )
    console().print(table)
