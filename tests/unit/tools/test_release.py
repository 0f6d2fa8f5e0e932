"""The checks before a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.release import faults, notes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with version 1.2.3 and two sections in its changelog."""
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n- new\n\n## [1.2.2]\n\n- old\n"
    )
    return tmp_path


def test_release_needs_its_version_and_its_section(root: Path) -> None:
    assert faults("1.2.3", root) == []
    assert [fault.split(":")[0] for fault in faults("1.2.4", root)] == [
        "the tag is 1.2.4 and Cargo.toml has 1.2.3",
        "CHANGELOG.md has no section for it",
    ]
    assert len(faults("1.2.2", root)) == 1


def test_notes_are_the_section_of_the_version(root: Path) -> None:
    assert notes("1.2.3", root) == "- new"
    assert notes("1.2.2", root) == "- old"
