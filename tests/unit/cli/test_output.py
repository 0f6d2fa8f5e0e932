"""Output of commands: help with examples, formats of figures, tables that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from tensorpool.cli import cli
from tensorpool.cli.driver import leases_table
from tensorpool.cli.output import columns, console, format_bytes, format_duration, format_shape
from tensorpool.driver import DriverSettings
from tensorpool.driver.client import LeaseRow

LEASE: LeaseRow = {
    "lease_id": str((1 << 63) - 1),
    "stream_id": 0xFFFF_FFFE,
    "client_id": 0xFFFF_FFFE,
    "role": "producer",
    "state": "active",
    "age_s": 5000.0,
    "expires_in_s": 2.5,
    "epoch": None,
}


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_fits_eighty_columns(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    assert "..." not in done.output.partition("Commands:")[2], "sentences are whole"


@pytest.mark.parametrize("path", [path for path in commands(cli) if path], ids=" ".join)
def test_help_has_examples(path: tuple[str, ...]) -> None:
    output = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output
    assert "Examples:" in output
    assert f"tensorpool {' '.join(path).removesuffix(' run')}" in output


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_examples_use_dynamic_stream_ids(path: tuple[str, ...]) -> None:
    output = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output
    settings = DriverSettings()
    for shown in re.findall(r"(?:--stream |--map |stream \w+ |limit |redirect |release )(\d+)", output):
        assert int(shown) in settings.dynamic_ids or int(shown) > 0xFFFF_FFFF


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_shows_no_empty_default(path: tuple[str, ...]) -> None:
    assert "[default: ]" not in CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output


@pytest.mark.parametrize(
    "arguments",
    [("supervisor", "release", "camera 1", "7"), ("driver", "leases", "--stream", "camera 1")],
    ids=" ".join,
)
def test_name_instead_of_a_stream_id_names_discover(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "tensorpool discover --name 'camera 1'" in " ".join(done.output.split())


def test_invalid_stream_id_is_rejected() -> None:
    done = CliRunner().invoke(cli, ["stream", "info", "0"])
    assert (done.exit_code, "not in the range" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000015, "2 µs"), (0.25, "250 ms"), (1.0, "1.0 s"), (119.0, "119.0 s"), (600, "10 min"),
        (7200, "2 h"), (200_000, "2 d"), (float("nan"), "?"), (-0.5, "-500 ms"),
    ],
)  # fmt: skip
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (1 << 50, "1 PiB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_format_shape() -> None:
    assert [format_shape((2, 3)), format_shape((7,)), format_shape(()), format_shape(None)] == [
        "2x3",
        "7",
        "scalar",
        "",
    ]


def test_leases_with_the_longest_ids_fit_eighty_columns() -> None:
    screen = Console(width=80, record=True, file=None)
    with screen.capture() as captured:
        screen.print(leases_table([LEASE], with_stream=True))
    head, row = captured.get().splitlines()
    assert max(len(head), len(row)) <= 80
    assert "…" not in head + row
    assert row.split() == [
        str((1 << 63) - 1), "4294967294", "producer", "4294967294", "active", "83", "min", "2.5", "s",
    ]  # fmt: skip
    with screen.capture() as captured:
        screen.print(leases_table([{**LEASE, "expires_in_s": None}], are_over=True))
    assert "left" not in captured.get()


def test_wide_table_cuts_names_and_not_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = columns("stream", "name", "producer", right=("stream",))
    table.add_row("4294967294", "a-name-without-end" * 3, "3663394431")
    console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    number, name, producer = lines[1].split()
    assert (number, producer) == ("4294967294", "3663394431")
    assert name.startswith("a-name")
    assert name.endswith("…")


def test_narrow_terminal_does_not_cut_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    console().print(leases_table([LEASE], with_stream=True))
    table = columns("stream", "name", "dropped", right=("stream",), last_wraps=True)
    table.add_row("4294967294", "a-name-without-end" * 3, "late 1, not_connected 572")
    console().print(table)
    head, lease, *_, row = capsys.readouterr().out.splitlines()[:4]
    assert head.split()[:2] == ["lease", "stream"]
    assert lease.split()[:3] == [LEASE["lease_id"], str(LEASE["stream_id"]), "producer"]
    assert row.split()[0] == "4294967294"
    assert "…" not in lease


def test_markup_in_names_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    table = columns("name")
    table.add_row("[/red] :smile: [bold]")
    console().print(table)
    assert "[/red] :smile: [bold]" in capsys.readouterr().out
