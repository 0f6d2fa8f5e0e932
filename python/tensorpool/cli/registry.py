"""`tensorpool registry`: run a registry for a fleet, look at one that runs."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..discovery import DiscoverySettings
from ..driver import DriverSettings
from ..errors import NoSuchService
from ..registry import RegistryAgent, RegistrySettings
from ..runtime.config import Config
from ..runtime.role import RuntimeSettings, run_role
from ..service.config import ServiceSettings
from .options import ConnectOptions, connect_options, role_options
from .output import columns, console, format_duration, key_values
from .params import DefaultRunGroup

_EPILOG = """
\b
Examples:
  tensorpool registry --config /etc/tensorpool/registry.toml
  tensorpool registry run --config registry.toml --check
  tensorpool registry status
"""

_RUN = """
\b
Examples:
  tensorpool registry run --config registry.toml
  tensorpool registry run --config registry.toml --set registry.stream_id=7001
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def registry() -> None:
    """Know the streams of many drivers, and answer whoever looks for one.

    Without a verb it runs. It owns no memory and grants nothing: clients attach to the drivers themselves.
    """


@registry.command(epilog=_RUN)
@role_options(
    ContextSettings,
    AeronSettings,
    ShmSettings,
    ServiceSettings,
    DriverSettings,
    DiscoverySettings,
    RegistrySettings,
)
def run(config: Config) -> None:
    """Run the registry here until SIGTERM or Ctrl-C.

    Drivers are in `[[registry.drivers]]` of the configuration, how it answers in `[discovery.provider]`.
    SIGHUP reads the drivers again. Starts a media driver too where none runs, unless `aeron.media_driver` is
    "external".
    """
    with context.open(mode="standalone", config=config) as ctx:

        def make_agent() -> RegistryAgent:
            return RegistryAgent(
                ctx.connection,
                settings=config[RegistrySettings],
                discovery=config[DiscoverySettings],
                service_token=config[ServiceSettings].token,
                instance=config[RuntimeSettings].instance,
            )

        run_role("registry", config, make_agent)


@registry.command(epilog="\b\nExamples:\n  tensorpool registry status\n  tensorpool registry status --json\n")
@click.option("--instance", help="The registry's instance, where it has one.")
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """The registry as a whole: where it is asked, which drivers it hears, what it was asked."""
    try:
        with to.client(f"registry:{instance}" if instance else "registry") as client:
            found: dict[str, Any] = client.call("status")
    except NoSuchService:
        raise NoSuchService(
            "no registry answers on this media driver: start one with tensorpool registry --config FILE"
        ) from None
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
        return
    screen, counted = console(), found["counters"]
    rows: list[tuple[str, Any]] = [
        ("registry", f"process {found['pid']} of {found['user']}"),
        ("up for", format_duration(found["uptime_s"])),
        ("asked on", f"{found['channel']}, stream {found['stream_id']}"),
        ("streams", found["streams"]),
        ("questions", f"{counted['questions']:,}"),
        ("refused", _reasons(counted["refused"])),
        ("visibility", "by rules" if found["has_rules"] else "all see all"),
    ]
    screen.print(key_values(rows))
    screen.print()
    table = columns("driver", "heard on", "attach at", "streams", right=("streams",))
    for one in found["drivers"]:
        table.add_row(
            one["instance_id"],
            f"{one['announce_channel']} {one['announce_stream_id']}",
            f"{one['control_channel']} {one['control_stream_id']}",
            str(one["streams"]),
        )
    screen.print(table)


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count) or "none"
