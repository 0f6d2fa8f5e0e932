"""`tensorpool console` as a process: its addresses, and when it refuses to start."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine, running


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_prints_an_address_that_opens_the_page(commands: CommandLine, number: signal.Signals) -> None:
    with (
        tp.MediaDriver(commands.aeron_dir),
        running(commands.start("console", "--port", "0", "--json")) as process,
    ):
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert line["url"] != line["watch_url"]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(line["url"], timeout=60) as page:
            assert b"TensorPool console" in page.read()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{line['port']}/", timeout=60)
        assert refused.value.code == 401
        refused.value.close()
        process.send_signal(number)
        assert process.wait(60) == 0


def test_browser_that_is_opened_gets_no_token_of_the_console(
    commands: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """All users of a machine see the arguments of a command."""
    shown, script = tmp_path / "shown", tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {shown}.new\nmv {shown}.new {shown}\n')
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    with (
        tp.MediaDriver(commands.aeron_dir),
        running(commands.start("console", "--port", "0", "--json", "--open")) as process,
    ):
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        wait_until(shown.exists, timeout=60)
        address = shown.read_text().strip()
        assert address.startswith(f"http://127.0.0.1:{line['port']}/?token=")
        assert address not in (line["url"], line["watch_url"])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as page:
            assert b"TensorPool console" in page.read()
        process.terminate()
        assert process.wait(60) == 0


def test_read_only_console_has_one_address(commands: CommandLine) -> None:
    with (
        tp.MediaDriver(commands.aeron_dir),
        running(commands.start("console", "--port", "0", "--read-only", "--json")) as process,
    ):
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert (line["url"], line["read_only"]) == (line["watch_url"], True)


def test_console_for_other_machines_demands_a_token_file_and_encryption(
    commands: CommandLine, tmp_path: Path
) -> None:
    result = commands.run("console", "--host", "0.0.0.0")
    assert (result.returncode, "--token-file" in result.stderr) == (1, True)
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    token.chmod(0o600)
    result = commands.run("console", "--host", "0.0.0.0", "--token-file", str(token))
    assert result.returncode == 1
    assert "--tls-cert" in result.stderr
    assert "--behind-proxy" in result.stderr
    token.chmod(0o644)
    result = commands.run("console", "--token-file", str(token))
    assert f"chmod 600 {token}" in result.stderr


def test_console_without_a_system_names_what_to_start(commands: CommandLine) -> None:
    result = commands.run("console")
    assert result.returncode == 1
    assert "start tensorpool driver" in result.stderr
