"""Numbers, sizes, durations, times and shapes as text, and the limits of the numbers of messages.

`parse_…` reads, `…_literal` is exact, `format_…` is for people. Literals are the forms of the configuration:
parsing a literal gives the same value. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from .errors import ConfigError

NULL_U32: Final = 0xFFFF_FFFF
"""The null value of SBE's uint32: all ones."""
MAX_U32: Final = NULL_U32 - 1
MAX_U64: Final = (1 << 64) - 2
"""The largest uint64 of a message; all ones is null."""
INT64_LIMIT: Final = 1 << 63
"""The first number that is too large for an int64."""
MAX_STREAM_ID: Final = MAX_U32
"""The largest id of a stream. It is a uint32 in every message."""
MAX_AERON_STREAM_ID: Final = (1 << 31) - 1
"""The largest id of an Aeron stream: Aeron has 32 bits with a sign, and only positive ids are used here."""
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_SIZE_UNITS: Final = {"": 1, "B": 1, "KiB": _KIB, "MiB": _MIB, "GiB": _GIB}
_SIZE: Final = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")
_DURATION_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.ASCII)
_MAX_DURATION_NS: Final = INT64_LIMIT - 1
_DISPLAY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NUMBER_UNITS: Final = ((1e12, 1e12, " T"), (1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k"))
"""From which magnitude on, divided by what, with which suffix."""
_SHORT_DURATIONS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def parse_size(text: str | int) -> int:
    """Bytes of `"4MiB"`, `"64KiB"`, `"512"` or an int. Raises ConfigError for any other text."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match or match[2] not in _SIZE_UNITS:
        raise ConfigError(f"size {text!r}: write a number and B, KiB, MiB or GiB, as in '4MiB'")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def parse_duration(text: str | int) -> int:
    """Nanoseconds of `"250ms"`, `"1.5s"` or `"2h"`. Only 0 may be written without a unit."""
    if text in (0, "0"):
        return 0
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if not match or match[2] not in _DURATION_UNITS:
        raise ConfigError("write a number and ns, us, ms, s, min, h or d, as in '250ms'")
    ns = Decimal(match[1]) * _DURATION_UNITS[match[2]]
    if ns != ns.to_integral_value():
        raise ConfigError("finer than a nanosecond; round to whole nanoseconds")
    if ns > _MAX_DURATION_NS:
        raise ConfigError("longer than 292 years; the largest duration is 2^63 - 1 ns")
    return int(ns)


def size_literal(size: int) -> str:
    """The exact size in the largest unit that divides it: `4MiB`, `64KiB`, `100`."""
    for unit, factor in (("GiB", _GIB), ("MiB", _MIB), ("KiB", _KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def duration_literal(ns: int) -> str:
    """The exact duration in the largest unit that divides it: `250ms`, `2h`."""
    if ns == 0:
        return "0s"
    unit = next(unit for unit in ("d", "h", "min", "s", "ms", "us", "ns") if ns % _DURATION_UNITS[unit] == 0)
    return f"{ns // _DURATION_UNITS[unit]}{unit}"


def format_bytes(size: float) -> str:
    """`1.5 MiB`: one decimal, none where the number is whole."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_DISPLAY_UNITS) - 1:
        size /= 1024
        unit += 1
    decimals = 0 if size == int(size) or unit == 0 else 1
    return f"{size:.{decimals}f} {_DISPLAY_UNITS[unit]}"


def format_duration(seconds: float) -> str:
    """`1.2 s`, `250 ms`, `5 min`, `3 h`, `2 d`: one number in a unit that suits its size."""
    if not math.isfinite(seconds):
        return "?"
    magnitude = abs(seconds)
    if magnitude < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if magnitude < 1:
        return f"{seconds * 1e3:.0f} ms"
    if magnitude < 120:
        return f"{seconds:.1f} s"
    if magnitude < 7200:
        return f"{seconds / 60:.0f} min"
    if magnitude < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def format_shape(shape: Sequence[int] | None) -> str:
    """`480x640`; `scalar` for no dimensions, empty text where the shape is unknown."""
    if shape is None:
        return ""
    return "x".join(map(str, shape)) if shape else "scalar"


def format_count(value: float) -> str:
    """`12,345`: a whole number with separators."""
    return f"{value:,.0f}"


def format_number(value: float) -> str:
    """At most three figures and a suffix: `1.25 M`, `940`, `0.25`."""
    for minimum, divisor, suffix in _NUMBER_UNITS:
        if abs(value) >= minimum:
            return f"{_three_figures(value / divisor)}{suffix}"
    return _three_figures(value)


def format_precise_duration(ns: float) -> str:
    """`12.5 ms`, `850 ns`: three figures; from two minutes on two units, as in `1 h 5 min`."""
    if ns == 0:
        return "0 s"
    if abs(ns) >= 120_000_000_000:
        return _two_units(abs(ns) / 1e9)
    divisor, unit = next((entry for entry in _SHORT_DURATIONS if abs(ns) >= entry[0]), _SHORT_DURATIONS[-1])
    return f"{_three_figures(ns / divisor)} {unit}"


def _two_units(seconds: float) -> str:
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _three_figures(value: float) -> str:
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_time_utc(ns: int, *, with_date: bool = True, with_ms: bool = False) -> str:
    """`2026-03-01 12:00:00` of a wall clock time in nanoseconds, in UTC."""
    seconds, rest = divmod(ns, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")
    return f"{text}.{rest // 1_000_000:03}" if with_ms else text
