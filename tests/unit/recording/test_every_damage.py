"""Every kind of damage at every structure of a recording: noticed, never read as something else, mended."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.errors import RecordingError
from tensorpool.recording import layout, table_index
from tests.unit.recording.conftest import STREAM, frames, segment_files, seqs
from tests.unit.recording.damages import (
    PAYLOAD_BYTES,
    Damage,
    check_damage,
    damages,
    flip,
    kind_of,
    read_all,
    truncate,
    write_recording,
    zero,
)  # fmt: skip

# Of each kind of file in a normal run. The long run has all.
_CASES = 8


@pytest.fixture
def directory(shm_base: Path) -> Iterator[Path]:
    """A directory in which a sync takes no time."""
    yield shm_base
    for path in list(shm_base.iterdir()):
        shutil.rmtree(path)


@pytest.mark.parametrize("kind", ["segments", "tables", "indexes", "manifest"])
def test_every_damage_is_noticed_and_mended(kind: str, directory: Path) -> None:
    whole = directory / "whole"
    write_recording(whole)
    content = read_all(whole)
    assert recording.verify(whole).ok
    assert recording.verify(whole).notes == []
    cases = [case for case in damages(whole, random.Random(20), 1) if kind_of(whole, case[0]) == kind]
    by_damage = {damage.name: (path, damage, at) for path, damage, at in cases}
    for path, damage, at in [*by_damage.values()][:_CASES]:
        check_damage(whole, content, path, damage, at, directory)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_damage_at_many_positions(directory: Path) -> None:
    whole = directory / "whole"
    write_recording(whole)
    content = read_all(whole)
    for path, damage, at in damages(whole, random.Random(21), 5):
        check_damage(whole, content, path, damage, at, directory)


def test_rewritten_segment_of_the_same_size_stays_readable(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(0, 16, PAYLOAD_BYTES))
    (path,) = segment_files(root)
    size = path.stat().st_size
    at = recording.open(root).frame(STREAM, 4).ref.offset + PAYLOAD_BYTES - 256
    zero(path, at)
    assert {problem.kind for problem in recording.verify(root).problems} == {"payload"}
    done = recording.repair(root)
    assert [(gap.first_seq, gap.count) for gap in done.lost] == [(4, 2)]
    assert recording.verify(root).ok
    assert seqs(recording.open(root)) == [*range(4), *range(6, 16)]
    assert [str(ledger) for ledger in recording.open(root).ledger(STREAM)] == [
        "span 16 = rows 14 + corrupt 2"
    ]
    assert not recording.repair(root).changed
    assert path.stat().st_size == size


def test_swapped_segments_are_refused_and_put_back(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with recording.RecordingWriter(root, background=False) as writer:
        for first_seq in (0, 4, 8):
            writer.write_batch(frames(first_seq, 4))
            writer.rotate()
    first, second, _ = segment_files(root)
    swap = first.with_name("swap")
    first.rename(swap)
    second.rename(first)
    swap.rename(second)
    with pytest.raises(RecordingError, match="begins with sequence 4"):
        list(recording.open(root).frames(STREAM))
    assert {problem.kind for problem in recording.verify(root).problems} == {"misplaced"}
    done = recording.repair(root)
    assert (done.lost, len(done.put_back)) == ([], 2)
    assert seqs(recording.open(root)) == list(range(12))
    assert recording.verify(root).ok


def test_tables_of_two_damaged_copies_name_the_lost_rows(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(0, 2))
        writer.gap(stream_id=STREAM, epoch=1, first_seq=2, count=2, reason="late")
        writer.write_batch(frames(4, 2))
    (path,) = (root / layout.TABLES_DIR / "gaps").glob("*.arrows")
    for part in (path, path.with_suffix(".copy")):
        flip(part, part.stat().st_size - 200)
    with pytest.raises(RecordingError, match="repair"):
        recording.open(root).ledger(STREAM)
    done = recording.repair(root)
    assert [table.lost_rows for table in done.tables] == [1]
    assert [str(ledger) for ledger in recording.open(root).ledger(STREAM)] == ["span 6 = rows 4 + corrupt 2"]
    assert recording.verify(root).ok


def test_index_of_tables_stays_small(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with recording.RecordingWriter(root, background=False) as writer:
        for number in range(50):
            writer.mark(str(number))
            writer.sync()
    (session,) = table_index.session_names(root)
    path = table_index.index_path(root, session)
    # One record of the session, two of each table: anchors and marks.
    assert path.stat().st_size == 5 * table_index.RECORD_BYTES
    index = table_index.read_session(root, session)
    assert index is not None
    assert (index.fault, index.tables["marks"].rows, index.tables["marks"].is_closed) == (None, 50, True)
    assert recording.open(root).table("marks")["label"].to_pylist() == [str(number) for number in range(50)]


def test_index_record_is_written_whole_by_a_disk_that_takes_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    (tmp_path / layout.TABLES_DIR).mkdir()
    index = table_index.TableIndexWriter(tmp_path, "session")
    monkeypatch.setattr(os, "pwrite", lambda fd, content, offset: real(fd, bytes(content)[:10], offset))
    index.open()
    assert index.write({"marks": table_index.TableState(100, 3, 7)})
    assert index.write({"marks": table_index.TableState(200, 5, 8)})

    def refuse(fd: int, content: bytes, offset: int) -> int:
        if offset % table_index.RECORD_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(content)[:10], offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    assert not index.write({"marks": table_index.TableState(300, 6, 9)})
    index.close()
    found = table_index.read_session(tmp_path, "session")
    assert found is not None
    assert found.tables == {"marks": table_index.TableState(200, 5, 8)}


@pytest.mark.parametrize("records", [0, 1])
def test_truncated_index_of_versions_is_noticed_and_mended(records: int, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_recording(whole)
    (path,) = (path for path in whole.rglob("*.versions") if path.stat().st_size)
    content = read_all(whole)
    check_damage(whole, content, path, Damage("truncate", truncate), 64 * records, tmp_path)
