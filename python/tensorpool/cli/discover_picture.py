"""`tensorpool discover --watch` on a terminal: a table that goes on, where what has just happened is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from ..discovery import DiscoveredStream
from .screen import DIM, GOOD, WARN, columns, format_duration, size_text

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


class Picture:
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
