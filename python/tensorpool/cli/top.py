"""`tensorpool top`: the whole system on a page of a terminal, live."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from ..context import Context
from ..text import JsonMapping
from .options import ConnectOptions, connect_options
from .output import console
from .params import StreamRef

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
@click.option("--page", "first_page", type=click.Choice(_PAGES), default="streams", help="The first page.")
@click.option(
    "--stream", "stream", type=StreamRef(), help="Begin with the details of this stream, by id or name."
)
@click.option("--sort", metavar="COLUMN", help="Sort by a column of the page, as in --sort fps.")
@click.option("--filter", "terms", default="", help="Show only rows that have all these words.")
@click.option("--period", default=1.0, show_default=True, type=_SECONDS, help="Seconds between two updates.")
@click.option("--no-preview", is_flag=True, help="Begin without the preview of the newest frame.")
@click.option("--once", is_flag=True, help="Print the page once, and end.")
@click.option(
    "--svg",
    "svg_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page as SVG, and end.",
)
@connect_options
def top(
    to: ConnectOptions,
    first_page: str,
    stream: int | str | None,
    sort: str | None,
    terms: str,
    period: float,
    no_preview: bool,
    once: bool,
    svg_path: Path | None,
) -> None:
    """See streams, consumers, leases, bridges and recorders, live: rates, drops by reason, latency.

    It needs no supervisor. With `--once`, or if the output is not a terminal, it prints plain text; `--json`
    prints one object per update.
    """
    from ..monitor.listener import reduced_gc
    from ..top.app import MonitorSource
    from ..top.page import PageState

    page = PageState(tab=_PAGES.index(first_page), filter=terms, is_preview_shown=not no_preview)
    if sort is not None and not page.sort_by(sort):
        known = ", ".join(column.title for column in page.table.columns if column.title)
        raise click.UsageError(f"{first_page} has no column {sort!r}; there are {known}")
    screen = console()
    with reduced_gc(), to.context() as ctx:
        page.detail = None if stream is None else ctx.find_stream(stream, timeout=to.timeout)
        source = MonitorSource(ctx)
        try:
            if svg_path is not None:
                _write_svg(svg_path, ctx, source, page, to)
            elif once or to.json_output or not _is_interactive(screen):
                _print(source, page, screen, to, period=period, once=once)
            else:
                _run_live(ctx, source, page, screen, period)
        except KeyboardInterrupt:
            pass
        finally:
            source.close()


def _run_live(ctx: Context, source: MonitorSource, page: PageState, screen: Console, period: float) -> None:
    from ..top.app import run
    from ..top.preview import FramePreview

    preview = FramePreview(ctx, has_colours=_has_colours(screen), consumer_ids=source.hidden_ids)
    try:
        run(screen, source, preview, page, period=period)
    finally:
        preview.close()


def _is_interactive(screen: Console) -> bool:
    return screen.is_terminal and not screen.is_dumb_terminal and sys.stdin.isatty()


def _write_svg(path: Path, ctx: Context, source: MonitorSource, page: PageState, to: ConnectOptions) -> None:
    """Writes the page in the size of the terminal, or of `COLUMNS` and `LINES`."""
    from ..top.app import screen_lines, settle
    from ..top.draw import svg
    from ..top.preview import FramePreview

    width, height = shutil.get_terminal_size()
    preview = FramePreview(ctx, has_colours=True, consumer_ids=source.hidden_ids)
    try:
        # The first call opens the preview's consumer; after the second its id is known and hidden.
        screen_lines(page, preview, width, height)
        page.show(settle(source, to.timeout))
        screen_lines(page, preview, width, height)
        page.show(source.snapshot())
        lines = screen_lines(page, preview, width, height)
    finally:
        preview.close()
    path.write_text(svg(lines, width), "utf-8")
    click.echo(f"written to {path}", err=True)


def _has_colours(screen: Console) -> bool:
    """Whether half blocks can show an image: that needs 256 colours and an encoding that has them."""
    return (
        not screen.no_color
        and screen.color_system in ("256", "truecolor")
        and screen.encoding.lower().startswith("utf")
    )


def _print(
    source: MonitorSource, page: PageState, screen: Console, to: ConnectOptions, *, period: float, once: bool
) -> None:
    from ..top.app import settle

    page.show(settle(source, to.timeout))
    while True:
        if to.json_output:
            click.echo(json.dumps(_to_json(page)))
        elif lines := _lines(page, screen.width):
            screen.print(*lines, sep="\n")
        else:
            click.echo(page.table.empty, err=True)
        if once:
            return
        due = time.monotonic() + period
        page.show(settle(source, period, least=period))
        time.sleep(max(0.0, due - time.monotonic()))


def _to_json(page: PageState) -> JsonMapping:
    """The snapshot with the time of day."""
    from ..monitor.snapshot import to_json

    return {"time_ns": str(time.time_ns()), **to_json(page.snapshot)}


def _lines(page: PageState, width: int) -> list[Text]:
    """All lines of the page, not only those that fit a screen."""
    from ..top.draw import detail_lines, plain_list

    if page.detail is not None:
        return detail_lines(page.snapshot, page.detail, width)
    return plain_list(page, width)
