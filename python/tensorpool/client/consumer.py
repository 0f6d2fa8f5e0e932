"""A consumer of the tensors of one stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from .. import _native
from ..errors import ForkedError, ReceiveTimeout
from .ledger import ConsumerLedger

# How long one wait for an async reader lasts: the longest that closing may take.
_ASYNC_SLICE_S = 0.1
# Held for moments, when a waiter is made or taken away: a close may come from any thread, and from the
# garbage collector in the middle of such a moment (hence reentrant).
_waiters = threading.RLock()


class Consumer(_native.Consumer):
    """Receives the frames of a stream, zero-copy, from the moment its producer is heard.

    for frame in consumer:                    # waits without the GIL; Ctrl-C works
        with frame:                           # raises FrameOverwritten if it was lost while used
            work(frame.array)

    `poll(limit)` takes what is there, `receive(timeout)` waits for one, `latest()` skips to the newest,
    `async for` does not block the loop. Never waits for a producer and never holds one up: what comes too
    late is dropped and counted, and `ledger()` adds up.
    """

    _timeout: float | None = None
    _waiter: ThreadPoolExecutor | None = None
    _context: object = None

    def wait_for_producer(self, timeout: float = 10.0) -> bool:
        """Waits until a producer was heard and its memory is mapped. False if none was in time."""
        deadline = time.monotonic() + timeout
        while self.epoch is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def receive(self, timeout: float | None = None) -> _native.Frame:
        """The next frame. Raises ReceiveTimeout if none came within `timeout` seconds, or when closed."""
        frame = self.receive_or_none(timeout)
        if frame is None:
            raise self._timed_out(timeout)
        return frame

    def __iter__(self) -> Iterator[_native.Frame]:
        return self

    def __next__(self) -> _native.Frame:
        frame = self.receive_or_none(self._timeout)
        if frame is not None:
            return frame
        if self.closed:
            raise StopIteration
        raise self._timed_out(self._timeout)

    def __aiter__(self) -> AsyncIterator[_native.Frame]:
        return self

    async def __anext__(self) -> _native.Frame:
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout is None else loop.time() + self._timeout
        while not self.closed:
            # What is there already costs no thread switch.
            if (frame := self.receive_or_none(0.0)) is not None:
                return frame
            if deadline is not None and loop.time() >= deadline:
                raise self._timed_out(self._timeout)
            if (waiting := self._wait_elsewhere(loop)) is not None:
                await waiting
        raise StopAsyncIteration

    def _wait_elsewhere(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bool] | None:
        """Waits a while on a thread of the consumer's own; None once closed."""
        with _waiters:
            if self.closed:
                return None
            if self._waiter is None:
                self._waiter = ThreadPoolExecutor(1, f"tp-consumer-{self.stream_id}")
            return loop.run_in_executor(self._waiter, self.wait, _ASYNC_SLICE_S)

    def _timed_out(self, timeout: float | None) -> ReceiveTimeout:
        if self.closed:
            why = "the consumer is closed"
        elif self.epoch is None and (lease := self.lease()) is not None and lease["lease_id"] is None:
            said = f" (it says {lease['code']}: {lease['message']})" if lease["code"] else ""
            why = f"the driver has given no lease for stream {self.stream_id} yet{said}"
        elif self.epoch is None:
            why = f"no producer of stream {self.stream_id} was heard; is one running on this media driver?"
        else:
            why = f"stream {self.stream_id} was silent"
        after = "" if timeout is None else f" within {timeout} s"
        return ReceiveTimeout(f"no frame{after}: {why}", stream_id=self.stream_id)

    def ledger(self) -> ConsumerLedger:
        """Every sequence of the span: received, or dropped and why."""
        return ConsumerLedger.of(self.counters())

    def close(self) -> None:
        """Ends iterations and lets go of the stream. Frames and their arrays stay readable."""
        super().close()
        with _waiters:
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            self.close()

    def __del__(self) -> None:
        # Forgotten without a close: the conductor would keep it, and its memory, as long as the context.
        with suppress(ForkedError):
            self.close()
