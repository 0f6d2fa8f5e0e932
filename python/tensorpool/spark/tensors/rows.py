"""Tensors of collected rows and of Arrow batches, from references or from inline payloads."""

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
from ...recording.arrow_format import TableRow
from ...recording.tensors import as_array
from .segments import Segments, read_shared

__all__ = ["as_array", "row_label", "to_numpy", "verify_payload"]


def verify_payload(data: memoryview, crc32c: int, label: object, segment: str) -> None:
    """Raises CorruptRecording, with the row's label, if a payload does not match its checksum."""
    if _native.crc32c(data) != crc32c:
        raise CorruptRecording(
            f"{label}: the payload in {segment} does not match its checksum; `tensorpool recording verify` "
            "lists all damage",
            path=segment,
        )


def row_label(row: Any) -> str:
    """Text that identifies a row in an error."""
    return f"stream {row['stream_id']}, epoch {row['epoch']}, frame {row['seq']}"


def to_numpy(
    row: Any, *, verify: bool = True, root: str | None = None, filesystem: Any = None
) -> npt.NDArray[Any]:
    """The tensor of one collected row: a read-only view of its bytes, or of the mapped segment."""
    values = row.asDict() if hasattr(row, "asDict") else dict(row)
    label = row_label(values)
    if values.get("payload") is not None:
        data = memoryview(values["payload"])
    elif (segment := values.get("segment")) is not None:
        offset, length = values["payload_offset"], values["payload_bytes"]
        if root is None and filesystem is None and "://" not in segment:
            data = read_shared(segment, offset, length)
        else:
            data = Segments(root, filesystem).read(segment, offset, length)
        if verify:
            verify_payload(data, values["crc32c"], label, segment)
    else:
        raise ValueError(f"{label}: the row has no payload; read with option payload=ref or payload=inline")
    return as_array(data, values["dtype"], values["shape"], values.get("strides"), label)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """The row of a frame, as a function with `with_row` gets it."""

    stream_id: int
    epoch: int
    seq: int
    dtype: str
    shape: tuple[int, ...]
    kept: TableRow
    """The columns named in `keep`."""

    def __str__(self) -> str:
        return f"stream {self.stream_id}, epoch {self.epoch}, frame {self.seq}"


@dataclass(slots=True)
class TensorView:
    """The tensor of a row, with the row's number in its batch."""

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
    """The frames of a batch, without gap rows. A damaged frame is an error, or left out."""
    values = {name: rows.column(name).to_pylist() for name in rows.schema.names if name != "payload"}
    by_reference = "segment" in values
    payloads = None if by_reference else rows.column("payload")
    sizes = values["payload_bytes"]
    for number in range(len(rows)):
        if sizes[number] is None:
            continue
        shape = tuple(values["shape"][number])
        row = TensorRow(
            values["stream_id"][number],
            values["epoch"][number],
            values["seq"][number],
            values["dtype"][number],
            shape,
            {name: values[name][number] for name in keep},
        )
        segment, offset = None, 0
        try:
            if payloads is None:
                segment, offset = values["segment"][number], values["payload_offset"][number]
                data = segments.read(segment, offset, sizes[number])
                if verify:
                    verify_payload(data, values["crc32c"][number], row, segment)
            else:
                data = memoryview(payloads[number].as_buffer())
        except (CorruptRecording, FrameNotRecorded):
            if skip_damage:
                continue
            raise
        array = as_array(data, row.dtype, shape, values["strides"][number], row)
        yield TensorView(rows, number, row, data, array, segment, offset)


def stack(frames: Sequence[TensorView], *, is_one_segment: bool) -> npt.NDArray[Any]:
    """Tensors of one type and shape as one array: a view if they are evenly spaced in one mapping."""
    first = frames[0]
    if len(frames) == 1:
        return first.array[np.newaxis]
    base = first.data.obj
    steps = {b.offset - a.offset for a, b in itertools.pairwise(frames)}
    is_even = (
        is_one_segment and len(steps) == 1 and min(steps) > 0 and all(f.data.obj is base for f in frames)
    )
    if not is_even:
        return np.stack([frame.array for frame in frames])
    whole = memoryview(base)
    # The mapping may begin at another position than the file.
    start = np.frombuffer(first.data, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    stacked: npt.NDArray[Any] = np.ndarray(
        (len(frames), *first.array.shape),
        first.array.dtype,
        whole,
        start,
        (steps.pop(), *first.array.strides),
    )
    stacked.flags.writeable = False
    return stacked
