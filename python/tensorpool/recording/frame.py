"""One recorded frame: what a live frame says of itself, and a view of its bytes in the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from ..attributes import Metadata
from ..errors import CorruptRecording
from .batch import NO_TIMESTAMP, NO_TRACE
from .rows import RowBlock
from .tensors import NAMES, ORDERS


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a stream: the frame with this epoch and sequence. Stays valid over restarts and rotation."""

    stream_id: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """Where a payload lies, for those who map the file themselves."""

    path: Path
    offset: int
    length: int
    crc32c: int


class RecordedFrame:
    """A frame in a recording. Has the attributes of a live frame, so code for one works on the other."""

    __slots__ = ("_block", "_row", "_view")

    def __init__(self, block: RowBlock, row: int, view: npt.NDArray[Any] | None = None) -> None:
        """`view`: its tensor, where that is known already."""
        self._block = block
        self._row = row
        self._view = view

    @property
    def stream_id(self) -> int:
        return self._block.stream_id

    @property
    def epoch(self) -> int:
        return self._block.epoch

    @property
    def seq(self) -> int:
        return int(self._block.seq[self._row])

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.stream_id, self.epoch, self.seq)

    @property
    def timestamp_ns(self) -> int:
        """The source's own timestamp."""
        return int(self._block.timestamp_ns[self._row])

    @property
    def publish_timestamp_ns(self) -> int | None:
        value = int(self._block.publish_timestamp_ns[self._row])
        return None if value == NO_TIMESTAMP else value

    @property
    def receive_time_ns(self) -> int:
        """When the recorder got it: the time of day, in nanoseconds since 1970 (UTC)."""
        return int(self._block.receive_time_ns[self._row])

    @property
    def meta_version(self) -> int:
        return int(self._block.meta_version[self._row])

    @property
    def meta(self) -> Metadata | None:
        """The attributes of its metadata version; None where there are none, or they were not recorded."""
        told = self._block.described(self._row)
        return None if told is None else told[0]

    @property
    def trace_id(self) -> int | None:
        value = int(self._block.trace_id[self._row])
        return None if value == NO_TRACE else value

    @property
    def nbytes(self) -> int:
        return int(self._block.tensors.payload_bytes[self._row])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._tensor[0]

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes."""
        return self._tensor[2]

    @property
    def element_type(self) -> str:
        """The name in the registry, or that of a type which metadata tell of; `bytes` and `bit` have no numpy
        type of their own."""
        extension = self._block.extension(self._row)
        return NAMES[int(self._block.dtype[self._row])] if extension is None else str(extension[1].name)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._tensor[1]

    @property
    def _tensor(self) -> tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]:
        """Shape, element type and strides; where metadata say that elements are carried, of what they are."""
        block = self._block
        extension = block.extension(self._row)
        if extension is None:
            return block.tensors.tensor(self._row)
        shape, _, strides = block.tensors.tensor(self._row)
        _, dtype, is_pair = extension
        return (shape[:-1], dtype, strides[:-1]) if is_pair else (shape, dtype, strides)

    @property
    def major_order(self) -> str:
        return ORDERS[int(self._block.major_order[self._row])]

    @property
    def crc32c(self) -> int:
        return int(self._block.crc32c[self._row])

    @property
    def _payload_at(self) -> int:
        block = self._block
        return block.payload_start + int(block.tensors.payload_at[self._row])

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        """The payload's bytes, read-only, where they lie in the mapped file."""
        start = self._payload_at
        return self._block.bytes[start : start + self.nbytes]

    @property
    def array(self) -> npt.NDArray[Any]:
        """The tensor, read-only, where it lies in the mapped file."""
        if self._view is not None:
            return self._view
        stack = self._block.stack
        if stack is not None:
            view: npt.NDArray[Any] = stack[self._row]
            return view
        shape, dtype, strides = self._tensor
        # A memoryview for buffer: numpy takes twice as long over an array of its own.
        return np.ndarray(shape, dtype, self._block.data, self._payload_at, strides)

    @property
    def carried(self) -> npt.NDArray[Any]:
        """The tensor as the wire has it: of a type in the registry, whatever metadata say."""
        shape, dtype, strides = self._block.tensors.tensor(self._row)
        return np.ndarray(shape, dtype, self._block.data, self._payload_at, strides)

    @property
    def ref(self) -> PayloadRef:
        return PayloadRef(self._block.path, self._payload_at, self.nbytes, self.crc32c)

    def copy(self) -> npt.NDArray[Any]:
        """The tensor in memory of its own."""
        return self.array.copy(order="K")

    def valid(self) -> bool:
        """Whether the payload still has the checksum that it was written with."""
        return _native.crc32c(self.payload) == self.crc32c

    def verify(self) -> Self:
        """Itself, if the payload is what was written; raises CorruptRecording otherwise."""
        if not self.valid():
            ref = self.ref
            raise CorruptRecording(
                f"{ref.path}, byte {ref.offset}: the payload of frame {self.seq} is not what was written; "
                "`tensorpool recording repair` makes it a gap",
                path=ref.path,
                offset=ref.offset,
            )
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to do: unlike a live frame, this one is not overwritten."""

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"RecordedFrame(stream_id={self.stream_id}, epoch={self.epoch}, seq={self.seq}, "
            f"{self.element_type} {shape})"
        )
