"""Settings and warnings of the systemd units in `deploy/`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"


def settings(unit: Path) -> dict[str, str]:
    """Keys and values of a unit, whose keys have to be unique."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    pairs = [line.partition("=")[::2] for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), f"{unit.name} has a duplicate key"
    return dict(pairs)


def systemd_warnings(unit: Path, scratch: Path) -> list[str]:
    """Warnings of `systemd-analyze verify` about a unit."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed; the other tests read the file themselves")
    copy = scratch / unit.name
    shutil.copy(unit, copy)
    command = [analyze, "verify", "--man=no", str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in (result.stdout + result.stderr).splitlines() if unit.name in line]
