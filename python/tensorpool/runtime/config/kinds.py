"""Kinds of values: how each is read from TOML and from text, checked, and written back.

`kind_of` finds the kind of an annotation. Reasons for a refusal say what would do; the caller knows the
key, the value and the line.
"""

from __future__ import annotations

import math
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ...errors import ConfigError
from . import toml
from .units import IdRange, Secret, format_duration, format_size, parse_duration, parse_size

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class Kind:
    """One kind of value. `read` takes what TOML gives, `read_text` what a variable or a flag gives."""

    name: str
    read: Callable[[Any], Any]
    read_text: Callable[[str], Any]
    write: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    is_optional: bool = False
    is_list: bool = False

    def literal(self, value: object) -> str:
        return toml.literal(self.write(value))


def kind_of(hint: Any) -> Kind:
    """The kind of a field's annotation. Raises TypeError for one that no configuration can hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ANNOTATED[arguments[1]]
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional(kind_of(next(one for one in arguments if one is not type(None))))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _list_of(kind_of(arguments[0]))
    if origin is Literal and all(isinstance(one, str) for one in arguments):
        return _choice({one: one for one in arguments})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({str(one.value): one for one in hint})
    if hint in _PLAIN:
        return _PLAIN[hint]
    raise TypeError(f"no kind of setting holds {hint!r}")


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
    if (word := text.strip().lower()) in _TRUE | _FALSE:
        return word in _TRUE
    raise ConfigError("write true or false")


def _read_path(value: object) -> Path:
    text = _read_str(value)
    if not text or "\0" in text:
        raise ConfigError("not a path")
    # Only as a whole first part: that is what people mean by it.
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _read_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError("write a number and B, KiB, MiB or GiB, as in '4MiB'")
    try:
        size = parse_size(value)
    except ConfigError as error:
        raise ConfigError(str(error).partition(": ")[2] or str(error)) from None
    if size < 0:
        raise ConfigError("a size is not negative")
    return size


def _read_duration(value: object) -> int:
    return parse_duration(value if isinstance(value, str | int) and not isinstance(value, bool) else "")


def _read_mode(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0o7777:
        return value
    if isinstance(value, str) and 0 < len(value) <= 5 and set(value) <= set("01234567"):
        return int(value, 8)
    raise ConfigError("write permission bits in octal, as in '0640'")


def _read_range(value: object) -> IdRange:
    if isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value):
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
        return tuple(item.read(one) for one in value)

    def read_text(text: str) -> tuple[Any, ...]:
        if text.lstrip().startswith("["):
            return read(inline(text))
        return tuple(item.read_text(part.strip()) for part in text.split(",") if part.strip())

    def write(value: Any) -> list[Any]:
        return [item.write(one) for one in value]

    return Kind(f"list of {item.name}", read, read_text, write, item.choices, item.is_secret, False, True)


def _choice(members: Mapping[str, Any]) -> Kind:
    def read(value: object) -> Any:
        if isinstance(value, str | int) and str(value) in members:
            return members[str(value)]
        raise ConfigError(f"none of {', '.join(members)}")

    def write(value: Any) -> Any:
        return next(name for name, one in members.items() if one == value)

    return Kind("choice", read, read, write, tuple(members))


def inline(text: str) -> Any:
    """A TOML value that stands alone, in a variable or a flag."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not a TOML value: {error}") from None
    if list(found) != ["value"]:
        raise ConfigError("more than one TOML value")
    return found["value"]


def _same(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Kind] = {
    bool: Kind("true or false", _read_bool, _bool_from_text, _same),
    int: Kind("whole number", _read_int, _int_from_text, _same),
    float: Kind("number", _read_float, _float_from_text, _same),
    str: Kind("text", _read_str, _read_str, _same),
    Path: Kind("path", _read_path, _read_path, str),
    IdRange: Kind("range of ids", _read_range, _read_range, str),
    Secret: Kind(
        "secret", lambda v: Secret(_read_str(v)), lambda v: Secret(_read_str(v)), str, is_secret=True
    ),
}
_ANNOTATED: dict[str, Kind] = {
    "duration": Kind("duration", _read_duration, _read_duration, format_duration),
    "size": Kind("size", _read_size, _read_size, format_size),
    "mode": Kind("file mode", _read_mode, _read_mode, lambda mode: f"{mode:04o}"),
}
