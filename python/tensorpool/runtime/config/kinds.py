"""Kinds of setting values: how each is read from TOML and from text, checked, and written back.

`kind_of` returns the kind of an annotation. An error names a valid form of the value; the caller adds the
key, the value and the line. Pure.
"""

from __future__ import annotations

import hmac
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from ...errors import ConfigError
from ...units import duration_literal, parse_duration, parse_size, size_literal
from . import toml_text

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_MAX_ID: Final = (1 << 32) - 1
_MAX_MODE: Final = 0o7777
_RANGE: Final = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", re.ASCII)

DurationNs = Annotated[int, "duration"]
"""Nanoseconds, written as `"250ms"`. The key is the attribute's name without `_ns`."""
SizeBytes = Annotated[int, "size"]
"""Bytes, written as `"4MiB"`. The key is the attribute's name without `_bytes`."""
StreamRef = Annotated[int | str, "stream"]
"""A stream by its id or its name."""
FileMode = Annotated[int, "mode"]
"""Permission bits, written as `"0640"`."""


@dataclass(frozen=True, slots=True, order=True)
class IdRange:
    """Ids from `first` to `last`, both included; written as `"20000-29999"`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | int) -> IdRange:
        """The range that `"20000-29999"` or a single id writes."""
        match = _RANGE.fullmatch(str(text))
        if not match:
            raise ConfigError("write the first and the last id, as in '20000-29999'")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ConfigError(f"the last id is below the first; write '{last}-{first}'")
        if last > _MAX_ID:
            raise ConfigError(f"the largest id is {_MAX_ID}")
        return cls(first, last)

    def overlaps(self, other: IdRange) -> bool:
        """Whether an id is in both ranges."""
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
    """Text that is never printed: not in logs, errors, or a printed configuration."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Never pass it to code that prints."""
        return self._text

    def matches(self, candidate: str | bytes) -> bool:
        """Whether both texts are equal. The time taken does not depend on the candidate."""
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
        raise TypeError("a secret cannot be pickled; pass the name of its variable or file instead")


@dataclass(frozen=True)
class Kind:
    """One kind of value. `read` takes a value of TOML, `read_text` the text of a variable or flag."""

    name: str
    read: Callable[[Any], Any]
    read_text: Callable[[str], Any]
    write: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    is_optional: bool = False
    is_list: bool = False

    def literal(self, value: object) -> str:
        """The value as TOML."""
        return toml_text.literal(self.write(value))


def kind_of(hint: Any) -> Kind:
    """The kind of a field's annotation. Raises TypeError for a type that no configuration can hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ANNOTATED[arguments[1]]
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional(kind_of(next(argument for argument in arguments if argument is not type(None))))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _list_of(kind_of(arguments[0]))
    if origin is Literal and all(isinstance(choice, str) for choice in arguments):
        return _choice({choice: choice for choice in arguments})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({str(member.value): member for member in hint})
    if hint in _PLAIN:
        return _PLAIN[hint]
    raise TypeError(f"{hint!r} is not a type of setting; kinds.py lists the types")


def _read_str(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("not text; put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError("not valid UTF-8") from None
    return value


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError("not a whole number")
    return value


def _int_from_text(text: str) -> int:
    try:
        return int(text.replace(" ", ""), 0)
    except ValueError:
        raise ConfigError("not a whole number") from None


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError("not a number")
    return float(value)


def _float_from_text(text: str) -> float:
    try:
        return _read_float(float(text))
    except ValueError:
        raise ConfigError("not a number") from None


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("write true or false, without quotes")
    return value


def _bool_from_text(text: str) -> bool:
    if (lowered := text.strip().lower()) in _TRUE | _FALSE:
        return lowered in _TRUE
    raise ConfigError("write true or false")


def _read_path(value: object) -> Path:
    text = _read_str(value)
    if not text or "\0" in text:
        raise ConfigError("not a path")
    # A file may be called `~x`: only `~` as a whole first part is the home directory.
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _read_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError("write a number and B, KiB, MiB or GiB, as in '4MiB'")
    try:
        size = parse_size(value)
    except ConfigError as error:
        raise ConfigError(str(error).partition(": ")[2] or str(error)) from None
    if size < 0:
        raise ConfigError("a size cannot be negative")
    return size


def _write_size(size: int) -> str | int:
    """The literal; a size without a unit is a TOML integer."""
    literal = size_literal(size)
    return int(literal) if literal.isdecimal() else literal


def _read_duration(value: object) -> int:
    return parse_duration(value if isinstance(value, str | int) and not isinstance(value, bool) else "")


def _read_mode(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_MODE:
        return value
    if isinstance(value, str) and 0 < len(value) <= 5 and set(value) <= set("01234567"):
        return int(value, 8)
    raise ConfigError("write permission bits in octal, as in '0640'")


def _read_stream(value: object) -> int | str:
    if isinstance(value, str) and value and not value.isdecimal():
        return _read_str(value)
    is_id = isinstance(value, int | str) and not isinstance(value, bool) and value != ""
    if not is_id:
        raise ConfigError("write the id or the name of a stream, as in 20000 or 'camera-1'")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _read_range(value: object) -> IdRange:
    if isinstance(value, list) and len(value) == 2 and all(type(bound) is int for bound in value):
        return IdRange.parse(f"{value[0]}-{value[1]}")
    return IdRange.parse(value if isinstance(value, str | int) and not isinstance(value, bool) else "")


def _optional(inner: Kind) -> Kind:
    def read_text(text: str) -> Any:
        return inner.read_text(text) if text else None

    return Kind(
        inner.name, inner.read, read_text, inner.write, inner.choices, inner.is_secret, True, inner.is_list
    )


def _list_of(item: Kind) -> Kind:
    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ConfigError("not a list; put it in brackets")
        return tuple(item.read(element) for element in value)

    def read_text(text: str) -> tuple[Any, ...]:
        if text.lstrip().startswith("["):
            return read(inline(text))
        return tuple(item.read_text(part.strip()) for part in text.split(",") if part.strip())

    def write(value: Any) -> list[Any]:
        return [item.write(element) for element in value]

    return Kind(f"list of {item.name}", read, read_text, write, item.choices, item.is_secret, False, True)


def _choice(members: Mapping[str, Any]) -> Kind:
    def read(value: object) -> Any:
        if isinstance(value, str | int) and str(value) in members:
            return members[str(value)]
        raise ConfigError(f"not one of {', '.join(members)}")

    def write(value: Any) -> Any:
        return next(name for name, member in members.items() if member == value)

    return Kind("choice", read, read, write, tuple(members))


def inline(text: str) -> Any:
    """The TOML value that a variable or flag contains."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not a TOML value: {error}") from None
    if list(document) != ["value"]:
        raise ConfigError("more than one TOML value; write a single value")
    return document["value"]


def _unchanged(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Kind] = {
    bool: Kind("true or false", _read_bool, _bool_from_text, _unchanged),
    int: Kind("whole number", _read_int, _int_from_text, _unchanged),
    float: Kind("number", _read_float, _float_from_text, _unchanged),
    str: Kind("text", _read_str, _read_str, _unchanged),
    Path: Kind("path", _read_path, _read_path, str),
    IdRange: Kind("range of ids", _read_range, _read_range, str),
    Secret: Kind(
        "secret", lambda v: Secret(_read_str(v)), lambda v: Secret(_read_str(v)), str, is_secret=True
    ),
}
_ANNOTATED: dict[str, Kind] = {
    "duration": Kind("duration", _read_duration, _read_duration, duration_literal),
    "size": Kind("size", _read_size, _read_size, _write_size),
    "stream": Kind("id or name of a stream", _read_stream, _read_stream, _unchanged),
    "mode": Kind("file mode", _read_mode, _read_mode, lambda mode: f"{mode:04o}"),
}
