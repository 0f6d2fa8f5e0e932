"""`tensorpool doctor` on a machine as it is, with a driver and without, and with a wrong configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


def test_every_check_is_there_and_those_that_are_not_well_say_what_to_do(command_line: CommandLine) -> None:
    done = command_line.run("doctor", "--json")
    told = json.loads(done.stdout)
    checks = {one["name"]: one for one in told["checks"]}
    assert set(checks) == {
        "configuration", "machine", "clock", "software", "Java", "shared memory", "huge pages", "leftovers",
        "base directory", "state directory", "locked memory", "open files", "memory mappings", "media driver",
        "SHM driver",
    }  # fmt: skip
    assert checks["media driver"]["found"].startswith("none in ")
    assert all(bool(one["remedy"]) == (one["status"] != "ok") for one in checks.values())
    assert done.returncode == (1 if told["status"] == "fail" else 0)
    assert not command_line.aeron_dir.exists()


def test_a_media_driver_and_a_driver_are_found(command_line: CommandLine) -> None:
    with tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base):
        checks = {
            one["name"]: one for one in json.loads(command_line.run("doctor", "--json").stdout)["checks"]
        }
    assert "embedded by tensorpool" in checks["media driver"]["found"]
    assert "embedded in process" in checks["SHM driver"]["found"]
    assert "(measured)" in checks["slow readers"]["found"]
    assert checks["SHM driver"]["status"] == "ok"


def test_it_fits_eighty_columns(command_line: CommandLine) -> None:
    lines = command_line.run("doctor", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "checks" in lines[-1]


def test_a_wrong_configuration_fails_and_the_rest_is_still_looked_at(
    command_line: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "tensorpool.toml"
    file.write_text("[driver]\nkeep_alive = '1s'\n")
    done = command_line.run("doctor", "--config", str(file))
    assert done.returncode == 1
    assert "did you mean 'keepalive'?" in done.stdout.replace("\n", " ")
    assert "SHM driver" in done.stdout
