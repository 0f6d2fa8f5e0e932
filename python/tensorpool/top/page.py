"""What the page shows, and what a key changes. Pure: keys and snapshots in.

The cursor is on a thing, not on a line: it stays with its row when others come, go or change places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ..monitor.snapshot import Snapshot
from . import keyboard
from .tables import TABLES, Table

_LONGEST_FILTER: Final = 64
_Made = TypeVar("_Made")


@dataclass
class Sorting:
    """By which column, and which way round."""

    column: int | None = None
    reverse: bool = False


@dataclass
class PageState:
    """The state of the screen."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0))
    tab: int = 0
    detail: int | None = None
    """The stream whose details are shown."""
    is_help: bool = False
    is_typing: bool = False
    is_paused: bool = False
    wants_picture: bool = True
    done: bool = False
    filter: str = ""
    height: int = 20
    """Rows that fit; told by whoever draws."""
    _sorting: list[Sorting] = field(default_factory=lambda: [Sorting() for _ in TABLES])
    _cursor: list[Any] = field(default_factory=lambda: [None for _ in TABLES])
    _line: list[int] = field(default_factory=lambda: [0 for _ in TABLES])
    _top: list[int] = field(default_factory=lambda: [0 for _ in TABLES])
    scroll: int = 0
    """How far the details are scrolled."""
    _made: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)

    # --- what there is to see

    @property
    def table(self) -> Table:
        return TABLES[self.tab]

    @property
    def sorting(self) -> Sorting:
        return self._sorting[self.tab]

    def show(self, snapshot: Snapshot) -> None:
        """A newer snapshot; a page that is paused keeps the one it has."""
        if not self.is_paused:
            self.snapshot = snapshot

    def rows(self) -> list[Any]:
        """The rows that the filter lets through, in their order."""
        return self.once("rows", 0, self._rows)

    def once(self, what: str, width: int, make: Callable[[], _Made]) -> _Made:
        """The same until something else is to be seen: a key that moves the cursor over thousands of rows
        must not lay them out anew."""
        key = (self.tab, self.filter, self.sorting.column, self.sorting.reverse, width)
        snapshot, seen, made = self._made.get(what, (None, None, None))
        if snapshot is not self.snapshot or seen != key:
            made = make()
            self._made[what] = (self.snapshot, key, made)
        found: _Made = made
        return found

    def _rows(self) -> list[Any]:
        table, sorting = self.table, self.sorting
        wanted = self.filter.lower().split()
        found = [
            row
            for row in table.rows(self.snapshot)
            if not wanted or all(word in table.words(row).lower() for word in wanted)
        ]
        if sorting.column is None:
            return found
        value = table.columns[sorting.column].value
        known = [row for row in found if value(row) is not None]
        known.sort(key=value, reverse=sorting.reverse)
        return known + [row for row in found if value(row) is None]

    def window(self, rows: Sequence[Any]) -> tuple[int, int]:
        """The first row on the screen, and the one with the cursor."""
        line = self._find(rows)
        top = min(self._top[self.tab], line, max(0, len(rows) - self.height))
        top = max(top, line - self.height + 1, 0)
        self._top[self.tab] = top
        return top, line

    def _find(self, rows: Sequence[Any]) -> int:
        """The line of the cursor: that of its thing, or the nearest to where it was."""
        if not rows:
            return 0
        wanted = self._cursor[self.tab]
        line = min(self._line[self.tab], len(rows) - 1)
        # Nobody has chosen anything yet: the first line, whatever comes to stand there.
        if wanted is None:
            return line
        # A thing may be there twice (two events alike): the cursor stays where it is then.
        if self.table.key(rows[line]) != wanted:
            for place, row in enumerate(rows):
                if self.table.key(row) == wanted:
                    line = place
                    break
        self._put(rows, line)
        return line

    def _put(self, rows: Sequence[Any], line: int) -> None:
        self._line[self.tab] = line
        self._cursor[self.tab] = self.table.key(rows[line])

    def selected(self) -> int | None:
        """The stream of the row with the cursor."""
        rows = self.rows()
        return self.table.stream_id(rows[self._find(rows)]) if rows else None

    # --- keys

    def press(self, key: str) -> None:
        """A key; what means nothing here changes nothing."""
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
        elif len(key) == 1 and key.isprintable() and len(self.filter) < _LONGEST_FILTER:
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
                self.wants_picture = not self.wants_picture
            case keyboard.ESCAPE | keyboard.BACKSPACE:
                self._back()
            case keyboard.TAB | keyboard.BACK_TAB:
                self._to_tab((self.tab + (1 if key == keyboard.TAB else -1)) % len(TABLES))
            case _ if len(key) == 1 and "1" <= key <= str(len(TABLES)):
                self._to_tab(int(key) - 1)
            case (
                keyboard.UP
                | keyboard.DOWN
                | "k"
                | "j"
                | keyboard.PAGE_UP
                | keyboard.PAGE_DOWN
                | keyboard.HOME
                | keyboard.END
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

    def _to_tab(self, tab: int) -> None:
        self.tab, self.detail = tab, None

    def _sort(self, step: int) -> None:
        """The next column; figures begin with the largest, words with the first."""
        sorting, count = self.sorting, len(self.table.columns)
        # Between the last column and the first one lies the order that things come in.
        place = count if sorting.column is None else sorting.column
        place = (place + step) % (count + 1)
        sorting.column = None if place == count else place
        sorting.reverse = sorting.column is not None and place > 0 and self.table.columns[place].right

    def _move(self, key: str) -> None:
        steps = {keyboard.UP: -1, "k": -1, keyboard.DOWN: 1, "j": 1}
        steps |= {
            keyboard.PAGE_UP: -self.height,
            keyboard.PAGE_DOWN: self.height,
            keyboard.HOME: -(1 << 31),
            keyboard.END: 1 << 31,
        }
        if self.detail is not None:
            self.scroll = max(0, self.scroll + steps[key])
            return
        rows = self.rows()
        if rows:
            self._put(rows, min(max(self._find(rows) + steps[key], 0), len(rows) - 1))

    def sort_by(self, title: str, *, reverse: bool | None = None) -> bool:
        """By a column's title, as `--sort` has it; False if there is none of that name."""
        for place, column in enumerate(self.table.columns):
            if column.title == title:
                self.sorting.column = place
                self.sorting.reverse = column.right and place > 0 if reverse is None else reverse
                return True
        return False
