"""The reference page of all commands, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from tensorpool.cli import cli

_OPENING: Final = """\
# Commands

Every command of `tensorpool`. This page is made from the commands by `python -m tools.reference`; a test
keeps it up to date. `--help` shows the same texts.

Data goes to stdout, messages go to stderr. The exit status is 0 for success, 1 for a failure, 2 for wrong
usage.
Roles (`driver`, `bridge`, `record` and others) take every setting of the [configuration](configuration.md) by
`--set KEY=VALUE`; the table of a command has those with an option of their own.
"""


def render() -> str:
    """The text of the page."""
    context = click.Context(cli, info_name="tensorpool")
    parts = [_OPENING, *_examples(cli)]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            parts.extend(_command(command, name, context, level=2))
    return "\n".join(parts).rstrip() + "\n"


def _command(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} `{context.command_path}`\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield from _paragraphs(command.help or "")
    yield from _arguments(command)
    yield from _options(command, context)
    yield from _examples(command)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _command(found, child, context, level + 1)


def _paragraphs(text: str) -> Iterator[str]:
    """The help text: a paragraph after `\\b` keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = paragraph.removeprefix("\b\n")
        if kept != paragraph:
            yield f"```text\n{kept}\n```\n"
        elif paragraph.strip():
            yield f"{_escaped(' '.join(paragraph.split()))}\n"


def _arguments(command: click.Command) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    if arguments:
        names = ", ".join(
            f"`{argument.human_readable_name}`{'' if argument.required else ' (optional)'}"
            for argument in arguments
        )
        yield f"{'Arguments' if len(arguments) > 1 else 'Argument'}: {names}.\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, text = record
        rows.append(f"| `{_cell(names)}` | {_escaped(_cell(text))} |")
    if rows:
        yield "\n".join(["| option | |", "|---|---|", *rows, ""])


def _examples(command: click.Command) -> Iterator[str]:
    """The examples below the help, and what else is there."""
    text = inspect.cleandoc(command.epilog or "")
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if line.strip() != "\b"]
        if lines and lines[0].strip().rstrip(":") in ("Example", "Examples"):
            yield "Examples:\n"
            yield "\n".join(["```sh", *(_example(line.strip()) for line in lines[1:]), "```", ""])
        elif lines:
            yield f"{_escaped(' '.join(' '.join(lines).split()))}\n"


def _example(line: str) -> str:
    """A command; the words behind two spaces explain it."""
    command, gap, note = line.partition("  ")
    return f"{command}{gap}# {note.strip()}" if note.strip() else command


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text without the marks of Markdown and HTML, except in backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"<", "&lt;", re.sub(r"([*_\[\]])", r"\\\1", part))
        for part in parts
    )
