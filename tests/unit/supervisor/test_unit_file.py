"""The systemd unit in `deploy/`: well-formed, and its hardening leaves the supervisor what it needs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorpool.cli import cli

UNIT = Path(__file__).parents[3] / "deploy" / "tensorpool-supervisor.service"


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    pairs = [line.partition("=")[::2] for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
    return dict(pairs)


def test_systemd_takes_it(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here; the other tests read the file themselves")
    copy = tmp_path / UNIT.name
    shutil.copy(UNIT, copy)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line] == []


def test_its_command_is_one_that_there_is(tmp_path: Path) -> None:
    config = tmp_path / "supervisor.toml"
    config.write_text('[[supervisor.rules]]\nname = "a"\nwhen = "drops"\nabove = 1\nthen = "flag"\n')
    command = shlex.split(settings()["ExecStart"])
    assert command[:3] == ["/usr/bin/env", "tensorpool", "supervisor"]
    arguments = [str(config) if part.endswith(".toml") else part for part in command[2:]]
    done = CliRunner().invoke(cli, [*arguments, "--check"])
    assert done.exit_code == 0, done.output


def test_it_is_ready_when_it_listens_and_may_read_shared_memory() -> None:
    found = settings()
    assert found["Type"] == "notify"
    assert found["RemoveIPC"] == "no"
    assert "PrivateIPC" not in found
    assert found["User"] != "root"
    assert "StateDirectory" not in found, "it stores nothing"
