"""The systemd units in `deploy/`, as their tests look at them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"


def settings(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    pairs = [line.partition("=")[::2] for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
    return dict(pairs)


def systemd_warnings(unit: Path, scratch: Path) -> list[str]:
    """What systemd has to say about it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here; the other tests read the file themselves")
    copy = scratch / unit.name
    shutil.copy(unit, copy)
    command = [analyze, "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
