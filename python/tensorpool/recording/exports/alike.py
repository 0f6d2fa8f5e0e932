"""What stacking asks of frames: one element type, one shape. And the columns that go along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import FrameNotRecorded, InvalidFrames
from ..frame import RecordedFrame
from ..selection import Frames

Progress = Callable[[int, int], None]
COLUMNS: Final = {
    "epoch": np.uint64,
    "seq": np.uint64,
    "timestamp_ns": np.uint64,
    "receive_time_ns": np.int64,
    "meta_version": np.int64,
}


def columns(frames: Frames) -> dict[str, npt.NDArray[Any]]:
    """What is known of each frame beside its tensor, as one array each."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in COLUMNS}
    for block, rows in frames.runs():
        picked = np.asarray(rows, np.intp)
        for name, kind in COLUMNS.items():
            values = (
                np.full(len(picked), block.epoch, kind) if name == "epoch" else getattr(block, name)[picked]
            )
            parts[name].append(values.astype(kind))
    return {name: np.concatenate(found or [np.empty(0, COLUMNS[name])]) for name, found in parts.items()}


def plain(frame: RecordedFrame) -> npt.NDArray[Any]:
    """The tensor in a type that files of others have: its own, else the one that carried it."""
    array = frame.array
    is_known = array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc"
    return array if is_known else frame.carried


def alike(frames: Frames, progress: Progress | None) -> Iterator[tuple[int, RecordedFrame]]:
    """Numbered frames, each checked to be like the first."""
    total = len(frames)
    if total == 0:
        raise FrameNotRecorded("no frame was recorded there, so there is nothing to export")
    first = frames[0]
    for number, frame in enumerate(frames):
        if (frame.dtype, frame.shape) != (first.dtype, first.shape):
            raise InvalidFrames(
                f"frame {frame.seq} is {frame.dtype} {frame.shape} and frame {first.seq} is {first.dtype} "
                f"{first.shape}; only frames that are alike can be stacked: export to npz, or choose a range"
            )
        yield number, frame.verify()
        if progress is not None:
            progress(number + 1, total)
