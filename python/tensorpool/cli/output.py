"""How commands speak to people: tables that fit, figures in words, colour only where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from ..units import format_bytes, format_duration, format_shape, size_literal

__all__ = [
    "BAD",
    "DIM",
    "GOOD",
    "WARN",
    "columns",
    "console",
    "format_bytes",
    "format_duration",
    "format_shape",
    "key_values",
    "size_literal",
]

# Nobody looks at the edge of a file: what is not a terminal gets lines that are not broken.
_FILE_WIDTH: Final = 200
# Columns that give way do not go below this.
_NARROWEST: Final = 8
_GAP: Final = 2
GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"


def console(*, err: bool = False) -> Console:
    """Where a command prints. `NO_COLOR` and a pipe turn colours off.

    Square brackets are words like others: what is printed has names in it that strangers chose.
    """
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _FILE_WIDTH
    return _Screen(file=stream, highlight=False, markup=False, emoji=False, width=width)


class _Screen(Console):
    """Cuts nothing off at the edge: a terminal breaks a line that is too long, and no number is lost."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*objects, **{"crop": False, **how})


class _Columns(Table):
    """Wider than the screen where its numbers would not be whole: half a number cannot be read or copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(width=_FILE_WIDTH)
        needed = sum(self._least(console, free, one) for one in self.columns) + _GAP * (len(self.columns) - 1)
        if needed > options.max_width:
            options = options.update(width=needed)
        yield from super().__rich_console__(console, options)

    @staticmethod
    def _least(console: Console, options: ConsoleOptions, column: Column) -> int:
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(console, options, cell).maximum for cell in cells)
        return widest if column.no_wrap else min(widest, _NARROWEST)


def columns(
    *names: str, right: Sequence[str] = (), narrow: Sequence[str] = ("name",), last_wraps: bool = False
) -> Table:
    """A table as plain as that of `ls`: a bold head, no lines, columns two spaces apart.

    Where all do not fit, those in `narrow` and a last one that wraps give way: half a number tells nothing.
    """
    table = _Columns(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in names:
        wraps = last_wraps and name == names[-1]
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not (wraps or name in narrow),
            overflow="fold" if wraps else "ellipsis",
        )
    return table


def key_values(rows: Sequence[tuple[str, Any]]) -> Table:
    """Names and values below each other."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style=DIM, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return table
