"""The first minutes on a system that has git, make and python3 only, made by debootstrap: tools/try-fresh."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRY_FRESH = ROOT / "tools" / "try-fresh"
TIMEOUT_S = 3600
# What the script exits with if a system cannot be made here; its last line says why.
CANNOT = 77
SYSTEMS = ["debian-12", "debian-13", "ubuntu-24.04"]


def run(*arguments: str, timeout: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TRY_FRESH), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def take(system: str, step: str) -> tuple[str, str]:
    """Runs one step on a bare system; returns what it printed. Skips the test where none can be made."""
    done = run(system, step)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(rf"^== {system}: (make )?{step} succeeded after \d+ s$", done.stderr, re.MULTILINE)
    return done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("system", SYSTEMS)
def test_demo_runs_on_a_bare_system(system: str) -> None:
    printed, _ = take(system, "demo")
    assert "every frame is accounted for, none was torn" in printed
    # No JDK is installed for it.
    assert "no Spark query: Java" in printed


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_user_of_a_bare_system_gets_one_command_for_sudo() -> None:
    printed, log = take("debian-12", "as-user")
    assert log.count("    sudo tools/system-packages ") == 1
    assert "every frame is accounted for, none was torn" in printed


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("system", SYSTEMS)
def test_wheel_gives_first_tensors_on_a_bare_system(system: str) -> None:
    if not list((ROOT / "dist").glob(f"*{platform.machine()}.whl")):
        pytest.skip("no wheel in dist: make wheel")
    printed, _ = take(system, "from-wheel")
    assert "16 frames through a ring of 8" in printed


def test_unknown_system_is_refused() -> None:
    done = run("debian-7", timeout=60)
    assert done.returncode == 2
    assert "debian-12, debian-13, ubuntu-24.04" in done.stderr
