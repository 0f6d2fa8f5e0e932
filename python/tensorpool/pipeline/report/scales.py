"""Numbers as people read them: ticks of an axis, sizes, times. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

UNKNOWN: Final = "\N{EN DASH}"


def ticks(top: float, most: int = 4) -> list[float]:
    """Round numbers from 0 to the first one that is not below `top`: at most `most` steps."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    rough = top / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one for one in _STEPS if one * power >= rough * (1 - 1e-9)) * power
    count = max(math.ceil(top / step - 1e-9), 1)
    return [number * step for number in range(count + 1)]


def count_text(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    """At most four figures: `1.25 M`, `940`, `0.25`."""
    size = abs(value)
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if size >= limit:
            scale = 1e3 if unit == " k" else limit
            return f"{_three(value / scale)}{unit}"
    return _three(value)


def _three(value: float) -> str:
    size = abs(value)
    text = f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size_text(value: float) -> str:
    unit = 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value /= 1024
        unit += 1
    return f"{_three(value)} {_SIZES[unit]}"


def span_text(ns: float | None) -> str:
    """`12.5 ms`; a dash for what is not known."""
    if ns is None:
        return UNKNOWN
    if ns == 0:
        return "0 s"
    if abs(ns) >= 120_000_000_000:
        return _long(abs(ns) / 1e9)
    scale, unit = next((one for one in _TIMES if abs(ns) >= one[0]), _TIMES[-1])
    return f"{_three(ns / scale)} {unit}"


def _long(seconds: float) -> str:
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def moment(ns: int, *, with_date: bool = True, fraction: bool = False) -> str:
    whole, rest = divmod(ns, 1_000_000_000)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")
    return f"{text}.{rest // 1_000_000:03}" if fraction else text
