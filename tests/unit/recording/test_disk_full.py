"""A disk without room: a clear error, nothing is lost, and writing goes on when there is room."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.clock import ManualClock
from tensorpool.errors import DiskFull, WriteFailed
from tests.unit.recording.conftest import STREAM, Writing, frames, seqs

SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 4 MiB, where the test may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small filesystem")
    yield place
    # An exception and its traceback hold each other, and a mapping with them.
    gc.collect()
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_real_full_disk_keeps_what_it_has_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    root = small_disk / "recording"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(SIZE // 2))
    limits = recording.WriterLimits(segment_bytes=1 << 20)
    written = 0
    with recording.RecordingWriter(root, limits=limits, background=False, clock=ManualClock()) as writer:
        with pytest.raises(DiskFull, match="free some disk space") as caught:  # noqa: PT012
            for first in range(0, 10_000, 5):
                writer.write_batch(frames(first, 5, 50_000))
                written = first + 5
        assert caught.value.code == errno.ENOSPC
        assert 0 < written < 100
        found = recording.open(root)
        assert seqs(found) == list(range(written))
        with pytest.raises(DiskFull):
            writer.write_batch(frames(written, 5, 50_000))
        ballast.unlink()
        # The very batch that did not fit, and more behind it.
        writer.write_batch(frames(written, 5, 50_000))
        writer.write_batch(frames(written + 5, 5, 50_000))
        found.refresh()
        assert seqs(found) == list(range(written + 10))
        del found
    reread = recording.open(root)
    assert seqs(reread) == list(range(written + 10))
    (ledger,) = reread.ledger(STREAM)
    assert (ledger.rows, ledger.gaps) == (written + 10, {})
    assert recording.verify(root).ok


def test_a_writer_that_ends_on_a_full_disk_leaves_a_recording_that_reads(small_disk: Path) -> None:
    root = small_disk / "recording"
    writer = recording.RecordingWriter(root, background=False, clock=ManualClock())
    written = 0
    with pytest.raises(DiskFull):  # noqa: PT012
        for written in range(0, 10_000, 5):
            writer.write_batch(frames(written, 5, 50_000))
    with (small_disk / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
        while True:
            rest.write(bytes(4096))
    with pytest.raises(DiskFull):
        writer.close()
    assert seqs(recording.open(root)) == list(range(written))


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_an_export_to_a_full_disk_says_so_and_leaves_nothing(
    small_disk: Path, tmp_path: Path, form: str
) -> None:
    """In a process of its own: a write to a mapped file without room behind it would end that."""
    root, target = tmp_path / "recording", small_disk / f"frames.{form}"
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(0, 2 * SIZE // 50_000, 50_000))
    script = f"from tensorpool import recording; recording.export({str(root)!r}, {str(target)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "DiskFull" in done.stderr.splitlines()[-1]
    assert "free some disk space or choose another directory" in done.stderr.splitlines()[-1]
    assert not target.exists()


class Failing:
    """Stands for the system call that writes a batch, and fails as often as it was told, having done a part
    of its work. Tables are written in one part."""

    def __init__(self, real: object, code: int, times: int, part: bool) -> None:
        self.real, self.code, self.times, self.part = real, code, times, part

    def __call__(self, fd: int, parts: list[memoryview]) -> int:
        if self.times == 0 or len(parts) == 1:
            return os_writev(fd, parts)
        self.times -= 1
        if self.part:
            self.part = False
            return os_writev(fd, [parts[0], parts[1][:3]])
        raise OSError(self.code, os.strerror(self.code))


os_writev = os.writev


@pytest.mark.parametrize("part", [True, False])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, WriteFailed)]
)
def test_a_batch_is_written_whole_or_not_at_all(
    part: bool,
    code: int,
    kind: type[WriteFailed],
    writing: Writing,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gap = recording.Gap(STREAM, 1, 4, 3, "late")
    with writing() as writer:
        writer.write_batch(frames(0, 4))
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", Failing(os.writev, code, 2 if part else 1, part))
            with pytest.raises(kind) as caught:
                writer.write_batch(frames(7, 2), [gap])
        assert caught.value.code == code
        assert seqs(recording.open(root)) == [0, 1, 2, 3]
        writer.write_batch(frames(7, 2), [gap])
    found = recording.open(root)
    assert seqs(found) == [0, 1, 2, 3, 7, 8]
    (ledger,) = found.ledger(STREAM)
    assert (ledger.span, ledger.gaps) == (9, {"late": 3})
    # Declared once, however often it was offered.
    assert found.table("gaps").num_rows == 1
    assert recording.verify(root).notes == []


def test_frames_that_waited_for_room_are_written_later(
    writing: Writing, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing() as writer:
        writer.append([1, 2], stream_id=STREAM, epoch=1, seq=0)
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", Failing(os.writev, errno.ENOSPC, 9, False))
            with pytest.raises(DiskFull):
                writer.flush()
        writer.append([3, 4], stream_id=STREAM, epoch=1, seq=1)
    assert [frame.array.tolist() for frame in recording.open(root).frames(STREAM)] == [[1, 2], [3, 4]]


def test_a_failed_sync_ends_the_segment_for_good(
    writing: Writing, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = writing()
    writer.write_batch(frames(0, 2))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(WriteFailed):
            writer.sync()
    # A second sync would report success for pages that the kernel may have dropped.
    with pytest.raises(WriteFailed):
        writer.write_batch(frames(2, 2))
    with pytest.raises(WriteFailed):
        writer.close()
    with writing() as other:
        other.write_batch(frames(2, 2))
    assert [one.rows for one in other.recovered] == [2]
    assert seqs(recording.open(root)) == [0, 1, 2, 3]


def test_the_writers_own_thread_reports_what_it_met(
    root: Path, monkeypatch: pytest.MonkeyPatch, wait_until
) -> None:
    limits = recording.WriterLimits(sync_ns=2_000_000)
    with recording.RecordingWriter(root, limits=limits) as writer:
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", Failing(os.writev, errno.ENOSPC, 1_000_000, False))
            writer.append([1], stream_id=STREAM, epoch=1, seq=0)
            wait_until(lambda: writer._failure)
            with pytest.raises(DiskFull):
                writer.append([2], stream_id=STREAM, epoch=1, seq=1)
        wait_until(lambda: writer._streams[STREAM].segment is not None)
    assert [frame.seq for frame in recording.open(root).frames(STREAM)] == [0]
