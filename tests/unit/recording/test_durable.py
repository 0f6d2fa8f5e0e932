"""A segment has its final name only when everything in it is on the disk, and then the name is too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recording.conftest import Writing, frames, segment_files

Calls = list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is synced and renamed from now on, in order."""
    found: Calls = []

    def watched(name: str, what: Any, place: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            where = place(given[0])
            result = what(*given, **more)
            found.append((name, where))
            return result

        return call

    def of_descriptor(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, watched("sync", getattr(os, name), of_descriptor))
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, watched("rename", getattr(os, name), os.fspath))
    return found


def is_durable(calls: Calls, sealed: Path) -> bool:
    """Content, then the name, then the directory that has it."""
    partial = f"{sealed}.partial"
    named = calls.index(("rename", partial))
    before, behind = calls[:named], calls[named + 1 :]
    return ("sync", partial) in before and ("sync", str(sealed.parent)) in behind


def test_a_sealed_segment_is_on_the_disk_before_it_has_its_name(
    writing: Writing, root: Path, calls: Calls
) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
    (sealed,) = segment_files(root)
    assert is_durable(calls, sealed), calls


def test_what_is_recovered_is_on_the_disk_before_it_has_its_name(
    writing: Writing, root: Path, calls: Calls
) -> None:
    with writing() as writer:
        writer.write_batch(frames(0, 3))
    (sealed,) = segment_files(root)
    torn = sealed.rename(f"{sealed}.partial")
    with torn.open("ab") as file:
        file.write(b"torn")
    calls.clear()
    with writing() as writer:
        writer.write_batch(frames(3, 3))
    assert sealed.exists()
    assert is_durable(calls, sealed), calls
