"""The page as lines of text, as many and as wide as the screen has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from .detail import detail_lines
from .layout import Cell, Column, clean, fit, lay_out, line_of, padded
from .page import Page
from .tables import BAD, DIM, TABLES, WARN, drops_per_s, rate_text

_BAR: Final = "reverse"
_CURSOR: Final = "reverse"
_HEAD: Final = "bold"
_KEYS: Final = "↑↓ choose  ⏎ details  s sort  r reverse  / filter  space pause  ? help  q quit"
_DETAIL_KEYS: Final = "esc back  ↑↓ scroll  p picture  space pause  ? help  q quit"
_FRAME_LINES: Final = 4
LEAST_WIDTH, LEAST_HEIGHT = 40, 8

HELP: Final = (
    ("1 … 6, tab", "streams, consumers, leases, bridges, recorders, events"),
    ("↑ ↓ j k", "choose a row; page up, page down, home and end too"),
    ("enter", "details of the row's stream: its readers, drops, a picture"),
    ("esc", "back; in a list: without the filter"),
    ("s, S", "sort by the next column, by the one before"),
    ("r", "the other way round"),
    ("/", "filter: rows that have all the words; enter keeps it, esc drops it"),
    ("p", "the picture of the newest frame on and off"),
    ("space", "stop the page, and let it go on"),
    ("q, ctrl-c", "quit"),
    ("", ""),
    ("fps, MB/s", "as the producer tells, over the last seconds"),
    ("p99", "of the slowest consumer; one frame in a hundred took longer"),
    ("drop/s", "frames that consumers lost; not what was left out on purpose"),
    ("dropped", "by reason, since each consumer came"),
    ("vacant", "it is announced, and nobody produces"),
    ("quiet", "a producer is there, and no frame for a while"),
    ("stale", "no sign of life: its producer or driver has died"),
)


def draw(page: Page, width: int, height: int, picture: Sequence[Text] = ()) -> list[Text]:
    """Exactly `height` lines of exactly `width` cells."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        words = Text(f"too small: {LEAST_WIDTH} x {LEAST_HEIGHT} at least", no_wrap=True)
        return _filled([padded(words, width)], width, height)
    page.height = height - _FRAME_LINES
    lines = [_title(page, width), _tabs(page, width)]
    if page.is_help:
        lines += [_help_line(key, what, width) for key, what in HELP]
    elif page.detail is not None:
        lines += _details(page, width, height - 3, picture)
    else:
        lines += _list(page, width)
    return [*_filled(lines, width, height - 1), _footer(page, width)]


def _filled(lines: list[Text], width: int, height: int) -> list[Text]:
    return lines[:height] + [padded(Text(no_wrap=True), width) for _ in range(height - len(lines))]


def _title(page: Page, width: int) -> Text:
    streams = page.snapshot.streams
    live = sum(one.state == "live" for one in streams)
    fps = sum(one.rate_hz or 0.0 for one in streams)
    nbytes = sum(one.bytes_per_s or 0.0 for one in streams)
    lost = sum(drops_per_s(one) or 0.0 for one in streams)
    # What is cut on a narrow screen stands last.
    line = Text(" tensorpool", no_wrap=True)
    if page.is_paused:
        line.append("  paused", style=WARN)
    if n := len(page.snapshot.collisions):
        line.append(f"  {n} id collision{'' if n == 1 else 's'}", style=BAD)
    if ledger := page.snapshot.ledger:
        n = ledger.paths.get("mismatch", 0)
        line.append(f"  {n} ledger mismatch{'' if n == 1 else 'es'}" if n else "", style=BAD)
    line.append(f"  {live} of {len(streams)} streams live  {rate_text(fps)} fps  {nbytes / 1e6:,.1f} MB/s")
    line.append(f"  {rate_text(lost) if lost else 0} drops/s")
    return padded(line, width, _BAR)


def _tabs(page: Page, width: int) -> Text:
    titles = [f"{place} {one.title}" for place, one in enumerate(TABLES, start=1)]
    counted = [f"{title} {len(one.rows(page.snapshot))}" for title, one in zip(titles, TABLES, strict=True)]
    # The last one counts what is only remembered: nobody needs that number.
    counted[-1] = titles[-1]
    shown = counted if sum(map(len, counted)) + 2 * len(counted) <= width else titles
    line = Text(" ", no_wrap=True)
    for place, title in enumerate(shown):
        line.append(title, style="bold underline" if place == page.tab else DIM)
        line.append("  ")
    return padded(line, width)


def _list(page: Page, width: int) -> list[Text]:
    table, rows = page.table, page.rows()
    top, cursor = page.window(rows)
    shown_rows = rows[top : top + page.height]
    # Widths come from all rows: the columns must not move when one scrolls.
    shown, widths, cells = page.once("cells", width, lambda: lay_out(table.columns, rows, width))
    rights = [table.columns[place].right for place in shown]
    titles = [Cell(_heading(page, place, table.columns[place])) for place in shown]
    lines = [line_of(titles, widths, rights, width, _HEAD)]
    for place, line in enumerate(cells[top : top + len(shown_rows)], start=top):
        if place == cursor:
            # In one colour: patches of several would say something that they do not mean.
            line = [Cell(one.text) for one in line]  # noqa: PLW2901
        lines.append(line_of(line, widths, rights, width, _CURSOR if place == cursor else ""))
    if not rows:
        words = f"no row has {page.filter!r}" if page.filter else table.nothing
        lines.append(padded(Text(clean(words), style=DIM, no_wrap=True), width))
    return lines


def plain_list(page: Page, width: int) -> list[Text]:
    """All rows, for what is no screen: no cursor, no frame, no spaces at the ends of lines."""
    table, rows = page.table, page.rows()
    if not rows:
        return []
    shown, widths, cells = lay_out(table.columns, rows, width)
    rights = [table.columns[place].right for place in shown]
    lines = [line_of([Cell(table.columns[place].title) for place in shown], widths, rights, width, _HEAD)]
    lines += [line_of(line, widths, rights, width) for line in cells]
    for line in lines:
        line.rstrip()
    return lines


def _heading(page: Page, place: int, column: Column[Any]) -> str:
    if page.sorting.column != place:
        return column.title
    return column.title + ("▾" if page.sorting.reverse else "▴")


def _details(page: Page, width: int, height: int, picture: Sequence[Text]) -> list[Text]:
    assert page.detail is not None, "only asked while details are shown"
    lines = detail_lines(page.snapshot, page.detail, width, picture)
    page.scroll = min(page.scroll, max(0, len(lines) - height))
    return [padded(line, width) for line in lines[page.scroll : page.scroll + height]]


def _help_line(key: str, what: str, width: int) -> Text:
    line = Text("  ", no_wrap=True)
    line.append(fit(key, 12), style="bold")
    line.append(what)
    return padded(line, width)


def _footer(page: Page, width: int) -> Text:
    if page.is_typing:
        line = Text(f" filter: {clean(page.filter)}", no_wrap=True)
        line.append("▏  ⏎ keep  esc drop", style=DIM)
        return padded(line, width)
    line = Text(" ", no_wrap=True)
    if page.is_help:
        line.append("any key goes back", style=DIM)
    elif page.detail is not None:
        line.append(_DETAIL_KEYS, style=DIM)
    else:
        if page.filter:
            line.append(f"filter: {clean(page.filter)}", style=WARN)
            line.append("  esc drops it  ", style=DIM)
        line.append(_KEYS, style=DIM)
    return padded(line, width)
