"""The systemd unit in `deploy/`: well-formed, and its hardening permits what the driver needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "deploy" / "tensorpool-driver.service"


def sections() -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in UNIT.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        assert key not in current, f"{key} is there twice"
        current[key] = value
    return sections


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here; the other tests read the file themselves")
    copy = tmp_path / UNIT.name
    shutil.copy(UNIT, copy)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert about_it == []


def test_unit_is_of_type_notify_with_a_watchdog() -> None:
    service = sections()["Service"]
    assert service["Type"] == "notify"
    assert "tensorpool driver run --config /etc/tensorpool/driver.toml" in service["ExecStart"]
    assert service["WatchdogSec"] == "10s"
    assert service["Restart"] == "on-failure"


def test_unit_hardening_allows_shared_memory() -> None:
    service = sections()["Service"]
    assert service["RemoveIPC"] == "no"
    assert service["RestrictSUIDSGID"] == "no"
    assert "DynamicUser" not in service
    for name in ("PrivateUsers", "PrivateIPC", "PrivatePIDs", "TemporaryFileSystem", "InaccessiblePaths"):
        assert name not in service
    assert "/dev" not in service.get("ReadOnlyPaths", "")
    assert service["User"] != "root"


def test_unit_may_write_the_state_directory() -> None:
    service = sections()["Service"]
    # `state_dir` adds the package's name.
    assert service["Environment"] == "XDG_STATE_HOME=/var/lib"
    assert service["StateDirectory"] == "tensorpool"
