"""`tensorpool discover`: which streams there are, by name, tags and ids."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table

from ..context import Context
from ..discovery import DiscoveredStream
from ..errors import DiscoveryError
from .connection import Connection, connection_options
from .discover_picture import HEADS, Change, Picture, cells, changes_between
from .screen import columns, console

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


def _table(found: list[DiscoveredStream]) -> Table:
    table = columns(*HEADS, right=("stream",))
    for one in found:
        table.add_row(*cells(one))
    return table


def _watch(ctx: Context, to: Connection, period: float, count: int | None, wanted: dict[str, Any]) -> None:
    looks = _looks(ctx, to.timeout, period, wanted)
    try:
        if sys.stdout.isatty() and not to.as_json and count is None:
            _draw(looks)
        else:
            _tell(looks, count, as_json=to.as_json)
    except KeyboardInterrupt:
        return


def _draw(looks: Iterator[list[Change] | DiscoveryError]) -> None:
    """A picture for a person who looks on."""
    from rich.live import Live

    picture, screen = Picture(), console()
    with Live(console=screen, auto_refresh=False) as live:
        for found in looks:
            now_s = time.monotonic()
            if isinstance(found, DiscoveryError):
                picture.trouble = f"{found}; still asking"
            else:
                picture.trouble = ""
                picture.look(found, now_s)
            live.update(picture.table(now_s), refresh=True)


def _tell(looks: Iterator[list[Change] | DiscoveryError], count: int | None, *, as_json: bool) -> None:
    """A line for each change: for programs, files, and a count of them."""
    lines, is_lost = 0, False
    for found in looks:
        if isinstance(found, DiscoveryError):
            if not is_lost:
                click.echo(f"{found}; still asking", err=True)
            is_lost = True
            continue
        is_lost = False
        for what, one in found:
            if as_json:
                row = {"time_ns": str(time.time_ns()), "change": what, **one.as_json()}
                click.echo(json.dumps(row))
            else:
                producer = f"producer {one.producer_id}" if one.has_producer else "no producer"
                click.echo(f"{what:<7} {one}, epoch {one.epoch}, {producer}")
            sys.stdout.flush()
            lines += 1
            if lines == count:
                return


def _looks(
    ctx: Context, timeout: float, period: float, wanted: dict[str, Any]
) -> Iterator[list[Change] | DiscoveryError]:
    """What has changed from look to look; or why nobody could be asked."""
    known: list[DiscoveredStream] = []
    while True:
        try:
            there = ctx.discover(timeout=timeout, **wanted)
        except DiscoveryError as error:
            # A driver or registry that is restarted: what it knew is not gone for that.
            yield error
        else:
            yield changes_between(known, there)
            known = there
            time.sleep(period)
