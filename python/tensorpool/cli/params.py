"""Nouns: groups of commands that tell in their help, whole sentences, what each verb does.

Values that people type: times of day, pairs of streams, speeds.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

import click

from ..errors import ConfigError
from ..units import parse_duration

_NO_LIMIT = 1000


class CommandGroup(click.Group):
    """Its help has the first sentence of every command; click's own cuts them off in the middle."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_NO_LIMIT)) for name, one in verbs if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class DefaultRunGroup(CommandGroup):
    """`tensorpool NOUN` and `tensorpool NOUN --config FILE` mean `tensorpool NOUN run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class StreamId(click.IntRange):
    """The number of a stream."""

    name = "id"

    def __init__(self) -> None:
        super().__init__(1, 0xFFFF_FFFE)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except ValueError:
            self.fail(
                f"{value!r} is no number, and streams go by their number here; "
                f"tensorpool discover --name {shlex.quote(value)} finds that of a name",
                param,
                ctx,
            )
        return int(super().convert(value, param, ctx))


class Time(click.ParamType[int]):
    """A time of day, as nanoseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time; write 2026-01-31T12:00:00Z, or nanoseconds since 1970", param, ctx
            )
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000


class Offset(int):
    """Nanoseconds since the first frame."""


class TimeOrOffset(Time):
    """A time of day, or `+10s`: so long after the first frame."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.startswith("+"):
            return Offset(round(Duration().convert(value[1:], param, ctx) * 1e9))
        return super().convert(value, param, ctx)


class StreamRemap(click.ParamType[tuple[int, int]]):
    """`20000=20050`: a recorded stream, and the one that it is played as."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        recorded, _, played = value.partition("=")
        if not (recorded.isdecimal() and played.isdecimal()):
            self.fail(f"{value!r} names no two streams; write RECORDED=PLAYED, as in 20000=20050", param, ctx)
        return int(recorded), int(played)


class Speed(click.ParamType[float | str]):
    """A factor, or `max`."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == "max" or isinstance(value, int | float):
            return value  # type: ignore[no-any-return]
        try:
            return float(value.removesuffix("x"))
        except ValueError:
            self.fail(f"{value!r} is no speed; write a number, as in 1 or 0.5, or max", param, ctx)


class Duration(click.ParamType[float]):
    """`1.5s`, `250ms`, or plain seconds; as seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return parse_duration(value) / 1e9
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)
