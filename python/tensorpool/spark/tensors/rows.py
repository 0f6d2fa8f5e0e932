"""A row's tensor as a numpy array, from its reference or from its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import CorruptRecording
from ...recording.batch import tensors_fit
from ...recording.dtypes import MAX_DIMS, NUMPY
from .segments import Segments, read_shared


def as_array(
    data: memoryview | bytes,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    where: str,
) -> npt.NDArray[Any]:
    """A read-only view. A description that reaches beyond the bytes is an error that names the row."""
    kind = NUMPY.get(dtype)
    if kind is None:
        raise ValueError(f"{where}: element type {dtype!r} is none of {', '.join(NUMPY)}")
    steps = list(strides) if strides is not None else _row_major(shape, kind.itemsize)
    if not 1 <= len(shape) <= MAX_DIMS or len(steps) != len(shape):
        raise ValueError(f"{where}: shape {list(shape)} and strides {steps} do not belong together")
    filler = [0] * (MAX_DIMS - len(shape))
    fits = tensors_fit(
        np.array([[*shape, *filler]], np.int32),
        np.array([[*steps, *filler]], np.int64),
        np.array([len(shape)]),
        np.array([kind.itemsize], np.int64),
        np.int64(len(data)),
    )
    if not fits[0]:
        raise ValueError(f"{where}: a tensor {dtype}{list(shape)} reaches beyond its {len(data)} bytes")
    found = np.ndarray(tuple(shape), kind, data, 0, tuple(steps))
    found.flags.writeable = False
    return found


def _row_major(shape: Sequence[int], itemsize: int) -> list[int]:
    steps, step = [], itemsize
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def check(data: memoryview, crc32c: int, where: str, segment: str) -> None:
    """Raises CorruptRecording unless the bytes are what was written."""
    if _native.crc32c(data) != crc32c:
        raise CorruptRecording(
            f"{where}: the payload in {segment} is not what was written; `tensorpool recording verify` "
            f"says more",
            path=segment,
        )


def place_of(row: Any) -> str:
    """Words that name a row in an error."""
    return f"stream {row['stream_id']}, epoch {row['epoch']}, frame {row['seq']}"


def to_numpy(
    row: Any, *, verify: bool = True, root: str | None = None, filesystem: Any = None
) -> npt.NDArray[Any]:
    """The tensor of one collected row, read-only: a view of its bytes, or of the mapped segment."""
    value = row.asDict() if hasattr(row, "asDict") else dict(row)
    where = place_of(value)
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
