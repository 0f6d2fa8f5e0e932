"""The options of one read or write, checked against the table.

Spark compares option names without regard to case; what is wrong is said with the nearest right name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError
from ..runtime.config.config import nearest
from .option_table import READ, STREAM, STREAM_WRITE, TABLE, WRITE

__all__ = ["READ", "STREAM", "STREAM_WRITE", "TABLE", "WRITE", "Options", "is_for"]

_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


class Options:
    """The options of one read or write, checked. Missing ones have their defaults."""

    def __init__(self, given: Mapping[str, Any], use: str) -> None:
        self.use = use
        self._values: dict[str, Any] = {}
        for key, text in given.items():
            self._values[key.lower()] = _parsed(key, text, use)
        self._check()

    def __getitem__(self, name: str) -> Any:
        option = _BY_NAME[name.lower()]
        return self._values.get(name.lower(), option.default)

    def is_given(self, name: str) -> bool:
        return name.lower() in self._values

    @property
    def is_live(self) -> bool:
        return bool(self["mode"] == "live")

    @property
    def payload(self) -> str:
        found: str = self["payload"] or ("inline" if self.is_live else "ref")
        return found

    @property
    def path(self) -> str:
        found: str = self["path"]
        return found

    def _check(self) -> None:
        if self.is_live:
            if self.use == READ:
                raise ConfigError(
                    "mode live is a stream without end: use spark.readStream, or mode recording"
                )
            if self.use == STREAM and not self["streams"]:
                raise ConfigError("mode live needs option streams, as in .option('streams', '10000')")
            if self.use == STREAM and self["payload"] == "ref":
                raise ConfigError("mode live has no segments to refer to: use payload inline or none")
            return
        if not self.path:
            raise ConfigError("option path is missing: .option('path', DIR), the directory of a recording")
        if self.is_given("startingTimestamp") and self.is_given("startingOffsets"):
            raise ConfigError("startingOffsets and startingTimestamp both say where to begin: leave one out")
        start, end = self["startingTimestamp"], self["endingTimestamp"]
        if start is not None and end is not None and end <= start:
            raise ConfigError("endingTimestamp is not after startingTimestamp: nothing lies between them")


def _parsed(key: str, text: Any, use: str) -> Any:
    option = _BY_NAME.get(key.lower())
    usable = [one for one in TABLE if use in one.uses]
    if option is None:
        near = nearest(key, [one.name.lower() for one in usable])
        hint = (
            f"; did you mean {_BY_NAME[near].name}?"
            if near
            else f"; there are {', '.join(o.name for o in usable)}"
        )
        raise ConfigError(f"tensorpool has no option {key}{hint}")
    if use not in option.uses:
        raise ConfigError(f"option {option.name} is not for {use}, but for {', '.join(sorted(option.uses))}")
    try:
        return option.parse(str(text).strip())
    except ValueError as error:
        raise ConfigError(f"option {option.name} = {text!r}: {error}") from None


def is_for(key: str, use: str) -> bool:
    """Whether an option of this name belongs to that use."""
    option = _BY_NAME.get(key.lower())
    return option is not None and use in option.uses
