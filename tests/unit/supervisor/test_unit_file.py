"""The systemd unit in `deploy/`: well-formed, and its hardening leaves the supervisor what it needs."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli import cli
from tests.systemd_units import DEPLOY, settings, systemd_warnings

UNIT = DEPLOY / "tensorpool-supervisor.service"


def test_systemd_takes_it(tmp_path: Path) -> None:
    assert systemd_warnings(UNIT, tmp_path) == []


def test_its_command_is_one_that_there_is(tmp_path: Path) -> None:
    config = tmp_path / "supervisor.toml"
    config.write_text('[[supervisor.rules]]\nname = "a"\nwhen = "drops"\nabove = 1\nthen = "flag"\n')
    command = shlex.split(settings(UNIT)["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "supervisor"]
    arguments = [str(config) if part.endswith(".toml") else part for part in command[2:]]
    done = CliRunner().invoke(cli, [*arguments, "--check"])
    assert done.exit_code == 0, done.output


def test_it_is_ready_when_it_listens_and_may_read_shared_memory() -> None:
    found = settings(UNIT)
    assert found["Type"] == "notify"
    assert found["RemoveIPC"] == "no"
    assert "PrivateIPC" not in found
    assert found["User"] != "root"
    assert "StateDirectory" not in found, "it stores nothing"
