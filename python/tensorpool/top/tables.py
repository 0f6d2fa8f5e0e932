"""The tables of `tensorpool top`: which rows a snapshot has, and what stands in their columns.

Columns that fit a width. Pure: cells in, lines out.

What does not fit goes by its weight: columns that matter least are left out first, then elastic ones are
cut. Names come from the wire: what a terminal would obey is shown as a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ..monitor.snapshot import (
    ON_PURPOSE,
    ConsumerView,
    LatencyView,
    LeaseView,
    MappingView,
    NoticeView,
    RecorderView,
    Snapshot,
    StreamState,
    StreamView,
)
from ..units import format_bytes, format_duration

Row = TypeVar("Row")
_APART: Final = 2
_ELLIPSIS: Final = "…"
LUXURY: Final = 8
"""Columns of this weight and more are shown only where nothing else has to give way."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """How one column of a table is shown, and by what it is sorted."""

    title: str
    cell: Callable[[Row], Cell | str]
    value: Callable[[Row], Any]
    """What it is sorted by; None comes last."""
    right: bool = False
    weight: int = 1
    """0 stays in any case; of the others the largest goes first."""
    elastic: int = 0
    """Not 0: it may be cut, down to so many cells."""


def clean(text: str) -> str:
    """Without anything that moves a cursor or changes colours."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "·" for one in text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly so wide."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + _ELLIPSIS[: max(0, width)]
    return " " * (width - size) + text if right else text + " " * (width - size)


def lay_out(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int
) -> tuple[list[int], list[int], list[list[Cell]]]:
    """Which columns are shown, how wide each is, and all cells of them."""
    cells = [[_cell(column, row) for column in columns] for row in rows]
    natural = [
        max([cell_len(column.title), *(cell_len(line[place].text) for line in cells)])
        for place, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    # Luxuries go before anything is cut.
    for place in sorted(shown, key=lambda place: -columns[place].weight):
        if columns[place].weight >= LUXURY and _takes(natural, shown) > width:
            shown.remove(place)
    while len(shown) > 1 and _needs(columns, natural, shown) > width:
        candidates = [place for place in shown if columns[place].weight]
        if not candidates:
            break
        shown.remove(max(candidates, key=lambda place: (columns[place].weight, place)))
    widths = [natural[place] for place in shown]
    elastic = [index for index, place in enumerate(shown) if columns[place].elastic]
    over = _takes(natural, shown) - width
    while over > 0 and elastic:
        # The widest gives way first; the one that is seen last, of two alike.
        index = max(elastic, key=lambda index: (widths[index] - columns[shown[index]].elastic, index))
        if widths[index] <= columns[shown[index]].elastic:
            break
        widths[index] -= 1
        over -= 1
    return shown, widths, [[line[place] for place in shown] for line in cells]


def _takes(natural: Sequence[int], shown: Sequence[int]) -> int:
    return sum(natural[place] for place in shown) + _APART * (len(shown) - 1)


def _needs(columns: Sequence[Column[Row]], natural: Sequence[int], shown: Sequence[int]) -> int:
    least = [min(natural[p], columns[p].elastic or natural[p]) for p in shown]
    return sum(least) + _APART * (len(shown) - 1)


def _cell(column: Column[Row], row: Row) -> Cell:
    found = column.cell(row)
    return Cell(clean(found)) if isinstance(found, str) else Cell(clean(found.text), found.style)


def line_of(
    cells: Sequence[Cell], widths: Sequence[int], rights: Sequence[bool], width: int, style: str = ""
) -> Text:
    """One line of the table, as wide as the screen."""
    found = Text(no_wrap=True)
    for place, (cell, size, right) in enumerate(zip(cells, widths, rights, strict=True)):
        if place:
            found.append(" " * _APART)
        found.append(fit(cell.text, size, right=right), style=cell.style or None)
    return padded(found, width, style)


def padded(line: Text, width: int, style: str = "") -> Text:
    """Cut or filled to the width, with the style behind everything."""
    line.truncate(width, overflow="ellipsis", pad=True)
    if style:
        line.stylize(style)
    return line


GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"
_STATES: Final = {
    StreamState.LIVE: Cell("live", GOOD),
    StreamState.QUIET: Cell("quiet", WARN),
    StreamState.NO_PRODUCER: Cell("vacant", WARN),
    StreamState.STALE: Cell("stale", BAD),
}
# The worst first, so that sorting by state brings up what needs a look.
_GRAVITY: Final = {state: place for place, state in enumerate(reversed(StreamState))}


@dataclass(frozen=True, slots=True)
class Table:
    """One page of rows."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Callable[[Snapshot], Sequence[Any]]
    key: Callable[[Any], Any]
    """What a row is known by, also when others come and go."""
    stream_id: Callable[[Any], int | None]
    """The stream that its details are about."""
    words: Callable[[Any], str]
    """What a filter looks at."""
    nothing: str


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """A consumer with the name of its stream."""

    name: str
    one: ConsumerView


@dataclass(frozen=True, slots=True)
class NamedMapping:
    bridge: str
    one: MappingView


def drops_per_s(stream: StreamView) -> float | None:
    told = [one.dropped_per_s for one in stream.consumers if one.dropped_per_s is not None]
    return sum(told) if told else None


def reasons_text(counts: Mapping[str, int]) -> str:
    """The largest first."""
    return ", ".join(f"{reason} {n:,}" for reason, n in sorted(counts.items(), key=lambda one: -one[1]) if n)


def rate_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.1f}"


def _drop_rate(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(rate_text(value) if value else "0", WARN if value else DIM)


def _span(ns: int | None) -> str:
    return "" if ns is None else format_duration(ns / 1e9)


def _p50(latency: LatencyView | None) -> int | None:
    return None if latency is None else latency.p50_ns


def _p99(latency: LatencyView | None) -> int | None:
    return None if latency is None else latency.p99_ns


def _lost(counts: Mapping[str, int]) -> int:
    return sum(n for reason, n in counts.items() if reason not in ON_PURPOSE)


def _why(counts: Mapping[str, int]) -> Cell:
    return Cell(reasons_text(counts), WARN if _lost(counts) else DIM)


STREAM_COLUMNS: Final[tuple[Column[StreamView], ...]] = (
    Column("stream", lambda s: str(s.stream_id), lambda s: s.stream_id, right=True, weight=0),
    Column("name", lambda s: s.name, lambda s: s.name or None, elastic=10, weight=1),
    Column("state", lambda s: _STATES[s.state], lambda s: _GRAVITY[s.state], weight=0),
    Column("fps", lambda s: rate_text(s.rate_hz), lambda s: s.rate_hz, right=True, weight=0),
    Column("MB/s", lambda s: _megabytes(s.bytes_per_s), lambda s: s.bytes_per_s, right=True, weight=2),
    Column("p99", lambda s: _span(_p99(s.latency)), lambda s: _p99(s.latency), right=True, weight=3),
    Column("cons", lambda s: str(len(s.consumers)), lambda s: len(s.consumers), right=True, weight=4),
    Column("drop/s", lambda s: _drop_rate(drops_per_s(s)), drops_per_s, right=True, weight=0),
    Column("memory", lambda s: format_bytes(s.nbytes), lambda s: s.nbytes, right=True, weight=9),
    Column("age", lambda s: _span(s.announce_age_ns), lambda s: s.announce_age_ns, right=True, weight=10),
    Column("dropped", lambda s: _why(s.dropped), lambda s: _lost(s.dropped), elastic=10, weight=5),
)

CONSUMER_COLUMNS: Final[tuple[Column[NamedConsumer], ...]] = (
    Column("consumer", lambda c: str(c.one.consumer_id), lambda c: c.one.consumer_id, right=True, weight=0),
    Column("stream", lambda c: str(c.one.stream_id), lambda c: c.one.stream_id, right=True, weight=0),
    Column("name", lambda c: c.name, lambda c: c.name or None, elastic=12, weight=6),
    Column("fps", lambda c: rate_text(c.one.rate_hz), lambda c: c.one.rate_hz, right=True, weight=0),
    Column("p50", lambda c: _span(_p50(c.one.latency)), lambda c: _p50(c.one.latency), right=True, weight=5),
    Column("p99", lambda c: _span(_p99(c.one.latency)), lambda c: _p99(c.one.latency), right=True, weight=2),
    Column("backlog", lambda c: _count(c.one.backlog), lambda c: c.one.backlog, right=True, weight=3),
    Column(
        "drop/s",
        lambda c: _drop_rate(c.one.dropped_per_s),
        lambda c: c.one.dropped_per_s,
        right=True,
        weight=0,
    ),
    Column("mode", lambda c: _mode(c.one), lambda c: c.one.mode, weight=4),
    Column("pid", lambda c: str(c.one.pid or ""), lambda c: c.one.pid, right=True, weight=9),
    Column("dropped", lambda c: _why(c.one.dropped), lambda c: c.one.lost, elastic=15, weight=1),
)

LEASE_COLUMNS: Final[tuple[Column[LeaseView], ...]] = (
    Column("lease", lambda one: str(one.lease_id), lambda one: one.lease_id, right=True, weight=1),
    Column("stream", lambda one: str(one.stream_id), lambda one: one.stream_id, right=True, weight=0),
    Column("role", lambda one: one.role, lambda one: one.role, weight=0),
    Column("client", lambda one: str(one.client_id), lambda one: one.client_id, right=True, weight=0),
    Column("state", lambda one: one.state, lambda one: one.state, weight=0),
    Column("held for", lambda one: format_duration(one.age_s), lambda one: one.age_s, right=True, weight=2),
    Column(
        "left",
        lambda one: "" if one.expires_in_s is None else format_duration(one.expires_in_s),
        lambda one: one.expires_in_s,
        right=True,
        weight=3,
    ),
    Column("driver", lambda one: one.driver, lambda one: one.driver, elastic=12, weight=4),
)

MAPPING_COLUMNS: Final[tuple[Column[NamedMapping], ...]] = (
    Column("bridge", lambda m: m.bridge, lambda m: m.bridge, elastic=12, weight=3),
    Column("", lambda m: m.one.direction, lambda m: m.one.direction, weight=0),
    Column(
        "stream",
        lambda m: str(m.one.source_stream_id),
        lambda m: m.one.source_stream_id,
        right=True,
        weight=0,
    ),
    Column(
        "to", lambda m: str(m.one.dest_stream_id or "?"), lambda m: m.one.dest_stream_id, right=True, weight=0
    ),
    Column(
        "state",
        lambda m: Cell("connected", GOOD) if m.one.connected else Cell("silent", WARN),
        lambda m: m.one.connected,
        weight=0,
    ),
    Column(
        "fps", lambda m: rate_text(m.one.frames_per_s), lambda m: m.one.frames_per_s, right=True, weight=0
    ),
    Column("frames", lambda m: f"{m.one.frames:,}", lambda m: m.one.frames, right=True, weight=2),
    Column("on the way", lambda m: _count(m.one.network), lambda m: m.one.network, right=True, weight=1),
    Column(
        "dropped",
        lambda m: Cell(m.one.fault, BAD) if m.one.fault else _why(m.one.dropped),
        lambda m: _lost(m.one.dropped),
        elastic=15,
        weight=4,
    ),
)

RECORDER_COLUMNS: Final[tuple[Column[RecorderView], ...]] = (
    Column("recorder", lambda r: r.instance or "(unnamed)", lambda r: r.instance, weight=0),
    Column(
        "state",
        lambda r: Cell(r.state, GOOD if r.state == "recording" else BAD if r.problem else WARN),
        lambda r: r.state,
        weight=0,
    ),
    Column("streams", lambda r: str(len(r.streams)), lambda r: len(r.streams), right=True, weight=5),
    Column("rows/s", lambda r: rate_text(r.rows_per_s), lambda r: r.rows_per_s, right=True, weight=0),
    Column("MB/s", lambda r: _megabytes(r.bytes_per_s), lambda r: r.bytes_per_s, right=True, weight=2),
    Column("rows", lambda r: f"{r.rows:,}", lambda r: r.rows, right=True, weight=3),
    Column(
        "backlog", lambda r: format_bytes(r.backlog_bytes), lambda r: r.backlog_bytes, right=True, weight=4
    ),
    Column(
        "disk free",
        lambda r: format_bytes(r.disk_free_bytes),
        lambda r: r.disk_free_bytes,
        right=True,
        weight=1,
    ),
    Column("gaps", lambda r: _why(r.gaps), lambda r: _lost(r.gaps), elastic=12, weight=6),
    Column("where", lambda r: r.problem or r.root, lambda r: r.root, elastic=15, weight=7),
)

NOTICE_COLUMNS: Final[tuple[Column[NoticeView], ...]] = (
    Column("ago", lambda n: _span(n.age_ns), lambda n: n.age_ns, right=True, weight=0),
    Column("what", lambda n: n.kind, lambda n: n.kind, weight=0),
    Column("stream", lambda n: str(n.stream_id or ""), lambda n: n.stream_id, right=True, weight=1),
    Column("", lambda n: n.text, lambda n: n.text, elastic=12, weight=0),
)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _mode(one: ConsumerView) -> Cell:
    if one.fallback_uri:
        return Cell("fallback", WARN)
    if one.mode != "rate_limited":
        return Cell("")
    return Cell(f"≤ {one.max_rate_hz} Hz" if one.max_rate_hz else "limited", WARN)


TABLES: Final[tuple[Table, ...]] = (
    Table(
        "streams",
        STREAM_COLUMNS,
        lambda snapshot: snapshot.streams,
        lambda row: row.stream_id,
        lambda row: row.stream_id,
        lambda row: " ".join((str(row.stream_id), row.name, str(row.state), *row.tags)),
        "no stream is announced",
    ),
    Table(
        "consumers",
        CONSUMER_COLUMNS,
        lambda snapshot: [NamedConsumer(s.name, one) for s in snapshot.streams for one in s.consumers],
        lambda row: (row.one.stream_id, row.one.consumer_id),
        lambda row: row.one.stream_id,
        lambda row: f"{row.one.consumer_id} {row.one.stream_id} {row.name} {row.one.mode}",
        "nobody reads",
    ),
    Table(
        "leases",
        LEASE_COLUMNS,
        lambda snapshot: snapshot.leases,
        lambda row: (row.driver, row.lease_id),
        lambda row: row.stream_id,
        lambda row: f"{row.lease_id} {row.stream_id} {row.client_id} {row.role} {row.state} {row.driver}",
        "no driver tells of leases",
    ),
    Table(
        "bridges",
        MAPPING_COLUMNS,
        lambda snapshot: [NamedMapping(b.instance, one) for b in snapshot.bridges for one in b.mappings],
        lambda row: (row.bridge, row.one.direction, row.one.source_stream_id, row.one.dest_stream_id),
        lambda row: row.one.source_stream_id if row.one.direction == "send" else row.one.dest_stream_id,
        lambda row: f"{row.bridge} {row.one.direction} {row.one.source_stream_id} {row.one.dest_stream_id}",
        "no bridge runs on this media driver",
    ),
    Table(
        "recorders",
        RECORDER_COLUMNS,
        lambda snapshot: snapshot.recorders,
        lambda row: (row.tag, row.pid),
        lambda row: row.streams[0] if row.streams else None,
        lambda row: f"{row.instance} {row.state} {row.root}",
        "no recorder runs on this media driver",
    ),
    Table(
        "events",
        NOTICE_COLUMNS,
        lambda snapshot: snapshot.notices[::-1],
        lambda row: (row.kind, row.stream_id, row.text),
        lambda row: row.stream_id,
        lambda row: f"{row.kind} {row.stream_id or ''} {row.text}",
        "nothing has happened yet",
    ),
)
