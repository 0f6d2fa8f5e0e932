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


def test_directories_that_are_there_keep_their_modes(state_home: Path) -> None:
    (state_home / "tensorpool").mkdir(mode=0o750)
    state_dir("locks")
    assert stat.S_IMODE((state_home / "tensorpool").stat().st_mode) == 0o750


def test_who_only_looks_makes_nothing(state_home: Path) -> None:
    assert state_path("driver", "lock") == state_home / "tensorpool" / "driver" / "lock"
    assert list(state_home.iterdir()) == []
