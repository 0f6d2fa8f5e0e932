"""Where marks and locks live, and who may look there."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tensorpool.state_dir import state_dir, state_path


def test_every_directory_that_is_made_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "missing" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    made = state_dir("driver", "digest", "default")
    assert made == home / "tensorpool" / "driver" / "digest" / "default"
    for directory in (made, *made.parents[:4], home.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
    assert state_dir("driver", "digest", "default") == made


def test_directories_that_are_there_keep_their_modes(user_state_dir: Path) -> None:
    (user_state_dir / "tensorpool").mkdir(mode=0o750)
    state_dir("locks")
    assert stat.S_IMODE((user_state_dir / "tensorpool").stat().st_mode) == 0o750


def test_who_only_looks_makes_nothing(user_state_dir: Path) -> None:
    assert state_path("driver", "lock") == user_state_dir / "tensorpool" / "driver" / "lock"
    assert list(user_state_dir.iterdir()) == []
