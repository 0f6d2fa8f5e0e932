"""`tensorpool discover`: the streams of drivers and registries, by name, tags and ids.

With `--watch` on a terminal it is a table that shows recent changes; elsewhere a line for each change.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

import click
from rich.table import Table
from rich.text import Text

from ..context import Context
from ..discovery import DiscoveredStream
from ..errors import DiscoveryError
from ..text import safe_text
from ..units import MAX_U32
from .options import ConnectOptions, connect_options
from .output import DIM, GOOD, WARN, columns, console, echo, format_duration, size_literal

Change = tuple[str, DiscoveredStream]
ARRIVED, CHANGED, GONE = "arrived", "changed", "gone"
HEADINGS: Final = ("stream", "name", "tags", "source", "driver", "slots", "pools", "producer")
_STYLES: Final = {ARRIVED: GOOD, CHANGED: WARN, GONE: DIM}
_NEWS_S: Final = 10.0
"""How long the table shows a change, and keeps the row of a stream that has gone."""
_ID: Final = click.IntRange(0, MAX_U32)
_EPILOG = """
\b
Examples:
  tensorpool discover
  tensorpool discover --name camera-1
  tensorpool discover --tag lab --tag calibrated --json
  tensorpool discover --watch
"""


def cells(stream: DiscoveredStream) -> list[str | Text]:
    """The cells of a stream's row."""
    return [
        str(stream.stream_id),
        Text(safe_text(stream.name)),
        Text(safe_text(" ".join(sorted(stream.tags)))),
        "" if stream.data_source_id is None else str(stream.data_source_id),
        stream.driver_instance_id,
        str(stream.nslots),
        " ".join(size_literal(stride) for stride in stream.pools),
        str(stream.producer_id) if stream.has_producer else Text("none", style=DIM),
    ]


def changes_between(before: Iterable[DiscoveredStream], after: Iterable[DiscoveredStream]) -> list[Change]:
    """The streams that have arrived, changed or gone between two results."""
    old = {stream.key: stream for stream in before}
    new = {stream.key: stream for stream in after}
    changes = [(ARRIVED, stream) for key, stream in new.items() if key not in old]
    changes += [(CHANGED, stream) for key, stream in new.items() if key in old and old[key] != stream]
    return changes + [(GONE, stream) for key, stream in old.items() if key not in new]


@dataclass(slots=True)
class _Row:
    stream: DiscoveredStream
    change: str
    since_s: float


class DiscoveryTable:
    """The discovered streams and their latest changes. Pure: callers pass the time."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], _Row] = {}
        self._is_first = True
        self.problem = ""
        """Why the last request failed; the rows stay as they were."""

    def update(self, changes: Iterable[Change], now_s: float) -> None:
        """Applies changes, and removes the rows of streams that went some time ago."""
        for change, stream in changes:
            # Streams of the first result did not arrive: they existed before.
            self._rows[stream.key] = _Row(stream, "" if self._is_first else change, now_s)
        self._is_first = False
        oldest = now_s - _NEWS_S
        self._rows = {
            key: row for key, row in self._rows.items() if not (row.change == GONE and row.since_s < oldest)
        }

    def table(self, now_s: float) -> Table:
        """The rows, with the age of recent changes."""
        table = columns(*HEADINGS, "", right=("stream",))
        for _, row in sorted(self._rows.items()):
            age_s = now_s - row.since_s
            is_recent = bool(row.change) and age_s <= _NEWS_S
            news = f"{row.change} {format_duration(max(age_s, 0.0))} ago" if is_recent else ""
            table.add_row(*cells(row.stream), news, style=_STYLES[row.change] if is_recent else None)
        count = sum(row.change != GONE for row in self._rows.values())
        table.caption = self.problem or f"{count} streams; Ctrl-C ends"
        table.caption_justify = "left"
        return table


class StreamQuery(TypedDict):
    """What a stream has to match, as options of the command; None and (): any."""

    name: str | None
    tags: tuple[str, ...]
    stream_id: int | None
    producer_id: int | None
    data_source_id: int | None


@click.command(epilog=_EPILOG)
@click.option("--name", help="The stream of exactly this name.")
@click.option("--tag", "tags", multiple=True, help="Streams that have this tag. Repeat it: all of them.")
@click.option("--stream", "stream_id", type=_ID, help="The stream of this id.")
@click.option("--producer", "producer_id", type=_ID, help="Streams of this producer; 0: without one.")
@click.option("--source", "data_source_id", type=click.IntRange(0), help="Streams of this data source.")
@click.option("--watch", is_flag=True, help="Continue, and show arrivals, changes and ends until Ctrl-C.")
@click.option(
    "--period",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.05),
    help="Seconds between two requests.",
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after this many lines.")
@connect_options
def discover(
    to: ConnectOptions, watch: bool, period: float, count: int | None, **query: Unpack[StreamQuery]
) -> None:
    """Find the streams that match all options; without options, all streams.

    Asks the driver of this media driver, or the registries that `[discovery]` of the configuration names.
    Exit status 1 if no stream matches.
    """
    with to.context() as ctx:
        if watch:
            _watch(ctx, to, period, count, query)
            return
        streams = ctx.discover(timeout=to.timeout, **query)
    if to.json_output:
        click.echo(json.dumps([stream.to_json() for stream in streams], indent=2))
    elif streams:
        console().print(_table(streams))
    if not streams:
        click.echo("no stream matches", err=True)
        raise SystemExit(1)


def _table(streams: list[DiscoveredStream]) -> Table:
    table = columns(*HEADINGS, right=("stream",))
    for stream in streams:
        table.add_row(*cells(stream))
    return table


def _watch(ctx: Context, to: ConnectOptions, period: float, count: int | None, query: StreamQuery) -> None:
    results = _poll(ctx, to.timeout, period, query)
    try:
        if sys.stdout.isatty() and not to.json_output and count is None:
            _show_table(results)
        else:
            _print_changes(results, count, json_output=to.json_output)
    except KeyboardInterrupt:
        return


def _show_table(results: Iterator[list[Change] | DiscoveryError]) -> None:
    """A live table, for a terminal."""
    from rich.live import Live

    table, screen = DiscoveryTable(), console()
    with Live(console=screen, auto_refresh=False) as live:
        for result in results:
            now_s = time.monotonic()
            if isinstance(result, DiscoveryError):
                table.problem = f"{result}; still asking"
            else:
                table.problem = ""
                table.update(result, now_s)
            live.update(table.table(now_s), refresh=True)


def _print_changes(
    results: Iterator[list[Change] | DiscoveryError], count: int | None, *, json_output: bool
) -> None:
    """A line for each change, for programs and files."""
    lines, has_failed = 0, False
    for result in results:
        if isinstance(result, DiscoveryError):
            if not has_failed:
                echo(f"{result}; still asking", err=True)
            has_failed = True
            continue
        has_failed = False
        for change, stream in result:
            if json_output:
                row = {"time_ns": str(time.time_ns()), "change": change, **stream.to_json()}
                click.echo(json.dumps(row))
            else:
                producer = f"producer {stream.producer_id}" if stream.has_producer else "no producer"
                echo(f"{change:<7} {stream}, epoch {stream.epoch}, {producer}")
            sys.stdout.flush()
            lines += 1
            if lines == count:
                return


def _poll(
    ctx: Context, timeout: float, period: float, query: StreamQuery
) -> Iterator[list[Change] | DiscoveryError]:
    """The changes since the previous result, or the error of a request; once a period."""
    known: list[DiscoveredStream] = []
    while True:
        try:
            streams = ctx.discover(timeout=timeout, **query)
        except DiscoveryError as error:
            # The driver or registry may be restarting: its streams have not gone for that.
            yield error
        else:
            yield changes_between(known, streams)
            known = streams
            time.sleep(period)
