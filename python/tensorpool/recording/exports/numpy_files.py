"""Numpy's own files: a stack of frames (`.npy`), or an archive with one array a frame (`.npz`)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...durable import RETRY_HINT, write_errors
from ...errors import FrameNotRecorded
from ..selection import Frames
from .alike import Progress, alike, columns, plain


def export_npy(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """One array of shape (frames, *shape). `numpy.load(path, mmap_mode="r")` reads it in place."""
    first = frames.first()
    count = len(frames)
    with write_errors(path, RETRY_HINT):
        like = plain(first)
        stack = np.lib.format.open_memmap(path, "w+", like.dtype, (count, *like.shape))
        try:
            _reserve(path)
            for number, frame in alike(frames, progress):
                stack[number] = plain(frame)
            stack.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return count


def export_npz(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """An archive with `frame_<number>` for each frame, and arrays of their sequences and times."""
    total = len(frames)
    if total == 0:
        raise FrameNotRecorded("no frame was recorded there, so there is nothing to export")
    with write_errors(path, RETRY_HINT):
        try:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name, column in columns(frames).items():
                    _add(archive, name, column)
                for number, frame in enumerate(frames):
                    _add(archive, f"frame_{number:08}", plain(frame.verify()))
                    if progress is not None:
                        progress(number + 1, total)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return total


def _reserve(path: Path) -> None:
    """The disk space of a mapped file: without it, a write to a full disk is a bus error and no exception."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _add(archive: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
