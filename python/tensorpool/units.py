"""Figures in words: sizes, spans of time, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(size: float) -> str:
    """`1.5 MiB`; whole numbers without a fraction."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if size == int(size) or unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def format_duration(seconds: float) -> str:
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


def format_shape(shape: Sequence[int] | None) -> str:
    return "" if shape is None else "x".join(map(str, shape)) if shape else "scalar"
