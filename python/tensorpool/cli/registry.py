"""`tensorpool registry`: run a registry for several drivers, or show the status of one."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import context
from ..context.startup import CONTEXT_TABLES
from ..discovery import DiscoverySettings
from ..errors import NoSuchService
from ..registry import RegistryAgent, RegistrySettings
from ..registry.agent import RegistryStatus
from ..runtime.config import Config
from ..runtime.counters import Number
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

_RUN_EPILOG = """
\b
Examples:
  tensorpool registry run --config registry.toml
  tensorpool registry run --config registry.toml --set registry.stream_id=7001
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def registry() -> None:
    """Index the streams of many drivers, and answer discovery requests.

    Without a verb it runs. It owns no memory and grants no lease: clients attach to the drivers themselves.
    """


@registry.command(epilog=_RUN_EPILOG)
@role_options(*CONTEXT_TABLES, RegistrySettings)
def run(config: Config) -> None:
    """Run the registry here until SIGTERM or Ctrl-C.

    `[[registry.drivers]]` of the configuration lists the drivers, `[discovery.provider]` configures the
    answers. SIGHUP reloads the drivers. Embeds a media driver if none runs, unless `aeron.media_driver` is
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
@click.option("--instance", help="The instance of the registry, if it has one.")
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """Show its address, its drivers and the requests it has answered."""
    try:
        with to.client(f"registry:{instance}" if instance else "registry") as client:
            reply: RegistryStatus = client.call("status")
    except NoSuchService:
        raise NoSuchService(
            "no registry answers on this media driver: start one with tensorpool registry --config FILE"
        ) from None
    if to.json_output:
        click.echo(json.dumps(reply, indent=2))
        return
    screen, counters = console(), reply["counters"]
    rows: list[tuple[str, Any]] = [
        ("registry", f"process {reply['pid']} of {reply['user']}"),
        ("up for", format_duration(reply["uptime_s"])),
        ("asked on", f"{reply['channel']}, stream {reply['stream_id']}"),
        ("streams", reply["streams"]),
        ("requests", f"{counters['requests']:,}"),
        ("rejected", _reasons(counters["refused"])),
        ("visibility", "by rules" if reply["has_rules"] else "all streams"),
    ]
    screen.print(key_values(rows))
    screen.print()
    table = columns("driver", "announces on", "attach at", "streams", right=("streams",))
    for driver in reply["drivers"]:
        table.add_row(
            driver["instance_id"],
            f"{driver['announce_channel']} {driver['announce_stream_id']}",
            f"{driver['control_channel']} {driver['control_stream_id']}",
            str(driver["streams"]),
        )
    screen.print(table)


def _reasons(counts: Number | dict[str, Number]) -> str:
    if not isinstance(counts, dict):
        return f"{counts:,}"
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count) or "none"
