"""A segment has its final name only when everything in it is on the disk, and then the name is too."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import ClosedError
from tensorpool.recording import tables
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


def test_a_table_that_begins_during_a_sync_is_synced_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is new as well: without its name on the disk the rows would be gone with it."""
    root.mkdir()
    writer = tables.TableWriter(root, "session")
    synced: list[Path] = []

    def sync(directory: Path) -> None:
        if directory == writer.path("gaps").parent and "marks" not in writer._files:
            # The last one, so that nothing else brings those to the disk that come now.
            assert len(writer._names_to_sync) <= 1
            synced.clear()
            writer.add("marks", {"time_ns": 1, "stream_id": None, "label": "b"})
            writer.flush()
        synced.append(directory)

    monkeypatch.setattr(tables, "sync_directory", sync)
    writer.add("gaps", {"time_ns": 1, "stream_id": 1, "epoch": 1, "first_seq": 1, "count": 1, "reason": "a"})
    writer.flush()
    writer.sync()
    writer.close()
    marks = writer.path("marks").parent
    assert {writer.path("gaps").parent, marks, marks.parent} <= set(synced)


def test_a_name_that_could_not_be_synced_is_synced_the_next_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    writer = tables.TableWriter(root, "session")
    writer.add("marks", {"time_ns": 1, "stream_id": None, "label": "a"})
    writer.flush()
    wanted = set(writer._names_to_sync)
    synced: set[Path] = set()

    def fail(directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tables, "sync_directory", fail)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    monkeypatch.setattr(tables, "sync_directory", synced.add)
    writer.close()
    assert wanted
    assert synced == wanted


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    writer = recording.RecordingWriter(tmp_path / "r", background=False)
    writer.append(np.zeros(1), stream_id=10_000, epoch=1, seq=0)
    writer.mark("before")
    writer.close()
    with pytest.raises(ClosedError):
        writer.append(np.zeros(1), stream_id=10_000, epoch=1, seq=0)
    with pytest.raises(ClosedError):
        writer.mark("after")
    with pytest.raises(ClosedError):
        writer.note("metadata", b"x", stream_id=10_000)
    with recording.open(tmp_path / "r") as read:
        assert read.table("marks")["label"].to_pylist() == ["before"]
