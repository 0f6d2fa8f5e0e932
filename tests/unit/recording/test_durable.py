"""Durability: files are synced before they get their final name, and the name is synced after."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.durable import JsonState, replace_file
from tensorpool.errors import ClosedError, DiskFull
from tensorpool.recording import tables
from tests.unit.recording.conftest import WriterFactory, frames, segment_files

Calls = list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """All syncs and renames from now on, in order."""
    recorded: Calls = []

    def record_calls(name: str, function: Any, path_of: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            path = path_of(arguments[0])
            result = function(*arguments, **options)
            recorded.append((name, path))
            return result

        return call

    def path_of_descriptor(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, record_calls("sync", getattr(os, name), path_of_descriptor))
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, record_calls("rename", getattr(os, name), os.fspath))
    return recorded


def is_durable(calls: Calls, sealed: Path) -> bool:
    """Whether the content was synced, then the file renamed, then its directory synced."""
    partial = f"{sealed}.partial"
    named = calls.index(("rename", partial))
    before, behind = calls[:named], calls[named + 1 :]
    return ("sync", partial) in before and ("sync", str(sealed.parent)) in behind


def test_segment_is_synced_before_it_is_renamed(make_writer: WriterFactory, root: Path, calls: Calls) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
    (sealed,) = segment_files(root)
    assert is_durable(calls, sealed), calls


def test_recovered_segment_is_synced_before_it_is_renamed(
    make_writer: WriterFactory, root: Path, calls: Calls
) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3))
    (sealed,) = segment_files(root)
    torn = sealed.rename(f"{sealed}.partial")
    with torn.open("ab") as file:
        file.write(b"torn")
    calls.clear()
    with make_writer() as writer:
        writer.write_batch(frames(3, 3))
    assert sealed.exists()
    assert is_durable(calls, sealed), calls


def test_table_created_during_a_sync_is_synced_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is new as well: if its name were lost in a crash, the rows would be lost too."""
    root.mkdir()
    writer = tables.TableWriter(root, "session")
    synced: list[Path] = []

    def sync(directory: Path) -> None:
        if directory == writer.path("gaps").parent and "marks" not in writer._files:
            # The last directory, so that no later sync covers the new ones by accident.
            assert len(writer._directories_to_sync) <= 1
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


def test_failed_directory_sync_is_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    writer = tables.TableWriter(root, "session")
    writer.add("marks", {"time_ns": 1, "stream_id": None, "label": "a"})
    writer.flush()
    wanted = set(writer._directories_to_sync)
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


def test_closed_writer_rejects_frames_and_marks(tmp_path: Path) -> None:
    writer = recording.RecordingWriter(tmp_path / "r", background=False)
    writer.append(np.zeros(1), stream_id=10_000, epoch=1, seq=0)
    writer.mark("before")
    writer.close()
    with pytest.raises(ClosedError):
        writer.append(np.zeros(1), stream_id=10_000, epoch=1, seq=0)
    with pytest.raises(ClosedError):
        writer.mark("after")
    with pytest.raises(ClosedError):
        writer.add_message("metadata", b"x", stream_id=10_000)
    with recording.open(tmp_path / "r") as read:
        assert read.table("marks")["label"].to_pylist() == ["before"]


def test_replace_file_syncs_content_and_name(tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "file"
    replace_file(path, b"new")
    (temporary,) = [name for call, name in calls if call == "rename"]
    assert calls == [("sync", temporary), ("rename", temporary), ("sync", str(tmp_path))]
    assert path.read_bytes() == b"new"
    calls.clear()
    replace_file(path, b"newer", sync=False, mode=0o600)
    assert [call for call, _ in calls] == ["rename"]
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"newer", 0o600)


def test_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    state = JsonState(directory / "state.json")
    assert state.load() is None
    state.save({"done": 1})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(DiskFull, match=r"state\.json"):
        state.save({"done": 2})
    assert state.load() == {"done": 1}
    assert [path.name for path in directory.iterdir()] == ["state.json"]
