"""Command groups, and types of command-line values: stream ids, times, durations, stream pairs, speeds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from ..errors import ConfigError
from ..units import MAX_STREAM_ID, parse_duration
from . import end_at_interrupt

_HELP_LENGTH = 1000
"""Longer than any sentence: the help of a command is never cut."""


class HelpFormatter(click.HelpFormatter):
    """Help with coloured headings and names. click removes the colours where the output is no terminal."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Writes the line that shows how a command is called."""
        super().write_usage(prog, args, click.style("Usage: ", bold=True) if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        """Writes the heading of a section."""
        super().write_heading(click.style(heading, bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Writes a list of names with their descriptions."""
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)


class HelpContext(click.Context):
    """A context whose help is coloured."""

    formatter_class = HelpFormatter


class CommandGroup(click.Group):
    """A group whose help has the whole first sentence of every command; click cuts them."""

    context_class = HelpContext

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command of the group, with coloured help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.context_class = HelpContext
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_HELP_LENGTH))
            for name, command in commands
            if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class LazyCommand(NamedTuple):
    """A command whose module is imported when it runs."""

    name: str
    help: str


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name. Each has a module and a variable of its name in `package`."""

    def __init__(self, package: str, names: Iterable[str]) -> None:
        self._package = package
        self._commands: dict[str, click.Command | None] = dict.fromkeys(sorted(names))

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands[name]
        if command is None:
            module = name.replace("-", "_")
            with end_at_interrupt():
                command = getattr(import_module(f"{self._package}.{module}"), module)
            assert isinstance(command, click.Command)
            self._commands[name] = command
        return command

    def __contains__(self, name: object) -> bool:
        return name in self._commands

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


class LazyGroup(CommandGroup):
    """A group that imports the module of a command when it runs, and lists the commands in sections."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[LazyCommand]], package: str, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self._sections = sections
        names = (command.name for section in sections.values() for command in section)
        self.commands = LazyCommands(package, names)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands of each section."""
        width = max(len(name) for name in self.commands)
        for heading, commands in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(command.name.ljust(width), command.help) for command in commands])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin with `incomplete`, without an import of their modules."""
        commands = sorted(command for section in self._sections.values() for command in section)
        names = [
            CompletionItem(command.name, help=command.help)
            for command in commands
            if command.name.startswith(incomplete)
        ]
        # The options come from click.
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


class DefaultRunGroup(CommandGroup):
    """A group for which `tensorpool NOUN` and `tensorpool NOUN --config FILE` mean `tensorpool NOUN run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Inserts `run` if no verb is given."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class StreamId(click.IntRange):
    """A stream id."""

    name = "id"

    def __init__(self) -> None:
        super().__init__(1, MAX_STREAM_ID)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the text of the command line."""
        try:
            int(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a stream id; "
                f"tensorpool discover --name {shlex.quote(value)} finds the id of a name",
                param,
                ctx,
            )
        return int(super().convert(value, param, ctx))


class StreamRef(click.ParamType[int | str]):
    """A stream by its id or its name."""

    name = "stream"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Converts the text of the command line: a number is an id."""
        text = str(value)
        if not text.lstrip("-").isdecimal():
            return text if text else self.fail("a stream has an id or a name", param, ctx)
        return StreamId().convert(text, param, ctx)


class RecordingRef(click.ParamType[str]):
    """A recording: a directory that exists, or a URI."""

    name = "recording"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Converts the text of the command line: a path is checked, a URI is not."""
        text = str(value)
        if "://" in text:
            return text
        return str(click.Path(exists=True, file_okay=False).convert(text, param, ctx))


class Time(click.ParamType[int]):
    """A time of day, converted to nanoseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the text of the command line."""
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time; write 2026-01-31T12:00:00Z, or nanoseconds since 1970", param, ctx
            )
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000


class Offset(int):
    """Nanoseconds since the first frame."""


class TimeOrOffset(Time):
    """A time of day, or an offset from the first frame, as in `+10s`."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the text of the command line."""
        if isinstance(value, str) and value.startswith("+"):
            return Offset(round(Duration().convert(value[1:], param, ctx) * 1e9))
        return super().convert(value, param, ctx)


class StreamRemap(click.ParamType[tuple[int | str, int]]):
    """A recorded stream, by id or name, and the stream that it is replayed as: `20000=20050`."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | str, int]:
        """Converts the text of the command line."""
        if isinstance(value, tuple):
            return value
        recorded, _, replayed = value.rpartition("=")
        if not (recorded and replayed.isdecimal()):
            self.fail(f"{value!r} is not RECORDED=PLAYED, as in 20000=20050 or camera-1=20050", param, ctx)
        return int(recorded) if recorded.isdecimal() else recorded, int(replayed)


class Speed(click.ParamType[float | str]):
    """A replay speed: a factor, or `max`."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Converts the text of the command line."""
        if value == "max" or isinstance(value, int | float):
            return value  # type: ignore[no-any-return]
        try:
            return float(value.removesuffix("x"))
        except ValueError:
            self.fail(f"{value!r} is not a speed; write a number, as in 1 or 0.5, or max", param, ctx)


class Duration(click.ParamType[float]):
    """A duration, as in `1.5s`, `250ms` or plain seconds; converted to seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Converts the text of the command line."""
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
