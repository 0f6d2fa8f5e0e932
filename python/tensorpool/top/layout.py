"""Columns that fit a width. Pure: cells in, lines out.

What does not fit goes by its weight: columns that matter least are left out first, then elastic ones are
cut. Names come from the wire: what a terminal would obey is shown as a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

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
