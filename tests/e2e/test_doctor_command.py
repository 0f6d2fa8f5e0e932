"""`tensorpool doctor` on this machine: with a driver, without, and with an invalid configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


def test_doctor_runs_every_check_and_problems_have_remedies(commands: CommandLine) -> None:
    done = commands.run("doctor", "--json")
    output = json.loads(done.stdout)
    checks = {check["name"]: check for check in output["checks"]}
    assert set(checks) == {
        "configuration", "machine", "clock", "software", "Java", "shared memory", "huge pages", "leftovers",
        "base directory", "state directory", "locked memory", "open files", "memory mappings", "GPU",
        "media driver", "SHM driver", "transparent huge pages",
    }  # fmt: skip
    assert checks["media driver"]["found"].startswith("none in ")
    assert all(bool(check["remedy"]) == (check["status"] != "ok") for check in checks.values())
    assert done.returncode == (1 if output["status"] == "fail" else 0)
    assert not commands.aeron_dir.exists()


def test_doctor_finds_a_media_driver_and_a_driver(commands: CommandLine) -> None:
    with tp.open("embedded", aeron_dir=commands.aeron_dir, shm_base_dir=commands.shm_base):
        checks = {
            check["name"]: check for check in json.loads(commands.run("doctor", "--json").stdout)["checks"]
        }
    assert "embedded by tensorpool" in checks["media driver"]["found"]
    assert "embedded in process" in checks["SHM driver"]["found"]
    assert "(measured)" in checks["slow readers"]["found"]
    assert checks["SHM driver"]["status"] == "ok"


def test_doctor_output_fits_eighty_columns(commands: CommandLine) -> None:
    lines = commands.run("doctor", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "checks" in lines[-1]


def test_invalid_configuration_fails_and_other_checks_run(commands: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "tensorpool.toml"
    file.write_text("[driver]\nkeep_alive = '1s'\n")
    done = commands.run("doctor", "--config", str(file))
    assert done.returncode == 1
    assert "did you mean 'keepalive'?" in done.stdout.replace("\n", " ")
    assert "SHM driver" in done.stdout
