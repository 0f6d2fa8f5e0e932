"""The tables of `tensorpool top`: rows and columns of a snapshot, and their layout in a given width. Pure.

If the columns do not fit, those with the largest weight are omitted first; then elastic columns are cut.
Names come from the wire: characters that could control the terminal are shown as dots.
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
from ..text import safe_text
from ..units import format_bytes, format_duration

Row = TypeVar("Row")
_COLUMN_GAP: Final = 2
_ELLIPSIS: Final = "…"
OPTIONAL_WEIGHT: Final = 8
"""Columns of this weight and more are shown only if no other column has to be cut."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """How a column of a table is shown and sorted."""

    title: str
    cell: Callable[[Row], Cell | str]
    value: Callable[[Row], Any]
    """The value that sorts the rows; None comes last."""
    right: bool = False
    weight: int = 1
    """0 is never omitted; of the others the largest is omitted first."""
    elastic: int = 0
    """The width down to which the column may be cut; 0: not at all."""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text cut or filled to exactly `width` cells."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + _ELLIPSIS[: max(0, width)]
    return " " * (width - size) + text if right else text + " " * (width - size)


def lay_out(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int
) -> tuple[list[int], list[int], list[list[Cell]]]:
    """The indices of the columns shown, their widths, and their cells."""
    cells = [[_cell(column, row) for column in columns] for row in rows]
    natural = [
        max([cell_len(column.title), *(cell_len(line[index].text) for line in cells)])
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    # Optional columns are omitted before any column is cut.
    for index in sorted(shown, key=lambda index: -columns[index].weight):
        if columns[index].weight >= OPTIONAL_WEIGHT and _natural_width(natural, shown) > width:
            shown.remove(index)
    while len(shown) > 1 and _least_width(columns, natural, shown) > width:
        candidates = [index for index in shown if columns[index].weight]
        if not candidates:
            break
        shown.remove(max(candidates, key=lambda index: (columns[index].weight, index)))
    widths = [natural[index] for index in shown]
    elastic = [position for position, index in enumerate(shown) if columns[index].elastic]
    over = _natural_width(natural, shown) - width
    while over > 0 and elastic:
        # The column with the most to spare is cut first; of two alike, the right column.
        widest = max(elastic, key=lambda n: (widths[n] - columns[shown[n]].elastic, n))
        if widths[widest] <= columns[shown[widest]].elastic:
            break
        widths[widest] -= 1
        over -= 1
    return shown, widths, [[line[index] for index in shown] for line in cells]


def _natural_width(natural: Sequence[int], shown: Sequence[int]) -> int:
    return sum(natural[index] for index in shown) + _COLUMN_GAP * (len(shown) - 1)


def _least_width(columns: Sequence[Column[Row]], natural: Sequence[int], shown: Sequence[int]) -> int:
    least = [min(natural[index], columns[index].elastic or natural[index]) for index in shown]
    return sum(least) + _COLUMN_GAP * (len(shown) - 1)


def _cell(column: Column[Row], row: Row) -> Cell:
    cell = column.cell(row)
    return Cell(safe_text(cell)) if isinstance(cell, str) else Cell(safe_text(cell.text), cell.style)


def line_of(
    cells: Sequence[Cell], widths: Sequence[int], rights: Sequence[bool], width: int, style: str = ""
) -> Text:
    """A line of the table, `width` cells wide."""
    line = Text(no_wrap=True)
    for index, (cell, size, right) in enumerate(zip(cells, widths, rights, strict=True)):
        if index:
            line.append(" " * _COLUMN_GAP)
        line.append(fit(cell.text, size, right=right), style=cell.style or None)
    return padded(line, width, style)


def padded(line: Text, width: int, style: str = "") -> Text:
    """The line cut or filled to the width, in the style."""
    line.truncate(width, overflow="ellipsis", pad=True)
    if style:
        line.stylize(style)
    return line


GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"
_STATES: Final = {
    StreamState.LIVE: Cell("live", GOOD),
    StreamState.QUIET: Cell("quiet", WARN),
    StreamState.VACANT: Cell("vacant", WARN),
    StreamState.STALE: Cell("stale", BAD),
}
# The worst state first: sorting by state shows the streams with problems.
_SEVERITY: Final = {state: rank for rank, state in enumerate(reversed(StreamState))}


@dataclass(frozen=True, slots=True)
class TopTable:
    """A tab of the page: rows of one kind."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Callable[[Snapshot], Sequence[Any]]
    key: Callable[[Any], Any]
    """The identity of a row, by which the cursor finds it again."""
    stream_id: Callable[[Any], int | None]
    """The stream whose details belong to the row."""
    filter_text: Callable[[Any], str]
    """The text that a filter searches."""
    empty: str
    """Shown if there are no rows."""


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """A consumer with the name of its stream."""

    name: str
    consumer: ConsumerView


@dataclass(frozen=True, slots=True)
class NamedMapping:
    """A mapping with the instance of its bridge."""

    bridge: str
    mapping: MappingView

    @property
    def key(self) -> tuple[str, str, int, int | None]:
        """What identifies the mapping."""
        return (
            self.bridge,
            self.mapping.direction,
            self.mapping.source_stream_id,
            self.mapping.dest_stream_id,
        )

    @property
    def local_stream_id(self) -> int | None:
        """The stream of this host: the source of a sender, the destination of a receiver."""
        mapping = self.mapping
        return mapping.source_stream_id if mapping.direction == "send" else mapping.dest_stream_id


def drops_per_s(stream: StreamView) -> float | None:
    """Frames that all consumers lose a second; None if no consumer reports it."""
    rates = [c.dropped_per_s for c in stream.consumers if c.dropped_per_s is not None]
    return sum(rates) if rates else None


def reasons_text(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {n:,}" for reason, n in ordered if n)


def rate_text(value: float | None) -> str:
    """A rate with at most one decimal; empty if it is not known."""
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _mebibytes(value: float | None) -> str:
    return "" if value is None else f"{value / (1 << 20):,.1f}"


def _drop_rate(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(rate_text(value) if value else "0", WARN if value else DIM)


def _duration(ns: int | None) -> str:
    return "" if ns is None else format_duration(ns / 1e9)


def _p50(latency: LatencyView | None) -> int | None:
    return None if latency is None else latency.p50_ns


def _p99(latency: LatencyView | None) -> int | None:
    return None if latency is None else latency.p99_ns


def _lost(counts: Mapping[str, int]) -> int:
    return sum(n for reason, n in counts.items() if reason not in ON_PURPOSE)


def _reasons(counts: Mapping[str, int]) -> Cell:
    return Cell(reasons_text(counts), WARN if _lost(counts) else DIM)


STREAM_COLUMNS: Final[tuple[Column[StreamView], ...]] = (
    Column("stream", lambda s: str(s.stream_id), lambda s: s.stream_id, right=True, weight=0),
    Column("name", lambda s: s.name, lambda s: s.name or None, elastic=10, weight=1),
    Column("state", lambda s: _STATES[s.state], lambda s: _SEVERITY[s.state], weight=0),
    Column("fps", lambda s: rate_text(s.rate_hz), lambda s: s.rate_hz, right=True, weight=0),
    Column("MiB/s", lambda s: _mebibytes(s.bytes_per_s), lambda s: s.bytes_per_s, right=True, weight=2),
    Column("p99", lambda s: _duration(_p99(s.latency)), lambda s: _p99(s.latency), right=True, weight=3),
    Column("cons", lambda s: str(len(s.consumers)), lambda s: len(s.consumers), right=True, weight=4),
    Column("drop/s", lambda s: _drop_rate(drops_per_s(s)), drops_per_s, right=True, weight=0),
    Column("memory", lambda s: format_bytes(s.nbytes), lambda s: s.nbytes, right=True, weight=9),
    Column("age", lambda s: _duration(s.announce_age_ns), lambda s: s.announce_age_ns, right=True, weight=10),
    Column("dropped", lambda s: _reasons(s.dropped), lambda s: _lost(s.dropped), elastic=10, weight=5),
)

CONSUMER_COLUMNS: Final[tuple[Column[NamedConsumer], ...]] = (
    Column(
        "consumer",
        lambda c: str(c.consumer.consumer_id),
        lambda c: c.consumer.consumer_id,
        right=True,
        weight=0,
    ),
    Column(
        "stream", lambda c: str(c.consumer.stream_id), lambda c: c.consumer.stream_id, right=True, weight=0
    ),
    Column("label", lambda c: c.consumer.label, lambda c: c.consumer.label or None, elastic=8, weight=5),
    Column("name", lambda c: c.name, lambda c: c.name or None, elastic=12, weight=6),
    Column(
        "fps", lambda c: rate_text(c.consumer.rate_hz), lambda c: c.consumer.rate_hz, right=True, weight=0
    ),
    Column(
        "p50",
        lambda c: _duration(_p50(c.consumer.latency)),
        lambda c: _p50(c.consumer.latency),
        right=True,
        weight=5,
    ),
    Column(
        "p99",
        lambda c: _duration(_p99(c.consumer.latency)),
        lambda c: _p99(c.consumer.latency),
        right=True,
        weight=2,
    ),
    Column(
        "backlog", lambda c: _count(c.consumer.backlog), lambda c: c.consumer.backlog, right=True, weight=3
    ),
    Column(
        "drop/s",
        lambda c: _drop_rate(c.consumer.dropped_per_s),
        lambda c: c.consumer.dropped_per_s,
        right=True,
        weight=0,
    ),
    Column("mode", lambda c: _mode(c.consumer), lambda c: c.consumer.mode, weight=4),
    Column("pid", lambda c: str(c.consumer.pid or ""), lambda c: c.consumer.pid, right=True, weight=9),
    Column(
        "dropped", lambda c: _reasons(c.consumer.dropped), lambda c: c.consumer.lost, elastic=15, weight=1
    ),
)

LEASE_COLUMNS: Final[tuple[Column[LeaseView], ...]] = (
    Column("lease", lambda lease: str(lease.lease_id), lambda lease: lease.lease_id, right=True, weight=1),
    Column("stream", lambda lease: str(lease.stream_id), lambda lease: lease.stream_id, right=True, weight=0),
    Column("role", lambda lease: lease.role, lambda lease: lease.role, weight=0),
    Column("client", lambda lease: str(lease.client_id), lambda lease: lease.client_id, right=True, weight=0),
    Column("state", lambda lease: lease.state, lambda lease: lease.state, weight=0),
    Column(
        "held for",
        lambda lease: format_duration(lease.age_s),
        lambda lease: lease.age_s,
        right=True,
        weight=2,
    ),
    Column(
        "left",
        lambda lease: "" if lease.expires_in_s is None else format_duration(lease.expires_in_s),
        lambda lease: lease.expires_in_s,
        right=True,
        weight=3,
    ),
    Column("driver", lambda lease: lease.driver, lambda lease: lease.driver, elastic=12, weight=4),
)

MAPPING_COLUMNS: Final[tuple[Column[NamedMapping], ...]] = (
    Column("bridge", lambda m: m.bridge, lambda m: m.bridge, elastic=12, weight=3),
    Column("", lambda m: m.mapping.direction, lambda m: m.mapping.direction, weight=0),
    Column(
        "stream",
        lambda m: str(m.mapping.source_stream_id),
        lambda m: m.mapping.source_stream_id,
        right=True,
        weight=0,
    ),
    Column(
        "to",
        lambda m: str(m.mapping.dest_stream_id or "?"),
        lambda m: m.mapping.dest_stream_id,
        right=True,
        weight=0,
    ),
    Column(
        "state",
        lambda m: Cell("connected", GOOD) if m.mapping.connected else Cell("not connected", WARN),
        lambda m: m.mapping.connected,
        weight=0,
    ),
    Column(
        "fps",
        lambda m: rate_text(m.mapping.frames_per_s),
        lambda m: m.mapping.frames_per_s,
        right=True,
        weight=0,
    ),
    Column("frames", lambda m: f"{m.mapping.frames:,}", lambda m: m.mapping.frames, right=True, weight=2),
    Column(
        "on the way", lambda m: _count(m.mapping.network), lambda m: m.mapping.network, right=True, weight=1
    ),
    Column(
        "dropped",
        lambda m: Cell(m.mapping.fault, BAD) if m.mapping.fault else _reasons(m.mapping.dropped),
        lambda m: _lost(m.mapping.dropped),
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
    Column("MiB/s", lambda r: _mebibytes(r.bytes_per_s), lambda r: r.bytes_per_s, right=True, weight=2),
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
    Column("gaps", lambda r: _reasons(r.gaps), lambda r: _lost(r.gaps), elastic=12, weight=6),
    Column("where", lambda r: r.problem or r.root, lambda r: r.root, elastic=15, weight=7),
)

NOTICE_COLUMNS: Final[tuple[Column[NoticeView], ...]] = (
    Column("ago", lambda n: _duration(n.age_ns), lambda n: n.age_ns, right=True, weight=0),
    Column("what", lambda n: n.kind, lambda n: n.kind, weight=0),
    Column("stream", lambda n: str(n.stream_id or ""), lambda n: n.stream_id, right=True, weight=1),
    Column("", lambda n: n.text, lambda n: n.text, elastic=12, weight=0),
)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _mode(consumer: ConsumerView) -> Cell:
    if consumer.fallback_uri:
        return Cell("fallback", WARN)
    if consumer.mode != "rate_limited":
        return Cell("")
    return Cell(f"≤ {consumer.max_rate_hz} Hz" if consumer.max_rate_hz else "limited", WARN)


TABLES: Final[tuple[TopTable, ...]] = (
    TopTable(
        "streams",
        STREAM_COLUMNS,
        lambda snapshot: snapshot.streams,
        lambda row: row.stream_id,
        lambda row: row.stream_id,
        lambda row: " ".join((str(row.stream_id), row.name, str(row.state), *row.tags)),
        "no stream is announced",
    ),
    TopTable(
        "consumers",
        CONSUMER_COLUMNS,
        lambda snapshot: [NamedConsumer(s.name, c) for s in snapshot.streams for c in s.consumers],
        lambda row: (row.consumer.stream_id, row.consumer.consumer_id),
        lambda row: row.consumer.stream_id,
        lambda row: " ".join(
            (
                str(row.consumer.consumer_id),
                str(row.consumer.stream_id),
                row.name,
                row.consumer.label,
                row.consumer.mode,
            )
        ),
        "no stream has a consumer",
    ),
    TopTable(
        "leases",
        LEASE_COLUMNS,
        lambda snapshot: snapshot.leases,
        lambda row: (row.driver, row.lease_id),
        lambda row: row.stream_id,
        lambda row: f"{row.lease_id} {row.stream_id} {row.client_id} {row.role} {row.state} {row.driver}",
        "no driver reports leases",
    ),
    TopTable(
        "bridges",
        MAPPING_COLUMNS,
        lambda snapshot: [NamedMapping(b.instance, m) for b in snapshot.bridges for m in b.mappings],
        lambda row: row.key,
        lambda row: row.local_stream_id,
        lambda row: " ".join(map(str, row.key)),
        "no bridge runs on this media driver",
    ),
    TopTable(
        "recorders",
        RECORDER_COLUMNS,
        lambda snapshot: snapshot.recorders,
        lambda row: (row.tag, row.pid),
        lambda row: row.streams[0] if row.streams else None,
        lambda row: f"{row.instance} {row.state} {row.root}",
        "no recorder runs on this media driver",
    ),
    TopTable(
        "events",
        NOTICE_COLUMNS,
        lambda snapshot: snapshot.notices[::-1],
        lambda row: (row.kind, row.stream_id, row.text),
        lambda row: row.stream_id,
        lambda row: f"{row.kind} {row.stream_id or ''} {row.text}",
        "nothing has happened yet",
    ),
)
