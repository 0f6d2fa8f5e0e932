"""`tensorpool bridge`: runs a bridge between hosts, and shows the status of its mappings."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.text import Text

from .. import context
from ..bridge.config import BridgeSettings
from ..bridge.faults import DriverIds, driver_faults, host_faults
from ..bridge.seal import KeyFile, add_key, create_key_file, promote_key, retire_keys
from ..bridge.service import BridgeStatus, MappingRow
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
  tensorpool bridge keygen bridge.key
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

_KEYGEN = """
\b
Examples:
  tensorpool bridge keygen bridge.key
  tensorpool bridge keygen bridge.key --add
  tensorpool bridge keygen bridge.key --promote
  tensorpool bridge keygen bridge.key --retire
"""

_STATUS = """
\b
Examples:
  tensorpool bridge status
  tensorpool bridge status --instance lab --json
"""


def _ids_in_use(config: Config) -> dict[str, int]:
    """The Aeron stream ids of this host, by setting."""
    aeron, service = config[AeronSettings], config[ServiceSettings].streams()
    ids = {
        f"aeron.{name}_stream_id": getattr(aeron, f"{name}_stream_id")
        for name in ("control", "announce", "descriptor", "qos", "metadata")
    }
    ids |= {"the services' control stream": service.control, "the services' status stream": service.status}
    return ids


def _driver_ids(config: Config) -> DriverIds | None:
    """The ids of the driver of the same file; None if the file configures none."""
    driver = config[DriverSettings]
    if driver == DriverSettings():
        return None
    return DriverIds(
        static=frozenset(stream.stream_id for stream in driver.streams),
        dynamic=driver.dynamic_ids,
        bridges=driver.bridge_ids,
        any_stream=driver.any_stream,
    )


def _check(config: Config) -> None:
    settings = config[BridgeSettings]
    faults = [*host_faults(settings, _ids_in_use(config))]
    if (driver := _driver_ids(config)) is not None:
        faults += driver_faults(settings, driver)
    if settings.key_file is not None:
        KeyFile.read(settings.key_file)
    if faults:
        raise ConfigError("; ".join(f"bridge.{key}: {reason}" for key, reason in faults))


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def bridge() -> None:
    """Publish streams of one host on another, over Aeron UDP.

    Without a verb, `run`. Consumers of the destination need no other code. Network loss drops whole frames,
    and the ledger counts each of them.
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
    """Run a bridge instance until SIGTERM or Ctrl-C.

    Both ends may use one file: start the receiver with --direction receive, or set the direction of each
    mapping.
    """
    from ..bridge import BridgeAgent

    with context.open(config=config) as ctx:

        def make_agent() -> BridgeAgent:
            return BridgeAgent(ctx, config[BridgeSettings], service_token=config[ServiceSettings].token)

        run_role("bridge", config, make_agent)


@bridge.command(epilog=_KEYGEN)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--add", "step", flag_value="add", help="Add a key that is accepted, and not yet in use.")
@click.option("--promote", "step", flag_value="promote", help="Use the last key; the others stay accepted.")
@click.option("--retire", "step", flag_value="retire", help="Remove all keys but the one in use.")
@click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")
def keygen(file: Path, step: str | None, json_output: bool) -> None:
    """Make the key file that both ends of a bridge share, or change its keys.

    Without an option it makes FILE, private to you, with one random key. To change the key of running
    bridges: --add, copy the file to both hosts; --promote, copy; --retire, copy. Bridges read a changed file
    by themselves, within a second. The text shows names of keys, never the keys.
    """
    changed = {
        None: create_key_file,
        "add": add_key,
        "promote": promote_key,
        "retire": retire_keys,
    }[step](file)
    if json_output:
        click.echo(json.dumps({"file": str(file), "key_ids": changed.ids}))
        return
    for number, name in enumerate(changed.ids):
        click.echo(f"{name}  {'in use' if number == 0 else 'accepted'}")


@bridge.command(epilog=_STATUS)
@click.option("--instance", help="Instance id of the bridge, if several run on this host.")
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """Show the mappings and the ledgers of their frames.

    The receiver joins the ledgers of both ends: published = delivered + dropped by sender, network and
    receiver.
    """
    reply = _fetch_status(to, instance)
    if to.json_output:
        click.echo(json.dumps(reply, indent=2))
        return
    headings = ("stream", "to", "", "published", "delivered", "sender", "network", "receiver", "why")
    right = ("stream", "to", "published", "delivered", "sender", "network", "receiver")
    table = columns(*headings, right=right)
    for row in reply["mappings"]:
        table.add_row(*_cells(row))
    console().print(table)


def _fetch_status(to: ConnectOptions, instance: str | None) -> BridgeStatus:
    try:
        with to.client(f"bridge:{instance}" if instance else "bridge") as client:
            reply: BridgeStatus = client.call("status")
            while len(reply["mappings"]) < reply["total"]:
                more = client.call("status", {"first": len(reply["mappings"])})["mappings"]
                if not more:
                    break
                reply["mappings"] += more
            return reply
    except NoSuchService:
        raise NoSuchService(
            "no bridge runs on this media driver; start one with tensorpool bridge --config FILE"
        ) from None


def _cells(row: MappingRow) -> list[Text | str]:
    source, dest = str(row["source_stream_id"]), str(row["dest_stream_id"] or "?")
    reasons = dict(row["dropped"])
    if row["direction"] == "send":
        dropped = sum(row["dropped"].values())
        cells = [str(row["published"]), "", str(dropped), "", ""]
    else:
        reasons |= row["incomplete"]
        joined = row["ledger"]
        if joined is None:
            cells = ["", str(row["delivered"]), "", "", str(sum(row["dropped"].values()))]
        else:
            drops = joined["dropped"]
            counts = (
                joined["published"],
                joined["delivered"],
                drops["sender"],
                drops["network"],
                drops["receiver"],
            )
            cells = [str(count) for count in counts]
    state = "→" if row["connected"] else "not connected"
    why = ", ".join(f"{name} {n}" for name, n in reasons.items()) or (
        "" if row["direction"] == "send" else row["fault"]
    )
    return [source, dest, Text(f"{row['direction']} {state}", style=DIM), *cells, why]
