"""The scripts behind `make`: their errors when a program or package is missing.

Each script runs with a private PATH, in which fake programs report the versions of the test.
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
# Programs that the scripts call.
SHELL_PROGRAMS = ["sh", "sed", "sort", "head", "cut", "dirname", "basename", "rm", "uname"]


class Machine:
    """A PATH with fake programs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for name in SHELL_PROGRAMS:
            program = shutil.which(name)
            assert program
            (directory / name).symlink_to(program)

    def add_program(self, name: str, script: str) -> None:
        """Adds a fake program."""
        program = self.directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def run(self, tool: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a script with this PATH."""
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
    """The required version of Cargo.toml."""
    match = re.search(r'^rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert match
    return match[1]


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The single line of a failed script."""
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_missing_rust_error_names_the_installation(machine: Machine) -> None:
    error = error_line(machine.run("toolchains", "rust"))
    assert f"Rust {rust_version()} or newer is needed" in error
    assert "rustup" in error


def test_old_rust_error_names_the_version(machine: Machine) -> None:
    machine.add_program("cargo", "")
    machine.add_program("rustc", "echo 'rustc 1.9.0 (of long ago)'")
    assert "this is 1.9.0" in error_line(machine.run("toolchains", "rust"))


@pytest.mark.parametrize("version", [rust_version(), f"{rust_version()}.1", "1.999.0", "2.0.0-nightly"])
def test_recent_rust_passes_without_output(machine: Machine, version: str) -> None:
    machine.add_program("cargo", "")
    machine.add_program("rustc", f"echo 'rustc {version} (x)'")
    machine.add_program("rustfmt", "")
    result = machine.run("toolchains", "rust")
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_rustfmt_error_names_the_installation(machine: Machine) -> None:
    machine.add_program("cargo", "")
    machine.add_program("rustc", f"echo 'rustc {rust_version()} (x)'")
    assert "rustup component add rustfmt" in error_line(machine.run("toolchains", "rust"))


def test_missing_clippy_error_names_the_installation(machine: Machine) -> None:
    machine.add_program("cargo", '[ "$1" != clippy ]')
    error = error_line(machine.run("toolchains", "rust-checks"))
    assert "rustup component add clippy rustfmt" in error


@pytest.mark.parametrize(
    ("javac", "maven", "expected"),
    [
        (None, True, "javac was not found"),
        ("javac 11.0.2", True, "this is 11.0.2"),
        ("javac 9", True, "this is 9:"),
        ("javac 17.0.15", False, "mvn was not found"),
    ],
)
def test_missing_java_error_names_the_installation(
    machine: Machine, javac: str | None, maven: bool, expected: str
) -> None:
    if javac:
        machine.add_program("javac", f"echo '{javac}'")
    if maven:
        machine.add_program("mvn", "")
    error = error_line(machine.run("toolchains", "java"))
    assert expected in error
    assert "default-jdk-headless" in error


def test_recent_java_passes_without_output(machine: Machine) -> None:
    machine.add_program("javac", "echo 'javac 21.0.2'")
    machine.add_program("mvn", "")
    result = machine.run("toolchains", "java")
    assert (result.returncode, result.stderr) == (0, "")


def add_package_tools(
    machine: Machine, *, missing: str, user: int, offered: str = "rustup", after_update: str = ""
) -> None:
    """Adds a fake dpkg-query, id, apt-cache and apt-get. The package lists have the `offered` packages."""
    machine.add_program("dpkg-query", f'case "$*" in {missing}) exit 1;; *) printf installed;; esac')
    machine.add_program("id", f"echo {user}")
    lists = machine.directory / "lists"
    lists.write_text(offered)
    is_listed = f'{shutil.which("grep")} -qw -- "$2" {lists}'
    candidate = "echo \"$2:\"; echo '  Candidate: 1.2'"
    machine.add_program("apt-cache", f"if {is_listed}; then {candidate}; else echo '  Candidate: (none)'; fi")
    update = f'[ "$2" != update ] || echo "{after_update or offered}" > {lists}'
    machine.add_program("apt-get", f'echo "apt-get $*" >&2; {update}')


def test_user_gets_one_command_that_installs_everything(machine: Machine) -> None:
    add_package_tools(machine, missing="*python3-venv|*libclang-dev|*rustup|*maven|*default-jdk*", user=1000)
    result = machine.run("system-packages", "python", "build", "rust", "rust-checks", "java")
    assert result.returncode == 1
    message, command = result.stderr.splitlines()
    assert "(python3-venv libclang-dev rustup default-jdk-headless maven)" in message
    assert command == "    sudo tools/system-packages python build rust rust-checks java"


def test_root_installs_only_missing_packages(machine: Machine) -> None:
    add_package_tools(machine, missing="*libclang-dev", user=0)
    result = machine.run("system-packages")
    assert result.returncode == 0
    update, message, install = result.stderr.splitlines()
    assert "libclang-dev" in message
    assert update == "apt-get -qq update"
    assert install.endswith("--no-install-recommends libclang-dev")


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ("rustup", "rustup"),
        ("rustup rustc-web", "rustup"),
        ("rustc rustc-web", "cargo-web rustc-web rustfmt-web rust-web-clippy"),
    ],
)
def test_rust_comes_from_rustup_or_the_packages_for_browsers(
    machine: Machine, offered: str, expected: str
) -> None:
    missing = "*rustup|*-web|*-web-clippy"
    # The lists of a new machine are empty before the update.
    add_package_tools(machine, missing=missing, user=0, offered="", after_update=offered)
    result = machine.run("system-packages", "rust", "rust-checks")
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1].endswith(f"--no-install-recommends {expected}")


def test_wheels_of_other_architectures_get_an_emulator_and_an_objcopy(machine: Machine) -> None:
    add_package_tools(machine, missing="*qemu*|*debootstrap|*llvm", user=1000)
    result = machine.run("system-packages", "strip", "emulation")
    assert result.returncode == 1
    message, command = result.stderr.splitlines()
    assert "(llvm debootstrap qemu-user-static)" in message
    assert command == "    sudo tools/system-packages strip emulation"
    for program in ("llvm-objcopy", "debootstrap", "qemu-aarch64-static", "qemu-x86_64-static"):
        machine.add_program(program, "")
    result = machine.run("system-packages", "strip", "emulation")
    assert (result.returncode, result.stderr) == (0, "")


def test_no_package_is_installed_if_none_is_missing(machine: Machine) -> None:
    add_package_tools(machine, missing="nothing", user=0)
    result = machine.run("system-packages")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("release", "arguments"), [("1.90.0", "--deny warnings\n"), ("2.4.1", "")])
def test_lints_of_a_newer_rust_are_warnings(machine: Machine, release: str, arguments: str) -> None:
    machine.add_program("rustc", f"echo 'rustc {release} (0123456789 2026-01-01)'")
    result = machine.run("toolchains", "lints")
    assert (result.returncode, result.stdout) == (0, arguments)


def test_toolchains_from_elsewhere_need_no_package(machine: Machine) -> None:
    add_package_tools(machine, missing="*rust*|*maven|*jdk*", user=1000)
    machine.add_program("cargo", "")
    machine.add_program("rustc", f"echo 'rustc {rust_version()} (x)'")
    machine.add_program("rustfmt", "")
    machine.add_program("javac", "echo 'javac 21.0.2'")
    machine.add_program("mvn", "")
    result = machine.run("system-packages", "rust", "rust-checks", "java")
    assert (result.returncode, result.stderr) == (0, "")


def test_rustup_without_a_toolchain_gets_one(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    machine.add_program("cargo", "")
    machine.add_program("rustc", f'[ -e {log} ] && echo "rustc {rust_version()} (x)"')
    machine.add_program("rustfmt", "")
    machine.add_program("rustup", f'echo "$*" >> {log}')
    assert machine.run("toolchains", "--quiet", "rust").returncode == 0
    assert not log.exists(), "a check changes nothing"
    result = machine.run("toolchains", "rust")
    assert result.returncode == 0, result.stderr
    install, default = log.read_text().splitlines()
    assert "toolchain install stable" in install
    # The rustup of Ubuntu's package cannot update itself, and fails after the installation.
    assert "--no-self-update" in install
    assert "clippy" in install
    assert default == "--quiet default stable"


def test_unknown_part_is_refused(machine: Machine) -> None:
    add_package_tools(machine, missing="nothing", user=1000)
    assert machine.run("system-packages", "rost").returncode == 2


def test_missing_python_error_names_the_setting(machine: Machine, tmp_path: Path) -> None:
    machine.add_program("python3", "exit 1")
    error = error_line(machine.run("environment", str(tmp_path / "venv"), "dev"))
    assert "Python 3.11 or newer is needed" in error
    assert "PYTHON=" in error


def test_old_python_choice_error_names_it(machine: Machine, tmp_path: Path) -> None:
    machine.add_program("old-python", "exit 1")
    result = machine.run("environment", str(tmp_path / "venv"), "dev", PYTHON="old-python")
    assert "PYTHON=old-python is not Python 3.11" in error_line(result)


def fake_python(log: Path) -> str:
    """Script of a recent interpreter that creates environments and logs its arguments."""
    return (
        f'echo "$*" >> {log}\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\nexit 0'
    )


def test_environment_is_kept_and_a_broken_one_is_replaced(machine: Machine, tmp_path: Path) -> None:
    for name in ("mkdir", "cp"):
        machine.add_program(name, f'exec {shutil.which(name)} "$@"')
    log = tmp_path / "log"
    machine.add_program("python3", fake_python(log))
    venv = tmp_path / "venv"

    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    assert machine.run("environment", str(venv), "dev").returncode == 0
    assert f"-m venv {venv}" in log.read_text()
    assert "-m pip install --group dev" in log.read_text()

    log.unlink()
    assert machine.run("environment", str(venv), "dev").returncode == 0
    assert "-m venv" not in log.read_text()


def test_pins_cover_every_requirement() -> None:
    import tomllib

    from tools import pins

    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    specifiers = pins.requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert {re.split(r"[\[<>=!~]", requirement)[0] for requirement in specifiers} <= pinned


def test_pins_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a release that wants a later 3.11 cannot be installed there."""
    from importlib.metadata import PackageNotFoundError, metadata

    from packaging.specifiers import SpecifierSet

    too_new = {}
    for line in (ROOT / "requirements" / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue
        for wanted in found.get_all("Requires-Python") or ():
            if found["Version"] == version and "3.11.2" not in SpecifierSet(wanted):
                too_new[line] = wanted
    assert too_new == {}


@pytest.mark.parametrize(("tool", "program"), [("s3-server", "versitygw"), ("actionlint", "actionlint")])
def test_tool_without_its_source_prints_that_tests_are_skipped(
    machine: Machine, tmp_path: Path, tool: str, program: str
) -> None:
    for name in ("mkdir", "mktemp", "chmod", "tail"):
        found = shutil.which(name)
        assert found
        (machine.directory / name).symlink_to(found)
    machine.add_program("go", "[ $1 = env ] && echo go1.27.1 || { echo 'no route to host' >&2; exit 1; }")
    ran = machine.run(tool, XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    assert "no route to host" in ran.stderr
    assert ran.stderr.endswith(f"{program} could not be built: the tests that need {program} are skipped\n")


@pytest.mark.parametrize(("tool", "program"), [("s3-server", "versitygw"), ("actionlint", "actionlint")])
def test_tool_prints_a_program_of_the_path(machine: Machine, tool: str, program: str) -> None:
    machine.add_program(program, "")
    assert machine.run(tool).stdout.strip() == str(machine.directory / program)


def test_tool_builds_a_program_once(machine: Machine, tmp_path: Path) -> None:
    for name in ("mkdir", "mktemp", "chmod", "mv"):
        found = shutil.which(name)
        assert found
        (machine.directory / name).symlink_to(found)
    build = 'mkdir -p "$GOBIN" && echo "$2" > "$GOBIN/actionlint" && chmod +x "$GOBIN/actionlint"'
    machine.add_program("go", f"[ $1 = env ] && echo go1.27.1 || {{ {build}; }}")
    cache = tmp_path / "cache"
    (built,) = {
        machine.run("actionlint", XDG_CACHE_HOME=str(cache), TMPDIR=str(tmp_path)).stdout for _ in range(2)
    }
    (package, version) = Path(built.strip()).read_text().split("@")
    assert package == "github.com/rhysd/actionlint/cmd/actionlint"
    assert built.strip() == str(cache / "tensorpool" / f"actionlint-{version.strip()}" / "actionlint")
    (machine.directory / "go").unlink()
    assert machine.run("actionlint", XDG_CACHE_HOME=str(cache)).stdout == built
