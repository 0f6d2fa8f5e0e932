"""How commands speak to people: tables that fit, figures in words, colour only where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..observe.figures import bytes_text, shape_text, span_text
from ..runtime.config import format_size

__all__ = [
    "BAD",
    "DIM",
    "GOOD",
    "WARN",
    "bytes_text",
    "columns",
    "console",
    "pairs",
    "shape_text",
    "size_text",
    "span_text",
]

# Nobody looks at the edge of a file: what is not a terminal gets lines that are not broken.
_FILE_WIDTH: Final = 200
GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"


def console(*, err: bool = False) -> Console:
    """Where a command prints. `NO_COLOR` and a pipe turn colours off.

    Square brackets are words like others: what is printed has names in it that strangers chose.
    """
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _FILE_WIDTH
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def columns(
    *names: str, right: Sequence[str] = (), narrow: Sequence[str] = ("name",), last_wraps: bool = False
) -> Table:
    """A table as plain as that of `ls`: a bold head, no lines, columns two spaces apart.

    Where all do not fit, those in `narrow` and a last one that wraps give way: half a number tells nothing.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        wraps = last_wraps and name == names[-1]
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not (wraps or name in narrow),
            overflow="fold" if wraps else "ellipsis",
        )
    return table


def pairs(rows: Sequence[tuple[str, Any]]) -> Table:
    """Names and values below each other."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style=DIM, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return table


def size_text(size: int) -> str:
    """A size that is a whole number of units: `1MiB`."""
    return str(format_size(size))
