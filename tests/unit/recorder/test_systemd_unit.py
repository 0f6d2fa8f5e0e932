"""The recorder's systemd unit in `deploy/`: valid, and its hardening permits what the recorder needs."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli import cli
from tests.systemd_units import DEPLOY, settings, systemd_warnings

UNIT = DEPLOY / "tensorpool-recorder.service"


def test_unit_is_valid_for_systemd(tmp_path: Path) -> None:
    assert systemd_warnings(UNIT, tmp_path) == []


def test_unit_starts_an_existing_command(tmp_path: Path) -> None:
    config = tmp_path / "recorder.toml"
    config.write_text('[recorder]\nall = true\nout = "/var/lib/tensorpool-recordings/recording"\n')
    command = shlex.split(settings(UNIT)["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "record"]
    arguments = [str(config) if part.endswith(".toml") else part for part in command[2:]]
    result = CliRunner().invoke(cli, [*arguments, "--check"])
    assert result.exit_code == 0, result.output


def test_unit_notifies_readiness_and_may_read_shared_memory() -> None:
    unit = settings(UNIT)
    assert unit["Type"] == "notify"
    assert unit["RemoveIPC"] == "no"
    assert "PrivateIPC" not in unit
    assert unit["User"] != "root"
    assert unit["StateDirectory"] == "tensorpool-recordings"
