"""A row's tensor as a numpy array, from its reference or from its bytes."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ... import _native
from ...errors import CorruptRecording
from ...recording.tensors import as_array
from .segments import Segments, read_shared

__all__ = ["as_array", "check", "place_of", "to_numpy"]


def check(data: memoryview, crc32c: int, where: object, segment: str) -> None:
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
