"""`tensorpool discover`: which streams there are, by name, tags and ids.

`tensorpool discover --watch` on a terminal: a table that goes on, where what has just happened is told.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from ..context import Context
from ..discovery import DiscoveredStream
from ..errors import DiscoveryError
from .options import ConnectOptions, connect_options
from .output import DIM, GOOD, WARN, columns, console, format_duration, size_text

Change = tuple[str, DiscoveredStream]
ARRIVED, CHANGED, GONE = "arrived", "changed", "gone"
HEADS: Final = ("stream", "name", "tags", "source", "driver", "slots", "pools", "producer")
_STYLES: Final = {ARRIVED: GOOD, CHANGED: WARN, GONE: DIM}
_TOLD_S: Final = 10.0
"""How long a table says what has happened, and keeps a row for what is gone."""


def cells(one: DiscoveredStream) -> list[str | Text]:
    """A stream's row."""
    return [
        str(one.stream_id),
        Text(one.name.encode("utf-8", "backslashreplace").decode()),
        Text(" ".join(sorted(one.tags)).encode("utf-8", "backslashreplace").decode()),
        "" if one.data_source_id is None else str(one.data_source_id),
        one.driver_instance_id,
        str(one.nslots),
        " ".join(size_text(stride) for stride in one.pools),
        str(one.producer_id) if one.has_producer else Text("none", style=DIM),
    ]


def changes_between(before: Iterable[DiscoveredStream], after: Iterable[DiscoveredStream]) -> list[Change]:
    """What has arrived, changed and gone from one look to the next."""
    known, there = {one.key: one for one in before}, {one.key: one for one in after}
    found = [(ARRIVED, one) for key, one in there.items() if key not in known]
    found += [(CHANGED, one) for key, one in there.items() if key in known and known[key] != one]
    return found + [(GONE, one) for key, one in known.items() if key not in there]


@dataclass(slots=True)
class _Row:
    stream: DiscoveredStream
    what: str
    since_s: float


class DiscoveryTable:
    """The streams as they were last seen, and what became of each. Pure: the time is handed in."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], _Row] = {}
        self._is_first = True
        self.trouble = ""
        """Why nobody was asked for the moment; what was known stays."""

    def look(self, changes: Iterable[Change], now_s: float) -> None:
        for what, one in changes:
            # What was there at the first look is no news.
            self._rows[one.key] = _Row(one, "" if self._is_first else what, now_s)
        self._is_first = False
        old = now_s - _TOLD_S
        self._rows = {
            key: row for key, row in self._rows.items() if not (row.what == GONE and row.since_s < old)
        }

    def table(self, now_s: float) -> Table:
        table = columns(*HEADS, "", right=("stream",))
        for _, row in sorted(self._rows.items()):
            age_s = now_s - row.since_s
            is_news = bool(row.what) and age_s <= _TOLD_S
            said = f"{row.what} {format_duration(max(age_s, 0.0))} ago" if is_news else ""
            style = _STYLES[row.what] if is_news else None
            table.add_row(*cells(row.stream), said, style=style)
        there = sum(row.what != GONE for row in self._rows.values())
        table.caption = self.trouble or f"{there} streams; Ctrl-C ends"
        table.caption_justify = "left"
        return table


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
@connect_options
def discover(to: ConnectOptions, watch: bool, period: float, count: int | None, **wanted: Any) -> None:
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
        click.echo(json.dumps([one.to_json() for one in found], indent=2))
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


def _watch(
    ctx: Context, to: ConnectOptions, period: float, count: int | None, wanted: dict[str, Any]
) -> None:
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

    picture, screen = DiscoveryTable(), console()
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
                row = {"time_ns": str(time.time_ns()), "change": what, **one.to_json()}
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
