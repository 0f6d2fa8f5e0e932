"""Loops over frames that survive a slow reader: whole frames (copies), batches, and results of a function.

A frame is a view of a slot that the producer reuses. A loop that is slower than the producer therefore meets
frames that were overwritten while it worked on them. These loops skip such frames, and the ledger of the
consumer counts them as `late`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from .. import _native
from ..errors import FrameOverwritten, ReceiveTimeout
from ..preview import array_html, frame_html, show_html, summarize
from ..text import html_table

if TYPE_CHECKING:
    from .consumer import Consumer

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class WholeFrame:
    """A frame with a copy of its payload, which no producer can change."""

    array: npt.NDArray[Any]
    """The payload; writable."""
    stream_id: int
    """The stream."""
    epoch: int
    """The epoch of the producer's memory."""
    seq: int
    """The number of the frame within its epoch."""
    timestamp_ns: int
    """When the payload was captured."""
    publish_timestamp_ns: int | None
    """When the frame was published; None if the producer does not stamp it."""
    meta_version: int
    """The metadata version that applies to the frame; 0 if it has none."""
    meta: Mapping[str, Any] | None
    """The attributes that belong to the frame; None if they were not received yet."""
    trace_id: int | None
    """The trace of the frame; None if the producer gives none."""

    @classmethod
    def from_frame(cls, frame: _native.Frame) -> WholeFrame:
        """Copies a frame. Raises FrameOverwritten if the producer reused its slot."""
        return cls(
            array=frame.copy(),
            stream_id=frame.stream_id,
            epoch=frame.epoch,
            seq=frame.seq,
            timestamp_ns=frame.timestamp_ns,
            publish_timestamp_ns=frame.publish_timestamp_ns,
            meta_version=frame.meta_version,
            meta=frame.meta,
            trace_id=frame.trace_id,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The element type of the array."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return self.array.nbytes

    def __repr__(self) -> str:
        return (
            f"<WholeFrame stream={self.stream_id} epoch={self.epoch} seq={self.seq} "
            f"shape={self.shape} dtype={self.dtype}>"
        )

    def _repr_html_(self) -> str:
        rows = {"stream": self.stream_id, "epoch": self.epoch, "seq": self.seq, "shape": self.shape}
        facts = html_table({**rows, "dtype": self.dtype, "timestamp_ns": self.timestamp_ns})
        return frame_html(array_html(self.array), facts)

    def show(self, side: int = 512) -> None:
        """Shows the frame in a notebook, with at most `side` pixels a side; elsewhere prints a summary."""
        show_html(array_html(self.array, side), f"{self!r}  {summarize(self.array)}")


class WholeFrames:
    """The frames of a consumer as copies, with `for` or `async for`. `Consumer.whole()` returns it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __iter__(self) -> Iterator[WholeFrame]:
        for frame in self._consumer:
            try:
                whole = WholeFrame.from_frame(frame)
            except FrameOverwritten:
                continue
            yield whole

    async def __aiter__(self) -> AsyncIterator[WholeFrame]:
        async for frame in self._consumer:
            try:
                whole = WholeFrame.from_frame(frame)
            except FrameOverwritten:
                continue
            yield whole


class FrameBatches:
    """The frames of a consumer in batches, with `for` or `async for`. `Consumer.batches()` returns it."""

    def __init__(self, consumer: Consumer, n: int) -> None:
        self._consumer = consumer
        self._n = n

    def __iter__(self) -> Iterator[_native.FrameBatch]:
        consumer = self._consumer
        while True:
            try:
                batch = consumer.take(self._n, timeout=consumer.timeout)
            except ReceiveTimeout:
                if consumer.closed:
                    return
                raise
            yield batch

    async def __aiter__(self) -> AsyncIterator[_native.FrameBatch]:
        consumer = self._consumer
        while (batch := await consumer.wait_async(lambda: consumer.poll_batch(self._n))) is not None:
            yield batch


def map_frames(
    consumer: Consumer, function: Callable[[_native.Frame], _T]
) -> Iterator[tuple[_native.Frame, _T]]:
    """Frames and results of `function`, without those whose frame was overwritten before it returned."""
    for frame in consumer:
        try:
            result = function(frame)
        except Exception:
            # Overwritten data may make any computation fail. Data of a whole frame concern the caller.
            if frame.valid():
                raise
            continue
        if frame.valid():
            yield frame, result
