"""`tensorpool bridge`: carry streams between hosts, and see what became of their frames."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.text import Text

from .. import context
from ..bridge.config import BridgeSettings
from ..bridge.mappings import host_faults
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..driver import DriverSettings
from ..errors import ConfigError, NoSuchService
from ..runtime.config import Config
from ..runtime.role import run_role
from ..service.config import ServiceSettings
from .options import ConnectOptions, connect_options, role_options
from .output import DIM, columns, console
from .params import DefaultRunGroup

_EPILOG = """
\b
Examples:
  tensorpool bridge --config bridge.toml
  tensorpool bridge run --config bridge.toml --check
  tensorpool bridge run --config bridge.toml --direction receive
  tensorpool bridge status
  tensorpool bridge status --json
"""

_RUN = """
\b
Examples:
  tensorpool bridge run --config bridge.toml
  tensorpool bridge run --config bridge.toml --direction receive
  tensorpool bridge run --config bridge.toml --check
"""

_STATUS = """
\b
Examples:
  tensorpool bridge status
  tensorpool bridge status --instance lab --json
"""


def _ids_in_use(config: Config) -> dict[str, int]:
    aeron, service = config[AeronSettings], config[ServiceSettings].streams()
    known = {
        f"aeron.{name}_stream_id": getattr(aeron, f"{name}_stream_id")
        for name in ("control", "announce", "descriptor", "qos", "metadata")
    }
    known |= {"the services' control stream": service.control, "the services' status stream": service.status}
    return known


def _static_ids(config: Config) -> dict[str, int]:
    """Streams that the driver of the same file always has: they are no place for dynamic destinations."""
    ids = config[BridgeSettings].dest_stream_id_range
    streams = config[DriverSettings].streams if ids is not None else ()
    return {f"driver.streams[{n}].stream_id": one.stream_id for n, one in enumerate(streams)}


def _check(config: Config) -> None:
    settings = config[BridgeSettings]
    faults = [*host_faults(settings, _ids_in_use(config))]
    # A destination that is named may well be one that the driver has configured.
    faults += [one for one in host_faults(settings, _static_ids(config)) if one[0] != "mappings"]
    if faults:
        raise ConfigError("; ".join(f"bridge.{key}: {reason}" for key, reason in faults))


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def bridge() -> None:
    """Carry streams between hosts over Aeron UDP.

    Without a verb it runs. A consumer at the other end uses the same code as at this one; what the network
    loses costs whole frames, and every one of them is accounted for.
    """


@bridge.command(epilog=_RUN)
@role_options(
    ContextSettings,
    AeronSettings,
    ShmSettings,
    ServiceSettings,
    DriverSettings,
    BridgeSettings,
    also=_check,
)
def run(config: Config) -> None:
    """Run the bridge here until SIGTERM or Ctrl-C.

    Both ends may use one file: the one that receives is started with --direction receive, or says so in its
    mappings.
    """
    from ..bridge import BridgeAgent

    with context.open(config=config) as ctx:

        def make_agent() -> BridgeAgent:
            return BridgeAgent(ctx, config[BridgeSettings], service_token=config[ServiceSettings].token)

        run_role("bridge", config, make_agent)


@bridge.command(epilog=_STATUS)
@click.option("--instance", help="The bridge's instance id, where several run on this host.")
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """What crosses, and what became of every frame.

    At the receiving end both ends are joined: published = delivered + dropped by the sender, on the way, by
    the receiver.
    """
    found = _status(to, instance)
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
        return
    heads = ("stream", "to", "", "published", "delivered", "sender", "network", "receiver", "why")
    right = ("stream", "to", "published", "delivered", "sender", "network", "receiver")
    table = columns(*heads, right=right)
    for row in found["mappings"]:
        table.add_row(*_cells(row))
    console().print(table)


def _status(to: ConnectOptions, instance: str | None) -> dict[str, Any]:
    try:
        with to.client(f"bridge:{instance}" if instance else "bridge") as client:
            found: dict[str, Any] = client.call("status")
            while len(found["mappings"]) < found["total"]:
                more = client.call("status", {"first": len(found["mappings"])})["mappings"]
                if not more:
                    break
                found["mappings"] += more
            return found
    except NoSuchService:
        raise NoSuchService(
            "no bridge answers on this media driver: start one with tensorpool bridge --config FILE"
        ) from None


def _cells(row: dict[str, Any]) -> list[Text | str]:
    source, dest = str(row["source_stream_id"]), str(row["dest_stream_id"] or "?")
    why = dict(row["dropped"])
    if row["direction"] == "send":
        dropped = sum(row["dropped"].values())
        cells = [str(row["published"]), "", str(dropped), "", ""]
    else:
        why |= row["incomplete"]
        joined = row["ledger"]
        if joined is None:
            cells = ["", str(row["delivered"]), "", "", str(sum(row["dropped"].values()))]
        else:
            drops = joined["dropped"]
            cells = [
                joined["published"],
                joined["delivered"],
                drops["sender"],
                drops["network"],
                drops["receiver"],
            ]
            cells = [str(one) for one in cells]
    state = "→" if row["connected"] else "(silent)"
    reasons = ", ".join(f"{name} {n}" for name, n in why.items()) or row.get("fault", "")
    return [source, dest, Text(f"{row['direction']} {state}", style=DIM), *cells, reasons]
