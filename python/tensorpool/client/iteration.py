"""Iterations: how `async for` waits, and loops that survive a slow reader, frame by frame or in batches.

A frame is a view of a slot that the producer reuses. A loop that is slower than the producer therefore meets
frames that were overwritten while it worked on them. These iterations skip such frames, and the ledger of the
consumer counts them as `late`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy.typing as npt

from .. import _native
from ..errors import FrameOverwritten, ReceiveTimeout
from ..preview import array_html, frame_html, show_html, summarize
from ..text import html_table

if TYPE_CHECKING:
    from .consumer import Consumer

# The longest single wait of the thread, and so the longest that a close waits for that thread.
ASYNC_WAIT_S: Final = 0.1
# Held only while a thread starts or ends. Reentrant: the garbage collector may close another consumer on a
# thread that holds it.
_waiter_lock = threading.RLock()
_T = TypeVar("_T")


class AsyncWaiter:
    """The thread on which `async for` waits for a consumer or a join; the event loop runs meanwhile.

    It starts with the first wait that has to wait, and ends with `close`.
    """

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self._executor: ThreadPoolExecutor | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a thread."""
        return self._executor is not None

    async def poll(
        self,
        poll: Callable[[], _T | None],
        wait: Callable[[], object],
        *,
        is_closed: Callable[[], bool],
        timeout: float | None,
        timeout_error: Callable[[], Exception],
    ) -> _T | None:
        """What `poll` returns once it is not None. In between, `wait` runs on the thread.

        `wait` returns within ASYNC_WAIT_S. None once `is_closed`. Raises the error after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not is_closed():
            # What has arrived already costs no thread switch.
            if (result := poll()) is not None:
                return result
            if deadline is not None and loop.time() >= deadline:
                raise timeout_error()
            if (waiting := self._start(loop, wait, is_closed)) is not None:
                await waiting
        return None

    def _start(
        self, loop: asyncio.AbstractEventLoop, wait: Callable[[], object], is_closed: Callable[[], bool]
    ) -> asyncio.Future[object] | None:
        """Starts one wait on the thread; None once closed."""
        with _waiter_lock:
            if is_closed():
                return None
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, self._thread_name)
            executor = self._executor
        try:
            # Not under the lock: this may start a thread and wait for it, and the garbage collector may close
            # a consumer on that new thread, which takes the lock.
            return loop.run_in_executor(executor, wait)
        except RuntimeError:
            if self._executor is executor:
                raise
            # Closed meanwhile: the executor accepts no more work.
            return None

    def close(self) -> None:
        """Ends the thread. The consumer or join is closed already, so that no other one starts."""
        with _waiter_lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


@dataclass(slots=True, eq=False)
class WholeFrame:
    """A frame with a copy of its payload, which no producer can change."""

    array: npt.NDArray[Any]
    """The payload; writable."""
    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int
    """When the payload was captured."""
    publish_timestamp_ns: int | None
    """When the frame was published; None if the producer does not stamp it."""
    meta_version: int
    meta: Mapping[str, Any] | None
    """The attributes that belong to the frame; None if they were not received yet."""
    trace_id: int | None

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


def _native_frame_html(frame: _native.Frame) -> str:
    """The thumbnail and the facts of a live frame; only the facts if it was overwritten meanwhile."""
    facts = _FACTS(frame)
    try:
        with frame:
            shown = array_html(frame.array)
    except FrameOverwritten:
        shown = "<p>overwritten by a newer frame</p>"
    return frame_html(shown, facts)


def _show_native_frame(frame: _native.Frame, side: int = 512) -> None:
    """Shows the frame in a notebook, with at most `side` pixels a side; elsewhere prints a summary.

    Raises FrameOverwritten if the producer has reused its slot.
    """
    with frame:
        html, text = array_html(frame.array, side), f"{frame!r}  {summarize(frame.array, frame.element_type)}"
    show_html(html, text)


# Images are made in Python. The native class gets them here, where every consumer comes by.
_FACTS: Final[Callable[[_native.Frame], str]] = _native.Frame._repr_html_
for _name, _function in (("_repr_html_", _native_frame_html), ("show", _show_native_frame)):
    setattr(_native.Frame, _name, _function)


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
