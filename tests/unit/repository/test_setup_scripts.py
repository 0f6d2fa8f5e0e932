"""The scripts behind `make`: what they say where something is missing.

Each runs with a PATH of its own, in which stand-ins report whatever versions the test wants.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools"
# What the scripts themselves are made of.
SHELL_WORDS = ["sh", "sed", "sort", "head", "cut", "dirname", "basename", "rm"]


class Machine:
    """A PATH with stand-ins for the programs that the scripts look for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for word in SHELL_WORDS:
            found = shutil.which(word)
            assert found
            (directory / word).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        program = self.directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def run(self, tool: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(TOOLS / tool), *arguments],
            env={"PATH": str(self.directory), "HOME": os.environ.get("HOME", "/"), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "bin")


def rust_version() -> str:
    match = re.search(r'^rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert match
    return match[1]


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_missing_rust_is_one_sentence_with_the_remedy(machine: Machine) -> None:
    said = one_sentence(machine.run("toolchains", "rust"))
    assert f"Rust {rust_version()} or newer is needed" in said
    assert "rustup" in said


def test_rust_that_is_too_old_is_named(machine: Machine) -> None:
    machine.has("cargo", "")
    machine.has("rustc", "echo 'rustc 1.9.0 (of long ago)'")
    assert "this is 1.9.0" in one_sentence(machine.run("toolchains", "rust"))


@pytest.mark.parametrize("version", [rust_version(), f"{rust_version()}.1", "1.999.0", "2.0.0-nightly"])
def test_rust_that_is_new_enough_passes_in_silence(machine: Machine, version: str) -> None:
    machine.has("cargo", "")
    machine.has("rustc", f"echo 'rustc {version} (x)'")
    result = machine.run("toolchains", "rust")
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_clippy_is_one_sentence_with_the_remedy(machine: Machine) -> None:
    machine.has("cargo", '[ "$1" != clippy ]')
    said = one_sentence(machine.run("toolchains", "rust-checks"))
    assert "rustup component add clippy rustfmt" in said


@pytest.mark.parametrize(
    ("javac", "maven", "said"),
    [
        (None, True, "javac was not found"),
        ("javac 11.0.2", True, "this is 11.0.2"),
        ("javac 9", True, "this is 9:"),
        ("javac 17.0.15", False, "mvn was not found"),
    ],
)
def test_missing_java_is_one_sentence_with_the_remedy(
    machine: Machine, javac: str | None, maven: bool, said: str
) -> None:
    if javac:
        machine.has("javac", f"echo '{javac}'")
    if maven:
        machine.has("mvn", "")
    sentence = one_sentence(machine.run("toolchains", "java"))
    assert said in sentence
    assert "default-jdk-headless" in sentence


def test_java_that_is_new_enough_passes_in_silence(machine: Machine) -> None:
    machine.has("javac", "echo 'javac 21.0.2'")
    machine.has("mvn", "")
    result = machine.run("toolchains", "java")
    assert (result.returncode, result.stderr) == (0, "")


def packages(machine: Machine, *, missing: str, user: int) -> None:
    machine.has("dpkg-query", f'case "$*" in {missing}) exit 1;; *) printf installed;; esac')
    machine.has("id", f"echo {user}")
    machine.has("apt-get", 'echo "apt-get $*" >&2')


def test_a_user_is_told_the_one_command_that_installs_missing_packages(machine: Machine) -> None:
    packages(machine, missing="*uuid-dev|*libbsd-dev", user=1000)
    result = machine.run("system-packages")
    assert result.returncode == 1
    assert result.stderr.splitlines()[1:] == ["    sudo apt-get install -y uuid-dev libbsd-dev"]


def test_root_installs_missing_packages_and_no_others(machine: Machine) -> None:
    packages(machine, missing="*uuid-dev", user=0)
    result = machine.run("system-packages")
    assert result.returncode == 0
    said, update, install = result.stderr.splitlines()
    assert "uuid-dev" in said
    assert update == "apt-get -qq update"
    assert install.endswith(" uuid-dev")


def test_nothing_is_installed_where_nothing_is_missing(machine: Machine) -> None:
    packages(machine, missing="nothing", user=0)
    result = machine.run("system-packages")
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_python_is_one_sentence_with_the_remedy(machine: Machine, tmp_path: Path) -> None:
    machine.has("python3", "exit 1")
    said = one_sentence(machine.run("environment", str(tmp_path / "venv"), "dev"))
    assert "Python 3.11 or newer is needed" in said
    assert "PYTHON=" in said


def test_a_wrong_choice_of_python_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.has("old-python", "exit 1")
    result = machine.run("environment", str(tmp_path / "venv"), "dev", PYTHON="old-python")
    assert "PYTHON=old-python is not Python 3.11" in one_sentence(result)


def recorder(log: Path) -> str:
    """A stand-in interpreter that is recent, makes environments and writes down what it was asked."""
    return (
        f'echo "$*" >> {log}\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\nexit 0'
    )


def test_an_environment_that_is_there_is_used_and_a_broken_one_made_anew(
    machine: Machine, tmp_path: Path
) -> None:
    for word in ("mkdir", "cp"):
        machine.has(word, f'exec {shutil.which(word)} "$@"')
    log = tmp_path / "log"
    machine.has("python3", recorder(log))
    venv = tmp_path / "venv"

    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    assert machine.run("environment", str(venv), "dev").returncode == 0
    assert f"-m venv {venv}" in log.read_text()
    assert "-m pip install --group dev" in log.read_text()

    log.unlink()
    assert machine.run("environment", str(venv), "dev").returncode == 0
    assert "-m venv" not in log.read_text()


def test_pins_cover_everything_that_is_required() -> None:
    import tomllib

    from tools import pins

    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    wanted = pins.wanted(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert {re.split(r"[\[<>=!~]", requirement)[0] for requirement in wanted} <= pinned
