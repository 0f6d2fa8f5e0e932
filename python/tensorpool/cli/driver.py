"""`tensorpool driver`: run the SHM driver, show its state, control it; the table of leases."""

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
from ..context.config import AeronSettings, ShmSettings
from ..context.startup import CONTEXT_TABLES
from ..discovery import DiscoverySettings
from ..driver import DriverAgent, DriverSettings, other_driver, read_holder
from ..driver.client import SERVICE, DriverStatus, LeaseRow, lease_rows, stream_rows
from ..errors import NoSuchService, RequestRejected, ServiceTimeout
from ..runtime.config import Config
from ..runtime.counters import Number
from ..runtime.role import run_role
from ..service import ServiceClient
from ..service.config import ServiceSettings
from ..units import MAX_U32, MAX_U64
from .options import ConnectOptions, connect_options, role_options, token_option
from .output import DIM, columns, console, format_bytes, format_duration, key_values, size_literal
from .params import DefaultRunGroup, StreamId

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


_STREAM_ID = StreamId()
_CLIENT_ID = click.IntRange(1, MAX_U32)
_POLL_S = 0.01


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def driver() -> None:
    """Run the SHM driver, which owns the regions of all streams; show its state and control it.

    Without a verb the driver runs. The other commands use a running driver, in any process, by way of its
    media driver.
    """


@driver.command(epilog=_RUN)
@role_options(*CONTEXT_TABLES)
def run(config: Config) -> None:
    """Run the driver in this process until SIGTERM or Ctrl-C.

    Starts a media driver if none runs, unless `aeron.media_driver` is "external". Streams, quotas and access
    rights are in the table `[driver]` of the configuration.
    """
    # Standalone: the driver's own context needs no lease.
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
    return click.option("--instance", help="Instance id of the driver, if it has one.")(command)


@contextmanager
def _client(to: ConnectOptions, instance: str | None, token: str | None = None) -> Iterator[ServiceClient]:
    try:
        with to.client(f"{SERVICE}:{instance}" if instance else SERVICE, token) as client:
            yield client
    except NoSuchService:
        raise NoSuchService(
            "no SHM driver replies on this media driver: start one with tensorpool driver, or see "
            "tensorpool doctor"
        ) from None


@driver.command(epilog="\b\nExamples:\n  tensorpool driver status\n  tensorpool driver status --json\n")
@_instance
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """Print the driver's process, settings, memory and counters."""
    with _client(to, instance) as client:
        state: DriverStatus = client.call("status")
    if to.json_output:
        click.echo(json.dumps(state, indent=2))
        return
    screen = console()
    kind = "embedded in a program" if state["embedded"] else "a service"
    quota = "" if state["quota"] is None else f" of {format_bytes(state['quota'])}"
    rows: list[tuple[str, Any]] = [
        ("driver", f"process {state['pid']} of {state['user']}, {kind}"),
        ("namespace", ".".join(filter(None, (state["namespace"], state["instance"])))),
        ("up for", format_duration(state["uptime_s"])),
        ("regions", state["base_dir"]),
        (
            "media driver",
            f"{state['aeron_dir']}, control stream {state['control_stream_id']}",
        ),
        *([("control stream", state["control_fault"])] if state.get("control_fault") else []),
        (
            "leases end",
            f"after {state['grace']} missed keepalives of {format_duration(state['keepalive_s'])}",
        ),
        ("announces", f"every {format_duration(state['announce_period_s'])}"),
        ("streams", state["streams"]),
        ("leases", f"{state['leases']} of {state['max_leases']}"),
        ("requests", f"up to {state['max_requests_per_second']} a second are handled at once"),
        ("memory", f"{format_bytes(state['bytes'])}{quota}"),
    ]
    screen.print(key_values(rows))
    if counters := [
        (name, text)
        for name, value in state["counters"].items()
        if name not in state and (text := _counter_text(value))
    ]:
        screen.print()
        screen.print(key_values(counters))


@driver.command(epilog=_STREAMS)
@_instance
@connect_options
def streams(to: ConnectOptions, instance: str | None) -> None:
    """List all streams of the driver, with and without regions."""
    with _client(to, instance) as client:
        rows = stream_rows(client)
    if to.json_output:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("the driver has no streams; the first producer creates one", err=True)
    else:
        heads = ("stream", "name", "kind", "state", "slots", "pools", "memory", "producer", "consumers")
        table = columns(*heads, right=("stream", "slots", "memory", "consumers"))
        for row in rows:
            table.add_row(
                str(row["stream_id"]),
                row["name"],
                row["kind"],
                row["state"],
                str(row["nslots"]),
                " ".join(size_literal(stride) for stride in row["pools"]),
                format_bytes(row["bytes"]),
                Text("none", style=DIM) if row["producer"] is None else str(row["producer"]),
                str(row["consumers"]),
            )
        console().print(table)


@driver.command(epilog=_LEASES)
@click.option("--stream", "stream_id", type=_STREAM_ID, help="Only leases of this stream.")
@_instance
@connect_options
def leases(to: ConnectOptions, instance: str | None, stream_id: int | None) -> None:
    """List the leases in force."""
    with _client(to, instance) as client:
        rows = lease_rows(client, stream_id)
    _show_leases(rows, to.json_output, "no client holds a lease")


@driver.command(epilog=_REVOKE)
@click.argument("lease_id", metavar="[LEASE]", required=False, type=click.IntRange(0, MAX_U64))
@click.option("--stream", "stream_id", type=_STREAM_ID, help="All leases of this stream.")
@click.option("--client", "client_id", type=_CLIENT_ID, help="The lease of this client.")
@click.option("--reason", default="", help="Reason in the notice to the clients.")
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
    """Revoke and print the leases that match all options. Their clients may attach again.

    Needs the token of `[service]` in the driver's configuration. The exit status is 1 if no lease matches.
    """
    # Lease ids are text: JSON readers may round numbers above 53 bits.
    options = {
        "stream_id": stream_id,
        "client_id": client_id,
        "lease_id": None if lease_id is None else str(lease_id),
    }
    criteria = {name: value for name, value in options.items() if value is not None}
    if not criteria:
        raise click.UsageError("name a LEASE, --stream or --client; tensorpool driver leases lists them")
    with _client(to, instance, token) as client:
        rows: list[LeaseRow] = client.call("revoke", {**criteria, "reason": reason})
    _show_leases(rows, to.json_output, "no lease matches: nothing was revoked", are_over=True)
    if not rows:
        raise SystemExit(1)


@driver.command(epilog=_STOP)
@click.option("--reason", default="", help="Reason in the notice to the clients.")
@token_option
@_instance
@connect_options
def stop(to: ConnectOptions, instance: str | None, token: str | None, reason: str) -> None:
    """Stop the driver cleanly, and wait for its end: it sends a notice to all clients and removes all
    regions.

    Needs the token of `[service]` in the driver's configuration.
    """
    with _client(to, instance, token) as client:
        driver_status: DriverStatus = client.call("status")
        try:
            stopped = client.call("stop", {"reason": reason})
        except RequestRejected as error:
            pid = driver_status["pid"]
            without = f"kill {pid} does the same for a user who may signal it"
            if driver_status["embedded"]:
                without = f"the driver is part of the program with process id {pid}, and ends with it"
            raise RequestRejected(f"{error}; {without}") from None
        namespace = (Path(driver_status["base_dir"]), driver_status["namespace"], driver_status["instance"])
        control = (driver_status["aeron_dir"], driver_status["control_stream_id"])
        deadline = time.monotonic() + to.timeout
        # Only the driver's user can read its lock; all users can read its Aeron counter.
        while stopped["pid"] in {
            holder.pid for holder in (read_holder(*namespace), other_driver(*control)) if holder
        }:
            if time.monotonic() > deadline:
                raise ServiceTimeout(
                    f"process {stopped['pid']} accepted the command, but did not end within {to.timeout:g} "
                    "s; wait longer with --timeout"
                )
            time.sleep(_POLL_S)
    if to.json_output:
        click.echo(json.dumps(stopped))
    else:
        click.echo(f"driver stopped, process {stopped['pid']}; {stopped['leases']} leases ended")


def _allow_many_files() -> None:
    """Raises the limit of open files: two per stream, so the usual soft limit allows five hundred streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _counter_text(value: Number | dict[str, Number]) -> str:
    """One counter, or one per reason; empty for zeros."""
    if isinstance(value, dict):
        return ", ".join(f"{reason} {count:,}" for reason, count in value.items() if count)
    return f"{value:,}" if value else ""


def _show_leases(rows: list[LeaseRow], json_output: bool, empty: str, *, are_over: bool = False) -> None:
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        console().print(leases_table(rows, with_stream=True, are_over=are_over))
    else:
        click.echo(empty, err=True)


def leases_table(leases: list[LeaseRow], *, with_stream: bool = False, are_over: bool = False) -> Table:
    """The table of rows of `service:driver` `leases()`. `are_over`: the leases have ended."""
    heads = ["lease", *(["stream"] if with_stream else []), "role", "client", "state", "held for"]
    heads += [] if are_over else ["left"]
    table = columns(*heads, right=("stream", "client", "held for", "left"))
    for lease in leases:
        row = [str(lease["lease_id"]), *([str(lease["stream_id"])] if with_stream else [])]
        row += [lease["role"], str(lease["client_id"]), lease["state"], format_duration(lease["age_s"])]
        if not are_over:
            row.append("" if lease["expires_in_s"] is None else format_duration(lease["expires_in_s"]))
        table.add_row(*row)
    return table
