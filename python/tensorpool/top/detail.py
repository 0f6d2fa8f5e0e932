"""One stream in all its details, as lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from ..monitor.snapshot import PoolView, ProducerView, Snapshot, StreamView
from ..units import format_bytes, format_duration
from .layout import Cell, Column, clean, lay_out, line_of, padded
from .tables import (
    CONSUMER_COLUMNS,
    DIM,
    LEASE_COLUMNS,
    STREAM_COLUMNS,
    WARN,
    NamedConsumer,
    reasons_text,
)

_STATE = next(one for one in STREAM_COLUMNS if one.title == "state")
_LABEL: Final = 11
_FACTS: Final = 44
"""Columns that the facts get beside a picture."""
# Both are said above already.
_CONSUMERS: Final = [one for one in CONSUMER_COLUMNS if one.title not in ("stream", "name")]
_LEASES: Final = [one for one in LEASE_COLUMNS if one.title != "stream"]


def picture_size(width: int, height: int) -> tuple[int, int]:
    """Columns and lines for a picture beside the facts; none where there is no room."""
    columns = width - _FACTS - 2
    return (min(columns, 64), min(14, height - 6)) if columns >= 16 and height >= 12 else (0, 0)


def detail_lines(snapshot: Snapshot, stream_id: int, width: int, picture: Sequence[Text] = ()) -> list[Text]:
    """All of them; whoever draws shows as many as there is room for."""
    stream = snapshot.stream(stream_id)
    if stream is None:
        return [_words(f"stream {stream_id} is gone; it comes back here if it is announced again", WARN)]
    lines = [_heading(stream), *_beside(list(_facts(stream, snapshot)), picture, width)]
    lines += _section("consumers", _CONSUMERS, [NamedConsumer("", one) for one in stream.consumers], width)
    leases = [one for one in snapshot.leases if one.stream_id == stream_id]
    lines += _section("leases", _LEASES, leases, width)
    lines += list(_recorded(snapshot, stream_id))
    return lines


def _words(text: str, style: str = "") -> Text:
    return Text(clean(text), style=style, no_wrap=True)


def _heading(stream: StreamView) -> Text:
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
    if stream.feeds:
        yield _fact("feeds", ", ".join(_named(snapshot, one) for one in stream.feeds))
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
