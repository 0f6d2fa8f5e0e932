"""A full disk: the error is clear, no frame is lost, and writing continues once there is space."""

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
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, seqs

SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 4 MiB; skips the test if it cannot be mounted."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(mount_point)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs permission to mount a small filesystem")
    yield mount_point
    # An exception and its traceback form a reference cycle that keeps a mapping alive.
    gc.collect()
    subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def test_writer_continues_after_a_full_disk_without_loss(small_disk: Path) -> None:
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
        # The batch that did not fit, and another one behind it.
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


def test_writer_closed_on_a_full_disk_leaves_a_readable_recording(small_disk: Path) -> None:
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
def test_export_to_a_full_disk_fails_and_leaves_no_file(small_disk: Path, tmp_path: Path, form: str) -> None:
    """In its own process: a write to a mapped file without disk space would end the process."""
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
    """A replacement of the system call that writes a batch. It fails a number of times, optionally after a
    partial write. Tables are written in one part and do not fail.
    """

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
def test_batch_is_written_completely_or_not_at_all(
    part: bool,
    code: int,
    kind: type[WriteFailed],
    make_writer: WriterFactory,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gap = recording.Gap(STREAM, 1, 4, 3, "late")
    with make_writer() as writer:
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
    # Recorded once, although the batch was passed twice.
    assert found.table("gaps").num_rows == 1
    assert recording.verify(root).notes == []


def test_frames_rejected_by_a_full_disk_are_written_later(
    make_writer: WriterFactory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_writer() as writer:
        writer.append([1, 2], stream_id=STREAM, epoch=1, seq=0)
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", Failing(os.writev, errno.ENOSPC, 9, False))
            with pytest.raises(DiskFull):
                writer.flush()
        writer.append([3, 4], stream_id=STREAM, epoch=1, seq=1)
    assert [frame.array.tolist() for frame in recording.open(root).frames(STREAM)] == [[1, 2], [3, 4]]


def test_failed_sync_makes_the_segment_unusable(
    make_writer: WriterFactory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = make_writer()
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
    with make_writer() as other:
        other.write_batch(frames(2, 2))
    assert [segment.rows for segment in other.recovered] == [2]
    assert seqs(recording.open(root)) == [0, 1, 2, 3]


def test_error_of_the_sync_thread_is_raised_to_the_caller(
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
