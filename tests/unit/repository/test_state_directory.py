"""The user's state directory of epoch marks and locks, and its modes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tensorpool.durable import state_dir, state_path


def test_created_directories_are_private_to_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "missing" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(base))
    created = state_dir("driver", "digest", "default")
    assert created == base / "tensorpool" / "driver" / "digest" / "default"
    for directory in (created, *created.parents[:4], base.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
    assert state_dir("driver", "digest", "default") == created


def test_existing_directories_keep_their_modes(user_state_dir: Path) -> None:
    (user_state_dir / "tensorpool").mkdir(mode=0o750)
    state_dir("locks")
    assert stat.S_IMODE((user_state_dir / "tensorpool").stat().st_mode) == 0o750


def test_state_path_creates_no_directory(user_state_dir: Path) -> None:
    assert state_path("driver", "lock") == user_state_dir / "tensorpool" / "driver" / "lock"
    assert list(user_state_dir.iterdir()) == []
