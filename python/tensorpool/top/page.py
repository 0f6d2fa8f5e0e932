"""The state of the page of `tensorpool top`, and what each key changes. Pure.

The cursor belongs to a row, not to a line: it stays with its row when other rows appear, go or move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ..monitor.snapshot import Snapshot
from . import keyboard
from .tables import TABLES, TopTable

_MAX_FILTER: Final = 64
_Cached = TypeVar("_Cached")


@dataclass
class Sorting:
    """The column that sorts the rows, and the direction."""

    column: int | None = None
    reverse: bool = False


@dataclass
class PageState:
    """Everything that a screen is drawn from."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0))
    tab: int = 0
    detail: int | None = None
    """The stream whose details are shown."""
    is_help: bool = False
    is_typing: bool = False
    is_paused: bool = False
    is_preview_shown: bool = True
    done: bool = False
    filter: str = ""
    height: int = 20
    """Rows that fit on the screen; set before drawing."""
    _sorting: list[Sorting] = field(default_factory=lambda: [Sorting() for _ in TABLES])
    _cursor: list[Any] = field(default_factory=lambda: [None for _ in TABLES])
    _line: list[int] = field(default_factory=lambda: [0 for _ in TABLES])
    _top: list[int] = field(default_factory=lambda: [0 for _ in TABLES])
    scroll: int = 0
    """First line of the details on the screen."""
    _cache: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)

    # --- rows

    @property
    def table(self) -> TopTable:
        """The table of the current tab."""
        return TABLES[self.tab]

    @property
    def sorting(self) -> Sorting:
        """The sorting of the current tab."""
        return self._sorting[self.tab]

    def show(self, snapshot: Snapshot) -> None:
        """Takes a newer snapshot; a paused page keeps its own."""
        if not self.is_paused:
            self.snapshot = snapshot

    def rows(self) -> list[Any]:
        """The rows that match the filter, sorted."""
        return self.cached("rows", 0, self._rows)

    def cached(self, what: str, width: int, compute: Callable[[], _Cached]) -> _Cached:
        """The computed value, until snapshot, tab, filter, sorting or width change.

        A key that moves the cursor must not lay out thousands of rows again.
        """
        key = (self.tab, self.filter, self.sorting.column, self.sorting.reverse, width)
        snapshot, cached_key, cached = self._cache.get(what, (None, None, None))
        if snapshot is not self.snapshot or cached_key != key:
            cached = compute()
            self._cache[what] = (self.snapshot, key, cached)
        value: _Cached = cached
        return value

    def _rows(self) -> list[Any]:
        table, sorting = self.table, self.sorting
        terms = self.filter.lower().split()
        rows = [
            row
            for row in table.rows(self.snapshot)
            if not terms or all(term in table.filter_text(row).lower() for term in terms)
        ]
        if sorting.column is None:
            return rows
        value = table.columns[sorting.column].value
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=sorting.reverse)
        return known + [row for row in rows if value(row) is None]

    def window(self, rows: Sequence[Any]) -> tuple[int, int]:
        """The indices of the first row on the screen and of the row with the cursor."""
        line = self._find(rows)
        top = min(self._top[self.tab], line, max(0, len(rows) - self.height))
        top = max(top, line - self.height + 1, 0)
        self._top[self.tab] = top
        return top, line

    def _find(self, rows: Sequence[Any]) -> int:
        """The line of the cursor: that of its row, or the nearest line if the row has gone."""
        if not rows:
            return 0
        selected = self._cursor[self.tab]
        line = min(self._line[self.tab], len(rows) - 1)
        # No key has moved the cursor yet: it stays on the first line.
        if selected is None:
            return line
        # Two rows may have the same key (two equal events): the cursor stays on its line then.
        if self.table.key(rows[line]) != selected:
            for index, row in enumerate(rows):
                if self.table.key(row) == selected:
                    line = index
                    break
        self._select(rows, line)
        return line

    def _select(self, rows: Sequence[Any], line: int) -> None:
        self._line[self.tab] = line
        self._cursor[self.tab] = self.table.key(rows[line])

    def selected(self) -> int | None:
        """The stream of the row with the cursor."""
        rows = self.rows()
        return self.table.stream_id(rows[self._find(rows)]) if rows else None

    # --- keys

    def press(self, key: str) -> None:
        """Handles a key; unknown keys change nothing."""
        if key == keyboard.INTERRUPT:
            self.done = True
        elif self.is_typing:
            self._type(key)
        elif self.is_help:
            self.is_help = False
            self.done = key == "q"
        else:
            self._command(key)

    def _type(self, key: str) -> None:
        if key == keyboard.ENTER:
            self.is_typing = False
        elif key == keyboard.ESCAPE:
            self.is_typing, self.filter = False, ""
        elif key == keyboard.BACKSPACE:
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.filter) < _MAX_FILTER:
            self.filter += key

    def _command(self, key: str) -> None:
        match key:
            case "q":
                self.done = True
            case "?" | "h":
                self.is_help = True
            case " ":
                self.is_paused = not self.is_paused
            case "p":
                self.is_preview_shown = not self.is_preview_shown
            case keyboard.ESCAPE | keyboard.BACKSPACE:
                self._back()
            case keyboard.TAB | keyboard.BACK_TAB:
                self._open_tab((self.tab + (1 if key == keyboard.TAB else -1)) % len(TABLES))
            case _ if len(key) == 1 and "1" <= key <= str(len(TABLES)):
                self._open_tab(int(key) - 1)
            case (
                keyboard.UP
                | keyboard.DOWN
                | "k"
                | "j"
                | keyboard.PAGE_UP
                | keyboard.PAGE_DOWN
                | keyboard.TO_START
                | keyboard.TO_END
            ):
                self._move(key)
            case _ if self.detail is None:
                self._list_command(key)

    def _list_command(self, key: str) -> None:
        match key:
            case keyboard.ENTER:
                self.detail, self.scroll = self.selected(), 0
            case "/":
                self.is_typing = True
            case "s" | ">":
                self._sort(1)
            case "S" | "<":
                self._sort(-1)
            case "r":
                self.sorting.reverse = not self.sorting.reverse

    def _back(self) -> None:
        if self.detail is not None:
            self.detail = None
        else:
            self.filter = ""

    def _open_tab(self, tab: int) -> None:
        self.tab, self.detail = tab, None

    def _sort(self, step: int) -> None:
        """Sorts by the next column: numbers with the largest first, text in alphabetical order."""
        sorting, count = self.sorting, len(self.table.columns)
        # Between the last column and the first comes the snapshot's own order.
        index = count if sorting.column is None else sorting.column
        index = (index + step) % (count + 1)
        sorting.column = None if index == count else index
        sorting.reverse = sorting.column is not None and index > 0 and self.table.columns[index].right

    def _move(self, key: str) -> None:
        steps = {keyboard.UP: -1, "k": -1, keyboard.DOWN: 1, "j": 1}
        steps |= {
            keyboard.PAGE_UP: -self.height,
            keyboard.PAGE_DOWN: self.height,
            keyboard.TO_START: -(1 << 31),
            keyboard.TO_END: 1 << 31,
        }
        if self.detail is not None:
            self.scroll = max(0, self.scroll + steps[key])
            return
        rows = self.rows()
        if rows:
            self._select(rows, min(max(self._find(rows) + steps[key], 0), len(rows) - 1))

    def sort_by(self, title: str, *, reverse: bool | None = None) -> bool:
        """Sorts by the title of a column, as `--sort` does; False if there is no such column."""
        for index, column in enumerate(self.table.columns):
            if column.title == title:
                self.sorting.column = index
                self.sorting.reverse = column.right and index > 0 if reverse is None else reverse
                return True
        return False
