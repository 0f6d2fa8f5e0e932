"""`make wheel` and `make sdist`: the results are installed into empty environments and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.wheel import emulation
from tools.wheel.build import ROOT

# A whole build of Aeron and of the native core, perhaps beside other builds.
TIMEOUT_S = 3600

pytestmark = [pytest.mark.long, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    """What `make wheel` installs, and a run of the tests alone does not."""
    for module in ("ziglang", "auditwheel"):
        pytest.importorskip(module, reason=f"{module} is missing: make wheel installs it")
    if shutil.which("cargo") is None:
        pytest.skip("no Rust")


def make(*arguments: str) -> str:
    command = [sys.executable, "-m", "tools.wheel", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_wheel_of_aarch64_runs_under_emulation(tmp_path: Path) -> None:
    if missing := emulation.missing_tools("aarch64"):
        pytest.skip(f"the wheel cannot be run here: apt-get install {' '.join(missing)}")
    printed = make("--arch", "aarch64", "--no-sdist", "--out", str(tmp_path))
    assert "auditwheel agrees" in printed
    assert "protocol wire" in printed
    assert "aarch64: 3 codecs, 16 frames through a ring of 8" in printed
    assert "aarch64: 50 frames of another process compared" in printed
    (wheel,) = tmp_path.glob("*.whl")
    assert (tmp_path / f"{wheel.stem}.debug").is_file()


def test_wheel_of_x86_64_runs_in_an_empty_environment(tmp_path: Path) -> None:
    printed = make("--arch", "x86_64", "--no-sdist", "--out", str(tmp_path))
    assert "auditwheel agrees" in printed
    assert "x86_64: 50 frames of another process compared" in printed


def test_source_distribution_installs_into_an_empty_environment(tmp_path: Path) -> None:
    printed = make("--no-wheel", "--from-sdist", "--out", str(tmp_path))
    assert "frames of another process compared" in printed
    assert [file.suffix for file in tmp_path.iterdir()] == [".gz"]
