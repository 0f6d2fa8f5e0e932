"""The bridge's systemd unit in `deploy/`: valid, and its hardening permits what the bridge needs."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli import cli
from tests.systemd_units import DEPLOY, settings, systemd_warnings

UNIT = DEPLOY / "tensorpool-bridge.service"
EXAMPLE = DEPLOY.parent / "examples" / "bridge" / "bridge.toml"


def test_unit_is_valid_for_systemd(tmp_path: Path) -> None:
    assert systemd_warnings(UNIT, tmp_path) == []


def test_unit_starts_an_existing_command() -> None:
    command = shlex.split(settings(UNIT)["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "bridge"]
    arguments = [str(EXAMPLE) if part.endswith(".toml") else part for part in command[2:]]
    result = CliRunner().invoke(cli, [*arguments, "--check"])
    assert result.exit_code == 0, result.output


def test_unit_permits_network_and_shared_memory() -> None:
    unit = settings(UNIT)
    assert unit["Type"] == "notify"
    assert unit["RemoveIPC"] == "no"
    assert "PrivateNetwork" not in unit
    assert "AF_INET" in unit["RestrictAddressFamilies"].split()
    assert "network-online.target" in unit["After"].split()
    assert unit["User"] != "root"
