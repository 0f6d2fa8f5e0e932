"""Zarr: a group with the stacked frames, one chunk a frame, and a column for each of their numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...durable import RETRY_HINT, write_errors
from ...errors import MissingPackage
from ..selection import Frames
from .alike import Progress, alike, columns, plain


def export_zarr(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """A Zarr group (version 3) with `frames`, `seq`, `epoch`, `timestamp_ns` and `receive_time_ns`."""
    try:
        import zarr
    except ImportError:
        raise MissingPackage(
            "exporting to Zarr needs the package zarr: pip install 'aeron-tensorpool[zarr]'"
        ) from None
    like, count = plain(frames.first()), len(frames)
    with write_errors(path, RETRY_HINT):
        try:
            group = zarr.open_group(str(path), mode="w")
            for name, column in columns(frames).items():
                group.create_array(name, data=column)
            stack = group.create_array(
                "frames", shape=(count, *like.shape), chunks=(1, *(max(size, 1) for size in like.shape)),
                dtype=like.dtype,
            )  # fmt: skip
            for number, frame in alike(frames, progress):
                stack[number] = plain(frame)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    return count
