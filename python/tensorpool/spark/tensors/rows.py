"""A row's tensor as a numpy array, from its reference or from its bytes.

Rows of an Arrow batch as tensors, one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ... import _native
from ...errors import CorruptRecording, FrameNotRecorded
from ...recording.tensors import as_array
from .segments import Segments, read_shared

__all__ = ["as_array", "check", "row_label", "to_numpy"]


def check(data: memoryview, crc32c: int, where: object, segment: str) -> None:
    """Raises CorruptRecording unless the bytes are what was written."""
    if _native.crc32c(data) != crc32c:
        raise CorruptRecording(
            f"{where}: the payload in {segment} is not what was written; `tensorpool recording verify` "
            f"says more",
            path=segment,
        )


def row_label(row: Any) -> str:
    """Words that name a row in an error."""
    return f"stream {row['stream_id']}, epoch {row['epoch']}, frame {row['seq']}"


def to_numpy(
    row: Any, *, verify: bool = True, root: str | None = None, filesystem: Any = None
) -> npt.NDArray[Any]:
    """The tensor of one collected row, read-only: a view of its bytes, or of the mapped segment."""
    value = row.asDict() if hasattr(row, "asDict") else dict(row)
    where = row_label(value)
    if value.get("payload") is not None:
        data = memoryview(value["payload"])
    elif value.get("segment") is not None:
        place = value["segment"], value["payload_offset"], value["payload_bytes"]
        is_here = root is None and filesystem is None and "://" not in place[0]
        data = read_shared(*place) if is_here else Segments(root, filesystem).read(*place)
        if verify:
            check(data, value["crc32c"], where, value["segment"])
    else:
        raise ValueError(f"{where}: the row has no payload; read with option payload=ref or payload=inline")
    return as_array(data, value["dtype"], value["shape"], value.get("strides"), where)


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
class TensorView:
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
) -> Iterator[TensorView]:
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
        yield TensorView(rows, number, row, data, array, segment, offset)


def stack(frames: Sequence[TensorView], segments_alike: bool) -> npt.NDArray[Any]:
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
