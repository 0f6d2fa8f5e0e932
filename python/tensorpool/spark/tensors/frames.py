"""Rows of an Arrow batch as tensors, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import CorruptRecording, FrameNotRecorded
from ...recording.tensors import as_array
from .rows import check
from .segments import Segments


@dataclass(frozen=True, slots=True)
class TensorRow:
    """What a function that asks for rows learns of a frame."""

    stream_id: int
    epoch: int
    seq: int
    dtype: str
    shape: tuple[int, ...]
    kept: dict[str, Any]
    """The columns that are kept."""

    def __str__(self) -> str:
        return f"stream {self.stream_id}, epoch {self.epoch}, frame {self.seq}"


@dataclass(slots=True)
class FrameView:
    """A row's place in its batch, and its tensor."""

    batch: pa.RecordBatch
    number: int
    row: TensorRow
    data: memoryview
    array: npt.NDArray[Any]
    segment: str | None
    offset: int


def views(
    rows: pa.RecordBatch, segments: Segments, keep: Sequence[str], *, verify: bool, skip_damage: bool
) -> Iterator[FrameView]:
    """The frames of a batch, without gaps; damaged ones are errors, or left out."""
    column = {name: rows.column(name) for name in rows.schema.names}
    listed = {name: column[name].to_pylist() for name in column if name != "payload"}
    by_reference = "segment" in column
    sizes = listed["payload_bytes"]
    for number in range(len(rows)):
        if sizes[number] is None:
            continue
        shape = tuple(listed["shape"][number])
        row = TensorRow(
            listed["stream_id"][number],
            listed["epoch"][number],
            listed["seq"][number],
            listed["dtype"][number],
            shape,
            {name: listed[name][number] for name in keep},
        )
        segment, offset = None, 0
        try:
            if by_reference:
                segment, offset = listed["segment"][number], listed["payload_offset"][number]
                data = segments.read(segment, offset, sizes[number])
                if verify:
                    check(data, listed["crc32c"][number], row, segment)
            else:
                data = memoryview(column["payload"][number].as_buffer())
        except (CorruptRecording, FrameNotRecorded):
            if skip_damage:
                continue
            raise
        array = as_array(data, row.dtype, shape, listed["strides"][number], row)
        yield FrameView(rows, number, row, data, array, segment, offset)


def stack(frames: Sequence[FrameView], segments_alike: bool) -> npt.NDArray[Any]:
    """Tensors of one kind as one array: a view if they lie evenly in one mapping, else a copy."""
    first = frames[0]
    if len(frames) == 1:
        return first.array[np.newaxis]
    base = first.data.obj
    steps = {b.offset - a.offset for a, b in itertools.pairwise(frames)}
    is_even = (
        segments_alike and len(steps) == 1 and min(steps) > 0 and all(f.data.obj is base for f in frames)
    )
    if not is_even:
        return np.stack([frame.array for frame in frames])
    whole = memoryview(base)
    # The views may be slices of something that does not begin where the file does.
    start = np.frombuffer(first.data, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    found: npt.NDArray[Any] = np.ndarray(
        (len(frames), *first.array.shape),
        first.array.dtype,
        whole,
        start,
        (steps.pop(), *first.array.strides),
    )
    found.flags.writeable = False
    return found
