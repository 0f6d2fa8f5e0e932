"""The screens of `tensorpool top` as lines of text and as SVG: lists, details of a stream, help. Pure."""

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
from ..text import safe_text
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
    drops_per_s,
    fit,
    lay_out,
    line_of,
    padded,
    rate_text,
    reasons_text,
)

_STATE = next(column for column in STREAM_COLUMNS if column.title == "state")
LEAST_WIDTH, LEAST_HEIGHT = 40, 8
HELP: Final = (
    ("1 … 6, tab", "streams, consumers, leases, bridges, recorders, events"),
    ("↑ ↓ j k", "choose a row; page up, page down, home and end too"),
    ("enter", "details of the row's stream: its readers, drops, a preview"),
    ("esc", "back; in a list: remove the filter"),
    ("s, S", "sort by the next column, by the previous one"),
    ("r", "reverse the order"),
    ("/", "filter: rows that have all the words; enter keeps it, esc drops it"),
    ("p", "show or hide the preview of the newest frame"),
    ("space", "pause the page, and resume it"),
    ("q, ctrl-c", "quit"),
    ("", ""),
    ("fps, MiB/s", "as the producer reports, over the last seconds"),
    ("p99", "of the slowest consumer; one frame in a hundred took longer"),
    ("drop/s", "frames that consumers lost; not those skipped on purpose"),
    ("dropped", "by reason, since each consumer started"),
    ("vacant", "the stream is announced and has no producer"),
    ("quiet", "the stream has a producer, and had no frame for a while"),
    ("stale", "no activity: its producer or driver has died"),
)

_BAR: Final = "reverse"
_CURSOR: Final = "reverse"
_HEADINGS: Final = "bold"
_KEYS: Final = "↑↓ choose  ⏎ details  s sort  r reverse  / filter  space pause  ? help  q quit"
_DETAIL_KEYS: Final = "esc back  ↑↓ scroll  p preview  space pause  ? help  q quit"
_FRAME_LINES: Final = 4
_LABEL_WIDTH: Final = 11
_FACTS_WIDTH: Final = 44
"""Width of the facts beside a preview."""
# Without the stream's own id and name, which the heading shows.
_CONSUMER_COLUMNS: Final = [column for column in CONSUMER_COLUMNS if column.title not in ("stream", "name")]
_LEASE_COLUMNS: Final = [column for column in LEASE_COLUMNS if column.title != "stream"]

# rich's own template would fetch a font from the network.
_SVG_TEMPLATE: Final = """\
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

# --- details of a stream


def preview_size(width: int, height: int) -> tuple[int, int]:
    """Columns and lines of a preview beside the facts; none where there is no room."""
    columns = width - _FACTS_WIDTH - 2
    return (min(columns, 64), min(14, height - 6)) if columns >= 16 and height >= 12 else (0, 0)


def detail_lines(snapshot: Snapshot, stream_id: int, width: int, preview: Sequence[Text] = ()) -> list[Text]:
    """All lines of the details; a screen shows a part of them."""
    stream = snapshot.stream(stream_id)
    if stream is None:
        return [_line(f"stream {stream_id} has gone; it is shown here if it is announced again", WARN)]
    lines = [_heading(stream), *_beside(list(_facts(stream, snapshot)), preview, width)]
    consumers = [NamedConsumer("", consumer) for consumer in stream.consumers]
    lines += _section("consumers", _CONSUMER_COLUMNS, consumers, width)
    leases = [lease for lease in snapshot.leases if lease.stream_id == stream_id]
    lines += _section("leases", _LEASE_COLUMNS, leases, width)
    lines += list(_recorded(snapshot, stream_id))
    return lines


def _line(text: str, style: str = "") -> Text:
    return Text(safe_text(text), style=style, no_wrap=True)


def _heading(stream: StreamView) -> Text:
    line = Text(f"stream {stream.stream_id}", style="bold", no_wrap=True)
    line.append(f"  {safe_text(stream.name)}" if stream.name else "")
    state = _STATE.cell(stream)
    assert isinstance(state, Cell), "states have colours"
    line.append(f"  {state.text}", style=state.style)
    return line


def _fact(name: str, value: str, style: str = "") -> Text:
    line = Text(no_wrap=True)
    line.append(f"{name:<{_LABEL_WIDTH}}", style=DIM)
    line.append(safe_text(value), style=style or None)
    return line


def _facts(stream: StreamView, snapshot: Snapshot) -> Iterator[Text]:
    if stream.summary:
        yield _fact("what", stream.summary)
    if stream.tags:
        yield _fact("tags", ", ".join(stream.tags))
    epochs = f", {stream.epochs} announced" if stream.epochs > 1 else ""
    yield _fact("epoch", f"{stream.epoch}{epochs}")
    yield _fact("memory", f"{format_bytes(stream.nbytes)}, {stream.nslots} slots, {_pools(stream.pools)}")
    yield _fact("announced", _ago(stream.announce_age_ns))
    if stream.activity_age_ns is not None:
        yield _fact("active", _ago(stream.activity_age_ns))
    if stream.sources:
        yield _fact("made from", ", ".join(_named(snapshot, source) for source in stream.sources))
    if stream.derived:
        yield _fact("feeds", ", ".join(_named(snapshot, derived) for derived in stream.derived))
    if stream.producer is None:
        yield _fact("producer", "none", WARN)
    else:
        yield from _producer(stream.producer)
    if stream.latency is not None:
        figures = (stream.latency.p50_ns, stream.latency.p99_ns, stream.latency.max_ns)
        p50, p99, longest = (format_duration(ns / 1e9) for ns in figures)
        yield _fact("latency", f"p50 {p50}, p99 {p99}, max {longest}")
    yield _fact("dropped", reasons_text(stream.dropped) or "nothing")
    for collision in snapshot.collisions:
        if collision.stream_id == stream.stream_id:
            text = f"{collision.kind} {collision.id} is used twice, {collision.times} times"
            yield _fact("collision", text, BAD)


def _producer(producer: ProducerView) -> Iterator[Text]:
    process = "" if producer.pid is None else f", process {producer.pid}"
    yield _fact("producer", f"{producer.producer_id}{process}")
    rate = "?" if producer.rate_hz is None else f"{producer.rate_hz:,.1f}"
    bytes_per_s = "" if producer.bytes_per_s is None else f", {producer.bytes_per_s / (1 << 20):,.1f} MiB/s"
    seq = "no frame yet" if producer.current_seq is None else f"at sequence {producer.current_seq:,}"
    yield _fact("", f"{rate} fps{bytes_per_s}, {seq}")
    if producer.committed is not None and producer.published is not None:
        yield _fact("", f"committed {producer.committed:,}, published {producer.published:,}")
    if producer.watermark is not None and producer.watermark > 1:
        yield _fact("", f"up to {producer.watermark:,} slots open at once")
    lost = Counter(dict(producer.unpublished)) + Counter(dict(producer.dropped))
    if lost:
        yield _fact("", f"not published: {reasons_text(lost)}", WARN)


def _pools(pools: Sequence[PoolView]) -> str:
    strides = Counter(pool.stride_bytes for pool in pools)
    return "pools " + " ".join(
        format_bytes(stride) + (f" x{n}" if n > 1 else "") for stride, n in sorted(strides.items())
    )


def _named(snapshot: Snapshot, stream_id: int) -> str:
    stream = snapshot.stream(stream_id)
    return f"{stream_id} {stream.name}" if stream is not None and stream.name else str(stream_id)


def _ago(ns: int) -> str:
    return f"{format_duration(max(0, ns) / 1e9)} ago"


def _beside(facts: list[Text], preview: Sequence[Text], width: int) -> Iterator[Text]:
    if not preview:
        yield from facts
        return
    left = max(_FACTS_WIDTH, width - 2 - max(cell_len(line.plain) for line in preview))
    for fact, line in zip_longest(facts, preview):
        joined = padded(Text(no_wrap=True) if fact is None else fact, left)
        joined.append("  ")
        if line is not None:
            joined.append_text(line)
        yield joined


def _section(title: str, columns: Sequence[Column[Any]], rows: Sequence[Any], width: int) -> Iterator[Text]:
    if not rows:
        return
    yield Text(no_wrap=True)
    yield _line(f"{title}: {len(rows)}", "bold")
    shown, widths, cells = lay_out(columns, rows, width)
    rights = [columns[index].right for index in shown]
    yield line_of([Cell(columns[index].title) for index in shown], widths, rights, width, DIM)
    for line in cells:
        yield line_of(line, widths, rights, width)


def _recorded(snapshot: Snapshot, stream_id: int) -> Iterator[Text]:
    for recorder in snapshot.recorders:
        rows = [row for row in recorder.written if row.stream_id == stream_id]
        if not rows and stream_id not in recorder.streams:
            continue
        gaps: Counter[str] = Counter()
        for row in rows:
            gaps.update(row.gaps)
        yield Text(no_wrap=True)
        named = f"recorder {recorder.instance}".strip()
        yield _line(f"{named}: {recorder.state}, {recorder.root}", "bold")
        counted = f"{sum(row.rows for row in rows):,} rows" if rows else "it has not reported its ledger yet"
        yield _line(f"{counted}, gaps: {reasons_text(gaps) or 'none'}")


# --- the page


def draw(page: PageState, width: int, height: int, preview: Sequence[Text] = ()) -> list[Text]:
    """The screen: exactly `height` lines of exactly `width` cells."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        notice = Text(f"too small: {LEAST_WIDTH} x {LEAST_HEIGHT} at least", no_wrap=True)
        return _filled([padded(notice, width)], width, height)
    page.height = height - _FRAME_LINES
    lines = [_title(page, width), _tabs(page, width)]
    if page.is_help:
        lines += [_help_line(key, what, width) for key, what in HELP]
    elif page.detail is not None:
        lines += _details(page, width, height - 3, preview)
    else:
        lines += _list(page, width)
    return [*_filled(lines, width, height - 1), _footer(page, width)]


def _filled(lines: list[Text], width: int, height: int) -> list[Text]:
    return lines[:height] + [padded(Text(no_wrap=True), width) for _ in range(height - len(lines))]


def _title(page: PageState, width: int) -> Text:
    streams = page.snapshot.streams
    live = sum(stream.state == "live" for stream in streams)
    fps = sum(stream.rate_hz or 0.0 for stream in streams)
    nbytes = sum(stream.bytes_per_s or 0.0 for stream in streams)
    lost = sum(drops_per_s(stream) or 0.0 for stream in streams)
    # Problems come first: a narrow screen cuts the end.
    line = Text(" tensorpool", no_wrap=True)
    if page.is_paused:
        line.append("  paused", style=WARN)
    if n := len(page.snapshot.collisions):
        line.append(f"  {n} id collision{'' if n == 1 else 's'}", style=BAD)
    if ledger := page.snapshot.ledger:
        n = ledger.paths.get("mismatch", 0)
        line.append(f"  {n} ledger mismatch{'' if n == 1 else 'es'}" if n else "", style=BAD)
    line.append(
        f"  {live} of {len(streams)} streams live  {rate_text(fps)} fps  {nbytes / (1 << 20):,.1f} MiB/s"
    )
    line.append(f"  {rate_text(lost) if lost else 0} drops/s")
    return padded(line, width, _BAR)


def _tabs(page: PageState, width: int) -> Text:
    titles = [f"{number} {table.title}" for number, table in enumerate(TABLES, start=1)]
    counted = [
        f"{title} {len(table.rows(page.snapshot))}" for title, table in zip(titles, TABLES, strict=True)
    ]
    # The number of past events says nothing about the system.
    counted[-1] = titles[-1]
    shown = counted if sum(map(len, counted)) + 2 * len(counted) <= width else titles
    line = Text(" ", no_wrap=True)
    for tab, title in enumerate(shown):
        line.append(title, style="bold underline" if tab == page.tab else DIM)
        line.append("  ")
    return padded(line, width)


def _list(page: PageState, width: int) -> list[Text]:
    table, rows = page.table, page.rows()
    top, cursor = page.window(rows)
    shown_rows = rows[top : top + page.height]
    # Widths come from all rows: the columns must not move when the list scrolls.
    shown, widths, cells = page.cached("cells", width, lambda: lay_out(table.columns, rows, width))
    rights = [table.columns[index].right for index in shown]
    titles = [Cell(_column_title(page, index, table.columns[index])) for index in shown]
    lines = [line_of(titles, widths, rights, width, _HEADINGS)]
    for index, row in enumerate(cells[top : top + len(shown_rows)], start=top):
        if index == cursor:
            # Without the colours of its cells, which would read badly in reverse.
            plain = [Cell(cell.text) for cell in row]
            lines.append(line_of(plain, widths, rights, width, _CURSOR))
        else:
            lines.append(line_of(row, widths, rights, width))
    if not rows:
        notice = f"no row has {page.filter!r}" if page.filter else table.empty
        lines.append(padded(_line(notice, DIM), width))
    return lines


def plain_list(page: PageState, width: int) -> list[Text]:
    """All rows, for output that is not a screen: no cursor, no frame, no spaces at the ends of lines."""
    table, rows = page.table, page.rows()
    if not rows:
        return []
    shown, widths, cells = lay_out(table.columns, rows, width)
    rights = [table.columns[index].right for index in shown]
    titles = [Cell(table.columns[index].title) for index in shown]
    lines = [line_of(titles, widths, rights, width, _HEADINGS)]
    lines += [line_of(line, widths, rights, width) for line in cells]
    for line in lines:
        line.rstrip()
    return lines


def _column_title(page: PageState, index: int, column: Column[Any]) -> str:
    if page.sorting.column != index:
        return column.title
    return column.title + ("▾" if page.sorting.reverse else "▴")


def _details(page: PageState, width: int, height: int, preview: Sequence[Text]) -> list[Text]:
    assert page.detail is not None, "called only while details are shown"
    lines = detail_lines(page.snapshot, page.detail, width, preview)
    page.scroll = min(page.scroll, max(0, len(lines) - height))
    return [padded(line, width) for line in lines[page.scroll : page.scroll + height]]


def _help_line(key: str, what: str, width: int) -> Text:
    line = Text("  ", no_wrap=True)
    line.append(fit(key, 12), style="bold")
    line.append(what)
    return padded(line, width)


def _footer(page: PageState, width: int) -> Text:
    if page.is_typing:
        line = Text(f" filter: {safe_text(page.filter)}", no_wrap=True)
        line.append("▏  ⏎ keep  esc drop", style=DIM)
        return padded(line, width)
    line = Text(" ", no_wrap=True)
    if page.is_help:
        line.append("any key goes back", style=DIM)
    elif page.detail is not None:
        line.append(_DETAIL_KEYS, style=DIM)
    else:
        if page.filter:
            line.append(f"filter: {safe_text(page.filter)}", style=WARN)
            line.append("  esc drops it  ", style=DIM)
        line.append(_KEYS, style=DIM)
    return padded(line, width)


def svg(lines: Sequence[Text], width: int, *, title: str = "tensorpool top") -> str:
    """The lines as SVG, as a terminal with all colours shows them. Equal lines give equal text."""
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
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=_SVG_TEMPLATE, unique_id="top")
