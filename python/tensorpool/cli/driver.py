"""`tensorpool driver`: run the SHM driver, look at one that runs, steer it.

Leases as a table, wherever a command shows them.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..discovery import DiscoverySettings
from ..driver import DriverAgent, DriverSettings, other_driver, read_holder
from ..driver.client import SERVICE, all_rows
from ..errors import NoSuchService, ServiceTimeout
from ..runtime.config import Config
from ..runtime.role import run_role
from ..service import ServiceClient
from ..service.config import ServiceSettings
from .options import ConnectOptions, connect_options, role_options, token_option
from .output import DIM, columns, console, format_bytes, format_duration, key_values, size_literal
from .params import DefaultRunGroup, StreamId


def leases_table(leases: list[dict[str, Any]], *, with_stream: bool = False, are_over: bool = False) -> Table:
    """Rows of `leases()` of `service:driver`."""
    heads = ["lease", *(["stream"] if with_stream else []), "role", "client", "state", "held for"]
    heads += [] if are_over else ["left"]
    table = columns(*heads, right=("stream", "client", "held for", "left"))
    for one in leases:
        row = [str(one["lease_id"]), *([str(one["stream_id"])] if with_stream else [])]
        row += [one["role"], str(one["client_id"]), one["state"], format_duration(one["age_s"])]
        if not are_over:
            row.append("" if one["expires_in_s"] is None else format_duration(one["expires_in_s"]))
        table.add_row(*row)
    return table


_STREAM_ID = StreamId()
_CLIENT_ID = click.IntRange(1, 0xFFFF_FFFE)

_EPILOG = """
\b
Examples:
  tensorpool driver --config /etc/tensorpool.toml
  tensorpool driver run --set shm.namespace=lab --set driver.mlock=true
  tensorpool driver status
  tensorpool driver leases --stream 20000
  TENSORPOOL_TOKEN=… tensorpool driver revoke --stream 20000
  TENSORPOOL_TOKEN=… tensorpool driver stop
"""

_RUN = """
\b
Examples:
  tensorpool driver run
  tensorpool driver run --config /etc/tensorpool.toml --check
  tensorpool driver run --config lab.toml --set aeron.dir=/dev/shm/aeron-lab
"""

_STREAMS = """
\b
Examples:
  tensorpool driver streams
  tensorpool driver streams --json | jq '.[] | select(.producer == null)'
"""

_LEASES = """
\b
Examples:
  tensorpool driver leases
  tensorpool driver leases --stream 20000 --json
"""

_REVOKE = """
\b
Examples:
  export TENSORPOOL_TOKEN=…
  tensorpool driver revoke 1298074214633706
  tensorpool driver revoke --stream 20000 --reason "memory is needed"
  tensorpool driver revoke --client 3663394431
"""

_STOP = """
\b
Examples:
  TENSORPOOL_TOKEN=… tensorpool driver stop
  TENSORPOOL_TOKEN=… tensorpool driver stop --reason "new kernel"
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def driver() -> None:
    """Run the SHM driver, which owns the memory of all streams; look at it and steer it.

    Without a verb it runs. The others speak to one that runs, in whatever process, over its media driver.
    """


@driver.command(epilog=_RUN)
@role_options(ContextSettings, AeronSettings, ShmSettings, ServiceSettings, DriverSettings, DiscoverySettings)
def run(config: Config) -> None:
    """Run the driver here until SIGTERM or Ctrl-C.

    Starts a media driver too where none runs, unless `aeron.media_driver` is "external". Streams, quotas
    and who may map what are in the table `[driver]` of the configuration.
    """
    # Stand-alone, for the driver's own connection: it needs no lease from anybody.
    with context.open(mode="standalone", config=config) as ctx:

        def make_agent() -> DriverAgent:
            return DriverAgent(
                ctx.connection.conductor,
                settings=config[DriverSettings],
                namespace=ctx.namespace,
                base_dir=Path(config[ShmSettings].base_dir),
                aeron_dir=ctx.aeron_dir,
                stream_ids=ctx.stream_ids,
                service_streams=ctx.service_streams,
                service_token=config[ServiceSettings].token,
                announce_period_ns=config[AeronSettings].announce_period_ns,
                embedded=False,
                discovery=config[DiscoverySettings],
            )

        _allow_many_files()
        run_role("driver", config, make_agent)


def _instance(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--instance", help="The driver's instance id, where it has one.")(command)


@contextmanager
def _client(to: ConnectOptions, instance: str | None, token: str | None = None) -> Iterator[ServiceClient]:
    try:
        with to.client(f"{SERVICE}:{instance}" if instance else SERVICE, token) as client:
            yield client
    except NoSuchService:
        raise NoSuchService(
            "no SHM driver answers on this media driver: start one with tensorpool driver, or see "
            "tensorpool doctor"
        ) from None


@driver.command(epilog="\b\nExamples:\n  tensorpool driver status\n  tensorpool driver status --json\n")
@_instance
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """The driver as a whole: whose it is, where, how much it holds."""
    with _client(to, instance) as client:
        found: dict[str, Any] = client.call("status")
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
        return
    screen = console()
    kind = "embedded in a program" if found["embedded"] else "a service"
    quota = "" if found["quota"] is None else f" of {format_bytes(found['quota'])}"
    rows: list[tuple[str, Any]] = [
        ("driver", f"process {found['pid']} of {found['user']}, {kind}"),
        ("namespace", ".".join(filter(None, (found["namespace"], found["instance"])))),
        ("up for", format_duration(found["uptime_s"])),
        ("regions", found["base_dir"]),
        ("media driver", f"{found['aeron_dir']}, control stream {found['control_stream_id']}"),
        (
            "leases end",
            f"after {found['grace']} missed keepalives of {format_duration(found['keepalive_s'])}",
        ),
        ("announces", f"every {format_duration(found['announce_period_s'])}"),
        ("streams", found["streams"]),
        ("leases", found["leases"]),
        ("memory", f"{format_bytes(found['bytes'])}{quota}"),
    ]
    screen.print(key_values(rows))
    if counted := [
        (name, words)
        for name, value in found["counters"].items()
        if name not in found and (words := _counted(value))
    ]:
        screen.print()
        screen.print(key_values(counted))


@driver.command(epilog=_STREAMS)
@_instance
@connect_options
def streams(to: ConnectOptions, instance: str | None) -> None:
    """Every stream that the driver knows, with or without memory at the moment."""
    with _client(to, instance) as client:
        found = all_rows(client, "streams")
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
    elif not found:
        click.echo("the driver has no streams; they come with the first producer", err=True)
    else:
        heads = ("stream", "name", "kind", "state", "slots", "pools", "memory", "producer", "consumers")
        table = columns(*heads, right=("stream", "slots", "memory", "consumers"))
        for one in found:
            table.add_row(
                str(one["stream_id"]),
                one["name"],
                one["kind"],
                one["state"],
                str(one["nslots"]),
                " ".join(size_literal(stride) for stride in one["pools"]),
                format_bytes(one["bytes"]),
                Text("none", style=DIM) if one["producer"] is None else str(one["producer"]),
                str(one["consumers"]),
            )
        console().print(table)


@driver.command(epilog=_LEASES)
@click.option("--stream", "stream_id", type=_STREAM_ID, help="Only those of this stream.")
@_instance
@connect_options
def leases(to: ConnectOptions, instance: str | None, stream_id: int | None) -> None:
    """Who holds leases, and for how long."""
    with _client(to, instance) as client:
        found = all_rows(client, "leases", stream_id=stream_id)
    _show_leases(found, to.as_json, "nobody holds a lease")


@driver.command(epilog=_REVOKE)
@click.argument("lease_id", metavar="[LEASE]", required=False, type=click.IntRange(0, (1 << 64) - 1))
@click.option("--stream", "stream_id", type=_STREAM_ID, help="All leases of this stream.")
@click.option("--client", "client_id", type=_CLIENT_ID, help="The lease of this client.")
@click.option("--reason", default="", help="Told to whoever loses a lease.")
@token_option
@_instance
@connect_options
def revoke(
    to: ConnectOptions,
    instance: str | None,
    token: str | None,
    lease_id: int | None,
    stream_id: int | None,
    client_id: int | None,
    reason: str,
) -> None:
    """Take back the leases that fit all that is given; prints them. Their holders may attach again.

    Needs the token of `[service]` in the driver's configuration. Exit status 1 if none fits.
    """
    given = {"stream_id": stream_id, "client_id": client_id}
    chosen = {name: value for name, value in given.items() if value is not None}
    if lease_id is not None:
        # JSON readers may round what does not fit 53 bits.
        chosen["lease_id"] = str(lease_id)  # type: ignore[assignment]
    if not chosen:
        raise click.UsageError("say which: a LEASE, --stream or --client (tensorpool driver leases)")
    with _client(to, instance, token) as client:
        found = client.call("revoke", {**chosen, "reason": reason})
    _show_leases(found, to.as_json, "no lease fits: nothing was revoked", are_over=True)
    if not found:
        raise SystemExit(1)


@driver.command(epilog=_STOP)
@click.option("--reason", default="", help="Told to everybody who is attached.")
@token_option
@_instance
@connect_options
def stop(to: ConnectOptions, instance: str | None, token: str | None, reason: str) -> None:
    """Stop the driver in good order, and wait until it is gone: clients are told, all its memory goes.

    Needs the token of `[service]` in the driver's configuration.
    """
    with _client(to, instance, token) as client:
        found = client.call("status")
        told = client.call("stop", {"reason": reason})
        place = (Path(found["base_dir"]), found["namespace"], found["instance"])
        deadline = time.monotonic() + to.timeout
        control = (found["aeron_dir"], found["control_stream_id"])
        # The lock is its user's own; the counter is there for everybody.
        while told["pid"] in {one.pid for one in (read_holder(*place), other_driver(*control)) if one}:
            if time.monotonic() > deadline:
                raise ServiceTimeout(
                    f"process {told['pid']} was told to stop, and is not gone in {to.timeout:g} s"
                )
            time.sleep(0.01)
    if to.as_json:
        click.echo(json.dumps(told))
    else:
        click.echo(f"driver stopped, process {told['pid']}; {told['leases']} leases ended")


def _allow_many_files() -> None:
    """Two descriptors a stream: the usual soft limit would end it at five hundred."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _counted(value: int | dict[str, int]) -> str:
    """One counter, or one for each reason; nothing for zeros."""
    if isinstance(value, dict):
        return ", ".join(f"{reason} {count:,}" for reason, count in value.items() if count)
    return f"{value:,}" if value else ""


def _show_leases(found: list[dict[str, Any]], as_json: bool, nothing: str, *, are_over: bool = False) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        console().print(leases_table(found, with_stream=True, are_over=are_over))
    else:
        click.echo(nothing, err=True)
