"""The page as lines of text, as many and as wide as the screen has. Pure.

One stream in all its details, as lines. Pure.

A page as a picture for documents: SVG with the fonts of whoever looks at it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from ..monitor.snapshot import PoolView, ProducerView, Snapshot, StreamView
from ..units import format_bytes, format_duration
from .page import PageState
from .tables import (
    BAD,
    CONSUMER_COLUMNS,
    DIM,
    LEASE_COLUMNS,
    STREAM_COLUMNS,
    TABLES,
    WARN,
    Cell,
    Column,
    NamedConsumer,
    clean,
    drops_per_s,
    fit,
    lay_out,
    line_of,
    padded,
    rate_text,
    reasons_text,
)

_STATE = next(one for one in STREAM_COLUMNS if one.title == "state")
_LABEL: Final = 11
_FACTS: Final = 44
"""Columns that the facts get beside a picture."""
# Both are said above already.
_CONSUMERS: Final = [one for one in CONSUMER_COLUMNS if one.title not in ("stream", "name")]
_LEASES: Final = [one for one in LEASE_COLUMNS if one.title != "stream"]


def preview_size(width: int, height: int) -> tuple[int, int]:
    """Columns and lines for a picture beside the facts; none where there is no room."""
    columns = width - _FACTS - 2
    return (min(columns, 64), min(14, height - 6)) if columns >= 16 and height >= 12 else (0, 0)


def detail_lines(snapshot: Snapshot, stream_id: int, width: int, picture: Sequence[Text] = ()) -> list[Text]:
    """All of them; whoever draws shows as many as there is room for."""
    stream = snapshot.stream(stream_id)
    if stream is None:
        return [_words(f"stream {stream_id} is gone; it comes back here if it is announced again", WARN)]
    lines = [_detail_heading(stream), *_beside(list(_facts(stream, snapshot)), picture, width)]
    lines += _section("consumers", _CONSUMERS, [NamedConsumer("", one) for one in stream.consumers], width)
    leases = [one for one in snapshot.leases if one.stream_id == stream_id]
    lines += _section("leases", _LEASES, leases, width)
    lines += list(_recorded(snapshot, stream_id))
    return lines


def _words(text: str, style: str = "") -> Text:
    return Text(clean(text), style=style, no_wrap=True)


def _detail_heading(stream: StreamView) -> Text:
    line = Text(f"stream {stream.stream_id}", style="bold", no_wrap=True)
    line.append(f"  {clean(stream.name)}" if stream.name else "")
    state = _STATE.cell(stream)
    assert isinstance(state, Cell), "states have colours"
    line.append(f"  {state.text}", style=state.style)
    return line


def _fact(name: str, value: str, style: str = "") -> Text:
    line = Text(no_wrap=True)
    line.append(f"{name:<{_LABEL}}", style=DIM)
    line.append(clean(value), style=style or None)
    return line


def _facts(stream: StreamView, snapshot: Snapshot) -> Iterator[Text]:
    if stream.summary:
        yield _fact("what", stream.summary)
    if stream.tags:
        yield _fact("tags", ", ".join(stream.tags))
    again = f", {stream.epochs} heard of" if stream.epochs > 1 else ""
    yield _fact("epoch", f"{stream.epoch}{again}")
    yield _fact("memory", f"{format_bytes(stream.nbytes)}, {stream.nslots} slots, {_pools(stream.pools)}")
    yield _fact("announced", _ago(stream.announce_age_ns))
    if stream.activity_age_ns is not None:
        yield _fact("active", _ago(stream.activity_age_ns))
    if stream.sources:
        yield _fact("made from", ", ".join(_named(snapshot, one) for one in stream.sources))
    if stream.derived:
        yield _fact("feeds", ", ".join(_named(snapshot, one) for one in stream.derived))
    if stream.producer is None:
        yield _fact("producer", "none", WARN)
    else:
        yield from _producer(stream.producer)
    if stream.latency is not None:
        figures = (stream.latency.p50_ns, stream.latency.p99_ns, stream.latency.max_ns)
        p50, p99, longest = (format_duration(ns / 1e9) for ns in figures)
        yield _fact("latency", f"p50 {p50}, p99 {p99}, max {longest}")
    yield _fact("dropped", reasons_text(stream.dropped) or "nothing")
    for one in snapshot.collisions:
        if one.stream_id == stream.stream_id:
            yield _fact("collision", f"two go by {one.kind} {one.id}, {one.times} times", "bold red")


def _producer(producer: ProducerView) -> Iterator[Text]:
    process = "" if producer.pid is None else f", process {producer.pid}"
    yield _fact("producer", f"{producer.producer_id}{process}")
    rate = "?" if producer.rate_hz is None else f"{producer.rate_hz:,.1f}"
    bytes_per_s = "" if producer.bytes_per_s is None else f", {producer.bytes_per_s / 1e6:,.1f} MB/s"
    seq = "no frame yet" if producer.current_seq is None else f"at sequence {producer.current_seq:,}"
    yield _fact("", f"{rate} fps{bytes_per_s}, {seq}")
    if producer.committed is not None and producer.published is not None:
        yield _fact("", f"committed {producer.committed:,}, published {producer.published:,}")
    lost = Counter(dict(producer.unpublished)) + Counter(dict(producer.dropped))
    if lost:
        yield _fact("", f"not published: {reasons_text(lost)}", WARN)


def _pools(pools: Sequence[PoolView]) -> str:
    found = Counter(one.stride_bytes for one in pools)
    return "pools " + " ".join(
        format_bytes(stride) + (f" x{n}" if n > 1 else "") for stride, n in sorted(found.items())
    )


def _named(snapshot: Snapshot, stream_id: int) -> str:
    found = snapshot.stream(stream_id)
    return f"{stream_id} {found.name}" if found is not None and found.name else str(stream_id)


def _ago(ns: int) -> str:
    return f"{format_duration(max(0, ns) / 1e9)} ago"


def _beside(facts: list[Text], picture: Sequence[Text], width: int) -> Iterator[Text]:
    if not picture:
        yield from facts
        return
    left = max(_FACTS, width - 2 - max(cell_len(one.plain) for one in picture))
    for fact, line in zip_longest(facts, picture):
        joined = padded(Text(no_wrap=True) if fact is None else fact, left)
        joined.append("  ")
        if line is not None:
            joined.append_text(line)
        yield joined


def _section(title: str, columns: Sequence[Column[Any]], rows: Sequence[Any], width: int) -> Iterator[Text]:
    if not rows:
        return
    yield Text(no_wrap=True)
    yield _words(f"{title}: {len(rows)}", "bold")
    shown, widths, cells = lay_out(columns, rows, width)
    rights = [columns[place].right for place in shown]
    yield line_of([Cell(columns[place].title) for place in shown], widths, rights, width, DIM)
    for line in cells:
        yield line_of(line, widths, rights, width)


def _recorded(snapshot: Snapshot, stream_id: int) -> Iterator[Text]:
    for recorder in snapshot.recorders:
        rows = [one for one in recorder.written if one.stream_id == stream_id]
        if not rows and stream_id not in recorder.streams:
            continue
        gaps: Counter[str] = Counter()
        for one in rows:
            gaps.update(one.gaps)
        yield Text(no_wrap=True)
        named = f"recorder {recorder.instance}".strip()
        yield _words(f"{named}: {recorder.state}, {recorder.root}", "bold")
        counted = f"{sum(one.rows for one in rows):,} rows" if rows else "its ledger was not told yet"
        yield _words(f"{counted}, gaps: {reasons_text(gaps) or 'none'}")


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


def draw(page: PageState, width: int, height: int, picture: Sequence[Text] = ()) -> list[Text]:
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


def _title(page: PageState, width: int) -> Text:
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


def _tabs(page: PageState, width: int) -> Text:
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


def _list(page: PageState, width: int) -> list[Text]:
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


def plain_list(page: PageState, width: int) -> list[Text]:
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


def _heading(page: PageState, place: int, column: Column[Any]) -> str:
    if page.sorting.column != place:
        return column.title
    return column.title + ("▾" if page.sorting.reverse else "▴")


def _details(page: PageState, width: int, height: int, picture: Sequence[Text]) -> list[Text]:
    assert page.detail is not None, "only asked while details are shown"
    lines = detail_lines(page.snapshot, page.detail, width, picture)
    page.scroll = min(page.scroll, max(0, len(lines) - height))
    return [padded(line, width) for line in lines[page.scroll : page.scroll + height]]


def _help_line(key: str, what: str, width: int) -> Text:
    line = Text("  ", no_wrap=True)
    line.append(fit(key, 12), style="bold")
    line.append(what)
    return padded(line, width)


def _footer(page: PageState, width: int) -> Text:
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


# rich's own frame would fetch a font from somewhere else.
_FORMAT: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">
<style>
.{unique_id}-matrix {{
    font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg(lines: Sequence[Text], width: int, *, title: str = "tensorpool top") -> str:
    """What a terminal with all colours would show. The same lines give the same text."""
    console = Console(
        record=True,
        width=width,
        height=len(lines),
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        _environ={},
    )
    console.print(Group(*lines))
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=_FORMAT, unique_id="top")
