"""Values as people write them: times, sizes, ranges of ids, file modes, secrets."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from ...errors import ConfigError
from ...shm import parse_size as parse_size  # noqa: PLC0414 one place for all units

_TIME_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.ASCII)
_SIZE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_MAX_NS = (1 << 63) - 1
_MAX_ID = (1 << 32) - 1
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", re.ASCII)

DurationNs = Annotated[int, "duration"]
"""Nanoseconds, written as `"250ms"`. The key loses the attribute's `_ns`."""
SizeBytes = Annotated[int, "size"]
"""Bytes, written as `"4MiB"`. The key loses the attribute's `_bytes`."""
FileMode = Annotated[int, "mode"]
"""Permission bits, written as `"0640"`."""


def parse_duration(text: str | int) -> int:
    """Nanoseconds of `"250ms"`, `"1.5s"`, `"2h"`; of numbers only 0 needs no unit."""
    if text in (0, "0"):
        return 0
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if not match or match[2] not in _TIME_UNITS:
        raise ConfigError("write a number and ns, us, ms, s, min, h or d, as in '250ms'")
    ns = Decimal(match[1]) * _TIME_UNITS[match[2]]
    if ns != ns.to_integral_value():
        raise ConfigError("finer than a nanosecond")
    if ns > _MAX_NS:
        raise ConfigError("longer than 292 years")
    return int(ns)


def format_duration(ns: int) -> str:
    """The shortest whole number that says it exactly."""
    if ns == 0:
        return "0s"
    unit = next(unit for unit in ("d", "h", "min", "s", "ms", "us", "ns") if ns % _TIME_UNITS[unit] == 0)
    return f"{ns // _TIME_UNITS[unit]}{unit}"


def format_size(size: int) -> str | int:
    for unit, factor in _SIZE_UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return size


@dataclass(frozen=True, slots=True, order=True)
class IdRange:
    """Ids from `first` to `last`, both included; written as `"20000-29999"`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | int) -> IdRange:
        match = _RANGE.fullmatch(str(text))
        if not match:
            raise ConfigError("write the first and the last id, as in '20000-29999'")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ConfigError(f"ends before it begins; '{last}-{first}' would do")
        if last > _MAX_ID:
            raise ConfigError(f"ids end at {_MAX_ID}")
        return cls(first, last)

    def overlaps(self, other: IdRange) -> bool:
        return self.first <= other.last and other.first <= self.last

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.first <= value <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class Secret:
    """Text that shows itself to nobody by accident: not in logs, errors, or a printed configuration."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Never hand it to anything that prints."""
        return self._text

    def matches(self, candidate: str | bytes) -> bool:
        """Whether they are the same; takes as long for a near miss as for a wild guess."""
        given = candidate.encode(errors="surrogatepass") if isinstance(candidate, str) else candidate
        return hmac.compare_digest(self._text.encode(), given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other.reveal())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled; hand over where it comes from")
