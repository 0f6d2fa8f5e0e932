"""The systemd unit in `deploy/`: it is well-formed, and its hardening allows what the supervisor needs."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli import cli
from tests.systemd_units import DEPLOY, settings, systemd_warnings

UNIT = DEPLOY / "tensorpool-supervisor.service"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert systemd_warnings(UNIT, tmp_path) == []


def test_unit_command_exists_and_accepts_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "supervisor.toml"
    config.write_text('[[supervisor.rules]]\nname = "a"\nwhen = "drops"\nabove = 1\nthen = "flag"\n')
    command = shlex.split(settings(UNIT)["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "supervisor"]
    arguments = [str(config) if part.endswith(".toml") else part for part in command[2:]]
    done = CliRunner().invoke(cli, [*arguments, "--check"])
    assert done.exit_code == 0, done.output


def test_unit_notifies_when_ready_and_may_read_shared_memory() -> None:
    unit = settings(UNIT)
    assert unit["Type"] == "notify"
    assert unit["RemoveIPC"] == "no"
    assert "PrivateIPC" not in unit
    assert unit["User"] != "root"
    assert "StateDirectory" not in unit, "the supervisor stores nothing"
