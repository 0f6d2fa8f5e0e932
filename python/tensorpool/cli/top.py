"""`tensorpool top`: the whole system on one page of a terminal, live."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from ..context import Context
from .options import ConnectOptions, connect_options
from .output import console
from .params import StreamId

if TYPE_CHECKING:
    from ..top.app import MonitorSource
    from ..top.page import PageState

_EPILOG = """
\b
Examples:
  tensorpool top
  tensorpool top --stream 20000
  tensorpool top --page consumers --sort drop/s
  tensorpool top --once
  COLUMNS=100 LINES=30 tensorpool top --stream 20000 --svg page.svg
  tensorpool top --once --json | jq '.streams[].producer.rate_hz'

\b
Keys: ? shows them all; q or Ctrl-C quits.
"""

_PAGES = ("streams", "consumers", "leases", "bridges", "recorders", "events")
_SECONDS = click.FloatRange(0.1, 3600)


@click.command(epilog=_EPILOG)
@click.option("--page", "first", type=click.Choice(_PAGES), default="streams", help="Where to begin.")
@click.option("--stream", "stream_id", type=StreamId(), help="Begin with its details.")
@click.option("--sort", metavar="COLUMN", help="By a column of the page, as in --sort fps.")
@click.option("--filter", "words", default="", help="Only rows that have these words.")
@click.option("--period", default=1.0, show_default=True, type=_SECONDS, help="Seconds between two looks.")
@click.option("--no-picture", is_flag=True, help="Begin without the picture of the newest frame.")
@click.option("--once", is_flag=True, help="Print one look, and end.")
@click.option(
    "--svg", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Write one look as a picture."
)
@connect_options
def top(
    to: ConnectOptions,
    first: str,
    stream_id: int | None,
    sort: str | None,
    words: str,
    period: float,
    no_picture: bool,
    once: bool,
    picture: Path | None,
) -> None:
    """See streams, consumers, leases, bridges and recorders, live: rates, drops by reason, latency.

    It listens by itself, whether a supervisor runs or not. `--once` and what is no terminal get plain text;
    `--json` prints one object a look.
    """
    from ..monitor.listener import reduced_gc
    from ..top.app import MonitorSource
    from ..top.page import PageState

    page = PageState(tab=_PAGES.index(first), detail=stream_id, filter=words, wants_picture=not no_picture)
    if sort is not None and not page.sort_by(sort):
        known = ", ".join(one.title for one in page.table.columns if one.title)
        raise click.UsageError(f"{first} has no column {sort!r}; there are {known}")
    screen = console()
    with reduced_gc(), to.context() as ctx:
        feed = MonitorSource(ctx)
        try:
            if picture is not None:
                _write(picture, ctx, feed, page, to)
            elif once or to.as_json or not _is_interactive(screen):
                _print(feed, page, screen, to, period=period, once=once)
            else:
                _live(ctx, feed, page, screen, period)
        except KeyboardInterrupt:
            pass
        finally:
            feed.close()


def _live(ctx: Context, feed: MonitorSource, page: PageState, screen: Console, period: float) -> None:
    from ..top.app import run
    from ..top.preview import FramePreview

    newest = FramePreview(ctx, has_colours=_has_colours(screen), own=feed.own)
    try:
        run(screen, feed, newest, page, period=period)
    finally:
        newest.close()


def _is_interactive(screen: Console) -> bool:
    return screen.is_terminal and not screen.is_dumb_terminal and sys.stdin.isatty()


def _write(path: Path, ctx: Context, feed: MonitorSource, page: PageState, to: ConnectOptions) -> None:
    """As large as the terminal, or as `COLUMNS` and `LINES` say."""
    from ..top.app import frame, settle
    from ..top.draw import svg
    from ..top.preview import FramePreview

    width, height = shutil.get_terminal_size()
    newest = FramePreview(ctx, has_colours=True, own=feed.own)
    try:
        # The first look attaches; the second knows by which id, which is then left out of what is shown.
        frame(page, newest, width, height)
        page.show(settle(feed, to.timeout))
        frame(page, newest, width, height)
        page.show(feed.snapshot())
        drawn = frame(page, newest, width, height)
    finally:
        newest.close()
    path.write_text(svg(drawn, width), "utf-8")
    click.echo(f"written to {path}", err=True)


def _has_colours(screen: Console) -> bool:
    """Whether half blocks make a picture: with sixteen colours, or letters of one byte, they do not."""
    return (
        not screen.no_color
        and screen.color_system in ("256", "truecolor")
        and screen.encoding.lower().startswith("utf")
    )


def _print(
    feed: MonitorSource, page: PageState, screen: Console, to: ConnectOptions, *, period: float, once: bool
) -> None:
    from ..top.app import settle

    page.show(settle(feed, to.timeout))
    while True:
        if to.as_json:
            click.echo(json.dumps(_as_json(page)))
        elif lines := _lines(page, screen.width):
            screen.print(*lines, sep="\n")
        else:
            click.echo(page.table.nothing, err=True)
        if once:
            return
        until = time.monotonic() + period
        page.show(settle(feed, period, least=period))
        time.sleep(max(0.0, until - time.monotonic()))


def _as_json(page: PageState) -> Any:
    """All that was heard, with the time of day."""
    from ..monitor.snapshot import to_json

    return {"time_ns": str(time.time_ns()), **to_json(page.snapshot)}


def _lines(page: PageState, width: int) -> list[Text]:
    """As much as there is, not as much as fits a screen."""
    from ..top.draw import detail_lines, plain_list

    if page.detail is not None:
        return detail_lines(page.snapshot, page.detail, width)
    return plain_list(page, width)
