"""Text of other processes: no command, log or page passes its control characters on."""

from __future__ import annotations

import logging
import os

import click
import pytest
from click.testing import CliRunner
from rich.text import Text
from rich.tree import Tree

from tensorpool.cli.output import columns, console, echo, key_values
from tensorpool.runtime.logs import JsonFormatter, TextFormatter
from tensorpool.text import parse_number, safe_lines, safe_text

HOSTILE = "cam\x1b[2J\x9b31m\nforged\r\u202e"
SAFE = r"cam\x1b[2J\x9b31m\nforged\r\u202e"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and "\nforged" not in text


@pytest.mark.parametrize(
    ("text", "number"),
    [("007", 7), (b"12", 12), (str((1 << 64) - 1), (1 << 64) - 1), ("", None), ("²", None), ("-1", None),
     ("9" * 5000, None), (b"9" * 5000, None), ("٣", None)],
)  # fmt: skip
def test_number_of_another_process_is_of_few_ascii_digits(text: str | bytes, number: int | None) -> None:
    assert parse_number(text) == number


def test_characters_that_are_not_printable_get_escapes() -> None:
    assert safe_text(HOSTILE) == SAFE
    assert safe_text("Kamera 1 größer") == "Kamera 1 größer"
    assert safe_text(os.fsdecode(b"\xff")) == r"\udcff"
    assert safe_lines("a\x1b\nb") == "a\\x1b\nb"


def printed(*renderables: object) -> str:
    @click.command()
    def command() -> None:
        for renderable in renderables:
            console().print(renderable)

    return CliRunner().invoke(command).output


def test_tables_keep_a_hostile_name_in_its_row() -> None:
    table = columns("name", "id")
    table.add_row(HOSTILE, "1")
    output = printed(table, key_values([(HOSTILE, HOSTILE)]))
    assert is_safe(output)
    assert output.count(SAFE) == 3
    assert len(output.splitlines()) == 3


@pytest.mark.parametrize("renderable", [HOSTILE, Text(HOSTILE), Tree(HOSTILE)], ids=["str", "Text", "Tree"])
def test_console_passes_no_escape_sequence_on(renderable: object) -> None:
    output = printed(renderable)
    assert all(line.isprintable() for line in output.split("\n"))
    assert r"\x1b[2J\x9b31m" in output


def test_echo_keeps_line_breaks_only(capsys: pytest.CaptureFixture[str]) -> None:
    echo("one\x1b[31m\ntwo", err=True)
    assert capsys.readouterr().err == "one\\x1b[31m\ntwo\n"


@pytest.mark.parametrize("formatter", [TextFormatter("driver", ""), JsonFormatter("driver", "")])
def test_log_lines_are_printable(formatter: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": "stream %s", "args": (HOSTILE,), "client": HOSTILE})
    line = formatter.format(record)
    assert line.isprintable()
    assert "cam\\" in line
