"""`tensorpool discover`: which streams there are, by name, tags and ids."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..context import Context
from ..discovery import StreamFound
from ..errors import DiscoveryError
from .connection import Connection, connection_options
from .screen import DIM, columns, console, size_text

_ID = click.IntRange(0, 0xFFFF_FFFE)
_EPILOG = """
\b
Examples:
  tensorpool discover
  tensorpool discover --name camera-1
  tensorpool discover --tag lab --tag calibrated --json
  tensorpool discover --watch
"""


@click.command(epilog=_EPILOG)
@click.option("--name", help="The stream of exactly this name.")
@click.option("--tag", "tags", multiple=True, help="Streams that have this tag. Repeat it: all of them.")
@click.option("--stream", "stream_id", type=_ID, help="The stream of this id.")
@click.option("--producer", "producer_id", type=_ID, help="Streams of this producer; 0: without one.")
@click.option("--source", "data_source_id", type=click.IntRange(0), help="Streams of this data source.")
@click.option("--watch", is_flag=True, help="Go on, and tell of arrivals, changes and ends until Ctrl-C.")
@click.option(
    "--period", default=1.0, show_default=True, type=click.FloatRange(0.05), help="Seconds between two looks."
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after so many lines.")
@connection_options
def discover(to: Connection, watch: bool, period: float, count: int | None, **wanted: Any) -> None:
    """Find streams by all that is given; without anything, all streams.

    Asks the driver of this media driver, or the registries that `[discovery]` of the configuration names.
    Exit status 1 if no stream fits.
    """
    with to.context() as ctx:
        if watch:
            _watch(ctx, to, period, count, wanted)
            return
        found = ctx.discover(timeout=to.timeout, **wanted)
    if to.as_json:
        click.echo(json.dumps([one.as_json() for one in found], indent=2))
    elif found:
        console().print(_table(found))
    if not found:
        click.echo("no stream fits", err=True)
        raise SystemExit(1)


def _table(found: list[StreamFound]) -> Table:
    table = columns(
        "stream", "name", "tags", "source", "driver", "slots", "pools", "producer", right=("stream",)
    )
    for one in found:
        table.add_row(
            str(one.stream_id),
            Text(one.name.encode("utf-8", "backslashreplace").decode()),
            Text(" ".join(sorted(one.tags)).encode("utf-8", "backslashreplace").decode()),
            "" if one.data_source_id is None else str(one.data_source_id),
            one.driver_instance_id,
            str(one.nslots),
            " ".join(size_text(stride) for stride in one.pools),
            str(one.producer_id) if one.has_producer else Text("none", style=DIM),
        )
    return table


def _watch(ctx: Context, to: Connection, period: float, count: int | None, wanted: dict[str, Any]) -> None:
    lines = 0
    try:
        for what, one in _changes(ctx, to.timeout, period, wanted):
            if to.as_json:
                row = {"time_ns": str(time.time_ns()), "change": what, **one.as_json()}
                click.echo(json.dumps(row))
            else:
                producer = f"producer {one.producer_id}" if one.has_producer else "no producer"
                click.echo(f"{what:<7} {one}, epoch {one.epoch}, {producer}")
            sys.stdout.flush()
            lines += 1
            if lines == count:
                return
    except KeyboardInterrupt:
        return


def _changes(
    ctx: Context, timeout: float, period: float, wanted: dict[str, Any]
) -> Iterator[tuple[str, StreamFound]]:
    """(arrived, changed or gone, stream), from look to look."""
    known: dict[tuple[str, int], StreamFound] = {}
    is_lost = False
    while True:
        try:
            there = {one.key: one for one in ctx.discover(timeout=timeout, **wanted)}
        except DiscoveryError as error:
            # A driver or registry that is restarted: what it knew is not gone for that.
            if not is_lost:
                click.echo(f"{error}; still asking", err=True)
            is_lost = True
            continue
        is_lost = False
        for key, one in there.items():
            if key not in known:
                yield "arrived", one
            elif known[key] != one:
                yield "changed", one
        for key in known.keys() - there.keys():
            yield "gone", known[key]
        known = there
        time.sleep(period)
