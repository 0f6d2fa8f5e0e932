"""A recording as a map-style dataset: what `torch.utils.data.DataLoader` asks for, without needing torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .frame import RecordedFrame
from .recording import Recording, Time
from .selection import Frames

T = TypeVar("T")


def _copied(frame: RecordedFrame) -> npt.NDArray[Any]:
    # Tensors of torch have to be writable, and a view of the file is not.
    return np.array(frame.array)


class FrameDataset(Generic[T]):
    """Frames of one stream by number. `transform` makes an item of a frame; by default a copy of its array.

    Goes to worker processes as the path and the choice; each opens the files for itself. Which frames it has
    is settled when it is made: what a live recording gets later is not among them.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        stream_id: int,
        *,
        epoch: int | None = None,
        seq: tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
        transform: Callable[[RecordedFrame], T] | None = None,
    ) -> None:
        self._root = Path(root)
        self._choice: dict[str, Any] = {"epoch": epoch, "seq": seq, "time": time}
        self._stream_id = stream_id
        self._transform: Callable[[RecordedFrame], Any] = transform or _copied
        self._frames: Frames | None = None
        self._length = len(self._open())

    def _open(self) -> Frames:
        if self._frames is None:
            self._frames = Recording(self._root).frames(self._stream_id, **self._choice)
        return self._frames

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> T:
        if not -self._length <= index < self._length:
            raise IndexError(f"frame {index} of {self._length}")
        item: T = self._transform(self._open()[index % self._length])
        return item

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frames": None}
