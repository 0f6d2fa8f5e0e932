"""The systemd unit in `deploy/`: well-formed, and its hardening leaves the bridge what it needs."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli import cli
from tests.systemd_units import DEPLOY, settings, systemd_warnings

UNIT = DEPLOY / "tensorpool-bridge.service"
EXAMPLE = DEPLOY.parent / "examples" / "bridge" / "bridge.toml"


def test_systemd_takes_it(tmp_path: Path) -> None:
    assert systemd_warnings(UNIT, tmp_path) == []


def test_its_command_is_one_that_there_is() -> None:
    command = shlex.split(settings(UNIT)["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "bridge"]
    arguments = [str(EXAMPLE) if part.endswith(".toml") else part for part in command[2:]]
    done = CliRunner().invoke(cli, [*arguments, "--check"])
    assert done.exit_code == 0, done.output


def test_it_waits_for_the_network_and_may_use_it_and_shared_memory() -> None:
    found = settings(UNIT)
    assert found["Type"] == "notify"
    assert found["RemoveIPC"] == "no"
    assert "PrivateNetwork" not in found
    assert "AF_INET" in found["RestrictAddressFamilies"].split()
    assert "network-online.target" in found["After"].split()
    assert found["User"] != "root"
