"""A recorded frame with the attributes of a live one, its cursor, and a reference to its payload."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from ..attributes import Metadata
from ..errors import CorruptRecording
from ..preview import array_html, frame_html, show_html, summarize
from ..text import html_table
from .batch import NO_TIMESTAMP, NO_TRACE
from .batch_layout import TensorSpec
from .rows import RowBlock
from .tensors import NAMES, ORDERS

_MAX_SEQ: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Position in a stream: the frame with this epoch and sequence. Valid across restarts and rotation."""

    stream_id: int
    """The stream."""
    epoch: int
    """The epoch."""
    seq: int
    """The sequence."""

    @classmethod
    def before(cls, stream_id: int, epoch: int, seq: int) -> Cursor | None:
        """The last position that can be before this frame; None before the first possible frame."""
        if seq > 0:
            return cls(stream_id, epoch, seq - 1)
        return cls(stream_id, epoch - 1, _MAX_SEQ) if epoch > 0 else None


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """Position of a payload in its file, for readers that map the file themselves."""

    path: Path | os.PathLike[str]
    """A `Path`; of a remote recording the URI, as text by `str` or `os.fspath`."""
    offset: int
    """Where the payload begins in the file."""
    length: int
    """Its length in bytes."""
    crc32c: int
    """Its checksum."""


class RecordedFrame:
    """A frame in a recording. It has the attributes of a live frame, so code for one works on the other."""

    __slots__ = ("_block", "_row", "_view")

    def __init__(self, block: RowBlock, row: int, view: npt.NDArray[Any] | None = None) -> None:
        """`view` is the frame's tensor, if the caller has it already."""
        self._block = block
        self._row = row
        self._view = view

    @property
    def stream_id(self) -> int:
        """The stream it was published on."""
        return self._block.stream_id

    @property
    def epoch(self) -> int:
        """The epoch it was published in."""
        return self._block.epoch

    @property
    def seq(self) -> int:
        """Its sequence within the epoch."""
        return int(self._block.seq[self._row])

    @property
    def cursor(self) -> Cursor:
        """Its position in the stream."""
        return Cursor(self.stream_id, self.epoch, self.seq)

    @property
    def timestamp_ns(self) -> int:
        """Timestamp of the source."""
        return int(self._block.timestamp_ns[self._row])

    @property
    def publish_timestamp_ns(self) -> int | None:
        """Time of publication; None if the frame carries none."""
        value = int(self._block.publish_timestamp_ns[self._row])
        return None if value == NO_TIMESTAMP else value

    @property
    def receive_time_ns(self) -> int:
        """Time of receipt by the recorder: nanoseconds since 1970 (UTC)."""
        return int(self._block.receive_time_ns[self._row])

    @property
    def meta_version(self) -> int:
        """Its metadata version; 0 for none."""
        return int(self._block.meta_version[self._row])

    @property
    def meta(self) -> Metadata | None:
        """The attributes of its metadata version; None if it has none or they were not recorded."""
        metadata = self._block.metadata(self._row)
        return None if metadata is None else metadata.attributes

    @property
    def trace_id(self) -> int | None:
        """The trace it belongs to; None for none."""
        value = int(self._block.trace_id[self._row])
        return None if value == NO_TRACE else value

    @property
    def nbytes(self) -> int:
        """Size of the payload."""
        return int(self._block.tensors.payload_bytes[self._row])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self._tensor.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the tensor, in bytes."""
        return self._tensor.strides

    @property
    def element_type(self) -> str:
        """Name of the element type: one of the registry, or one that metadata define.

        `bytes` and `bit` have no numpy type of their own.
        """
        extension = self._block.extension(self._row)
        if extension is None:
            return NAMES[int(self._block.dtype[self._row])]
        _, dtype, _ = extension
        return str(dtype.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy type of the tensor's elements."""
        return self._tensor.dtype

    @property
    def _tensor(self) -> TensorSpec:
        """The tensor's shape, type and strides. An element type that metadata define replaces its carrier."""
        block = self._block
        extension = block.extension(self._row)
        if extension is None:
            return block.tensors.tensor(self._row)
        shape, _, strides = block.tensors.tensor(self._row)
        _, dtype, is_pair = extension
        if is_pair:
            return TensorSpec(shape[:-1], dtype, strides[:-1])
        return TensorSpec(shape, dtype, strides)

    @property
    def major_order(self) -> str:
        """`row` or `column`."""
        return ORDERS[int(self._block.major_order[self._row])]

    @property
    def crc32c(self) -> int:
        """Checksum of the payload when it was written."""
        return int(self._block.crc32c[self._row])

    @property
    def _payload_at(self) -> int:
        block = self._block
        return block.payload_start + int(block.tensors.payload_offset[self._row])

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        """The payload: a read-only view of the mapped file."""
        start = self._payload_at
        return self._block.bytes[start : start + self.nbytes]

    @property
    def array(self) -> npt.NDArray[Any]:
        """The tensor: a read-only view of the mapped file."""
        if self._view is not None:
            return self._view
        stack = self._block.stack
        if stack is not None:
            view: npt.NDArray[Any] = stack[self._row]
            return view
        shape, dtype, strides = self._tensor
        # From a memoryview: numpy takes twice as long to make the view from another array.
        return np.ndarray(shape, dtype, self._block.data, self._payload_at, strides)

    @property
    def carried(self) -> npt.NDArray[Any]:
        """The tensor as it is on the wire: of a registry type, whatever type metadata define."""
        shape, dtype, strides = self._block.tensors.tensor(self._row)
        return np.ndarray(shape, dtype, self._block.data, self._payload_at, strides)

    @property
    def ref(self) -> PayloadRef:
        """Position of the payload in its file."""
        return PayloadRef(self._block.path, self._payload_at, self.nbytes, self.crc32c)

    def copy(self) -> npt.NDArray[Any]:
        """A copy of the tensor, in private memory."""
        return self.array.copy(order="K")

    def valid(self) -> bool:
        """Whether the payload still matches its checksum."""
        return _native.crc32c(self.payload) == self.crc32c

    def verify(self) -> Self:
        """Returns the frame itself. Raises CorruptRecording if the payload does not match its checksum."""
        if not self.valid():
            ref = self.ref
            raise CorruptRecording(
                f"{ref.path}, byte {ref.offset}: the payload of frame {self.seq} does not match its "
                "checksum; `tensorpool recording repair` turns the frame into a gap",
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
        """Does nothing: unlike a live frame, a recorded one is never overwritten."""

    def _repr_html_(self) -> str:
        rows = {"stream": self.stream_id, "epoch": self.epoch, "seq": self.seq, "shape": self.shape}
        times = {"timestamp_ns": self.timestamp_ns, "receive_time_ns": self.receive_time_ns}
        facts = html_table({**rows, "dtype": self.element_type, "meta_version": self.meta_version, **times})
        return frame_html(array_html(self.array), facts)

    def show(self, side: int = 512) -> None:
        """Shows the frame in a notebook, with at most `side` pixels a side; elsewhere prints a summary."""
        show_html(array_html(self.array, side), f"{self!r}  {summarize(self.array)}")

    def __repr__(self) -> str:
        return (
            f"<RecordedFrame stream={self.stream_id} epoch={self.epoch} seq={self.seq} shape={self.shape} "
            f"dtype={self.element_type}>"
        )
