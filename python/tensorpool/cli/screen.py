"""How commands speak to people: tables that fit, figures in words, colour only where it is wanted."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..runtime.config import format_size

# Nobody looks at the edge of a file: what is not a terminal gets lines that are not broken.
_FILE_WIDTH: Final = 200
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"


def console(*, err: bool = False) -> Console:
    """Where a command prints. `NO_COLOR` and a pipe turn colours off."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _FILE_WIDTH
    return Console(file=stream, highlight=False, width=width)


def columns(*names: str, right: Sequence[str] = (), last_wraps: bool = False) -> Table:
    """A table as plain as that of `ls`: a bold head, no lines, columns two spaces apart."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        wraps = last_wraps and name == names[-1]
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not wraps,
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


def bytes_text(size: float) -> str:
    """`1.5 MiB`; whole numbers without a fraction."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if size == int(size) or unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def span_text(seconds: float) -> str:
    """`1.2 s`, `250 ms`, `5 min`, `3 h`, `2 d`: one figure that a person can place."""
    if not math.isfinite(seconds):
        return "?"
    size = abs(seconds)
    if size < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if size < 1:
        return f"{seconds * 1e3:.0f} ms"
    if size < 120:
        return f"{seconds:.1f} s"
    if size < 7200:
        return f"{seconds / 60:.0f} min"
    if size < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def size_text(size: int) -> str:
    """A size that is a whole number of units: `1MiB`."""
    return str(format_size(size))


def shape_text(shape: Sequence[int] | None) -> str:
    return "" if shape is None else "x".join(map(str, shape)) if shape else "scalar"
