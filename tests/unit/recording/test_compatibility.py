"""A recording that version 1.0 wrote: later versions must read it. Its files are never written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording

EPOCH = 2**63 + 5
SEQS = [1, 2, 3, 4, 5, 6, 9]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parent / "golden" / "version-1.0", tmp_path / "old"))


def test_old_recording_is_read_unchanged(old: Path) -> None:
    found = recording.open(old)
    assert found.streams == (7, 10_000)
    frames = list(found.frames(10_000))
    assert [frame.seq for frame in frames] == SEQS
    for frame in frames:
        seq = frame.seq
        assert np.array_equal(frame.array, (np.arange(6, dtype=np.uint16) + seq).reshape(2, 3))
        assert (frame.epoch, frame.timestamp_ns, frame.receive_time_ns) == (EPOCH, 100 + seq, 10**18 + seq)
        assert frame.publish_timestamp_ns == (None if seq == 2 else 200 + seq)
        assert frame.trace_id == (None if seq == 3 else 2**63 + seq)
        assert frame.meta_version == seq // 4
        assert frame.valid()
    (other,) = found.frames(7)
    assert (other.element_type, other.major_order, other.shape) == ("float32", "column", (2, 3))
    assert np.array_equal(other.array, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_old_recording_has_its_ledger_and_tables(old: Path) -> None:
    found = recording.open(old)
    (ledger,) = found.ledger(10_000)
    assert (ledger.span, ledger.rows, ledger.gaps) == (11, 7, {"unexplained": 2, "late": 2})
    assert found.table("marks").to_pydict()["label"] == ["a label"]
    (message,) = found.table("metadata").to_pylist()
    assert (message["kind"], message["meta_version"]) == ("DataSourceMeta", 1)
    assert found.table("anchors").num_rows == 1


@pytest.mark.parametrize("without", ["", "_manifest"])
def test_old_recording_verifies_with_and_without_manifest(old: Path, without: str) -> None:
    if without:
        (old / without).unlink()
    done = recording.verify(old)
    assert (done.ok or bool(without), done.rows) == (True, 8)
    assert not [problem for problem in done.problems if problem.kind != "manifest"]


def test_old_recording_can_be_continued(old: Path) -> None:
    with recording.RecordingWriter(old, background=False) as writer:
        writer.append(np.zeros((2, 3), np.uint16), stream_id=10_000, epoch=EPOCH, seq=12)
    assert [frame.seq for frame in recording.open(old).frames(10_000)] == [*SEQS, 12]
