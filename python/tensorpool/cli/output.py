"""Console output of commands: the console, tables that fit it, and formats of figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ..text import safe_lines, safe_text
from ..units import format_bytes, format_duration, format_shape, size_literal

__all__ = [
    "BAD",
    "DIM",
    "GOOD",
    "WARN",
    "columns",
    "console",
    "echo",
    "format_bytes",
    "format_duration",
    "format_shape",
    "key_values",
    "size_literal",
]

_FILE_WIDTH: Final = 200
"""Width of output that is not a terminal: its lines are not wrapped."""
_MIN_WIDTH: Final = 8
"""The least width of a column that may be cut."""
_GAP: Final = 2
GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"


def console(*, err: bool = False) -> Console:
    """The console of a command. `NO_COLOR` and a pipe turn colours off.

    Square brackets are plain text, not markup: the names of streams come from the wire.
    """
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _FILE_WIDTH
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


class _Console(Console):
    """Cuts nothing at the right edge: the terminal wraps a line that is too long, and no digit is lost."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*objects, **{"crop": False, **how})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        # The last net: whatever is rendered, only rich's own styles reach the terminal as escape sequences.
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(safe_lines(segment.text), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """Prints text that may contain names of other processes; line breaks stay."""
    click.echo(safe_lines(text), err=err)


class _Columns(Table):
    """A table that exceeds the screen if a number would be cut: half a number cannot be read or copied.

    Cells of text are made safe: a line break in a name would forge a row.
    """

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        """Adds a row."""
        super().add_row(*(safe_text(cell) if isinstance(cell, str) else cell for cell in cells), **how)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(width=_FILE_WIDTH)
        needed = sum(self._least_width(console, free, column) for column in self.columns) + _GAP * (
            len(self.columns) - 1
        )
        if needed > options.max_width:
            options = options.update(width=needed)
        yield from super().__rich_console__(console, options)

    @staticmethod
    def _least_width(console: Console, options: ConsoleOptions, column: Column) -> int:
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(console, options, cell).maximum for cell in cells)
        return widest if column.no_wrap else min(widest, _MIN_WIDTH)


def columns(
    *names: str, right: Sequence[str] = (), narrow: Sequence[str] = ("name",), last_wraps: bool = False
) -> Table:
    """A table without lines: bold headings, columns two spaces apart.

    If it does not fit, columns in `narrow` are cut, and a last column that wraps becomes narrower. Numbers
    are never cut.
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
    """A table of names and values."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style=DIM, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(safe_text(name), value if isinstance(value, Text) else Text(safe_text(str(value))))
    return table
