"""A consumer of the tensors of one stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from .. import _native
from ..attributes.metadata import BLOBS_KEY
from ..errors import ForkedError, ReceiveTimeout
from .ledger import ConsumerLedger, Latency, Phase

# How long one wait for an async reader lasts: the longest that closing may take.
_ASYNC_SLICE_S = 0.1
_LOOK_S = 0.002
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
    _reporter: _native.Reporter | None = None

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

    def progress(self, timeout: float | None = None) -> Iterator[_native.Progress]:
        """Frames as they fill, part by part; ends when closed, or after `timeout` seconds of silence.

        for part in consumer.progress():      # of ctx.consumer(..., progress=True)
            with part:                        # raises FrameOverwritten if it was lost while used
                work(part.array)              # the rows so far, read-only, zero-copy

        Parts may be lost, and a frame that was begun may never be finished: that it is there, only the
        consumer's frames say. Take those too, with `poll()`, or they are lost to the next ones.
        """
        self.poll_progress(0)  # raises now what would otherwise come out of the first step

        def parts() -> Iterator[_native.Progress]:
            while self.wait_progress(timeout):
                yield from self.poll_progress()

        return parts()

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
            waiter = self._waiter
        try:
            # Not under the lock: this may start a thread, and wait until it has begun; before it says so, the
            # garbage collector may run on it, and close a forgotten consumer there.
            return loop.run_in_executor(waiter, self.wait, _ASYNC_SLICE_S)
        except RuntimeError:
            if self._waiter is waiter:
                raise
            # Closed meanwhile: it takes no more work.
            return None

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

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The newest attributes of the source. Those of a frame are `frame.meta`. None: nothing heard yet."""
        return self.newest_metadata()

    @property
    def source_name(self) -> str | None:
        """What the source calls itself; None while it was not heard, or has no name."""
        source = self.source()
        return None if source is None else source[0] or None

    def wait_for_metadata(self, timeout: float = 10.0, *, key: str | None = None) -> Mapping[str, Any] | None:
        """Waits until something was heard of the source; with `key`, until it has that attribute.

        A source may say a part first, its name for example. None if nothing was heard in time.
        """
        deadline = time.monotonic() + timeout
        while (found := self.newest_metadata()) is None or not (key is None or key in found):
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)
        return found

    def blob(
        self, blob_type: int, frame: _native.Frame | None = None, *, timeout: float = 0.0
    ) -> bytes | None:
        """The newest blob of that type, or the one that goes with `frame`.

        Waits for it up to `timeout` seconds. None if there is none, or it has not come whole yet: blobs are
        sent again every ten announce periods.
        """
        deadline = time.monotonic() + timeout
        while (found := self._blob_now(blob_type, frame)) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return found

    def _blob_now(self, blob_type: int, frame: _native.Frame | None) -> bytes | None:
        if frame is None:
            return self.find_blob(blob_type)
        told = None if frame.meta is None else frame.meta.get(BLOBS_KEY)
        if not isinstance(told, dict):
            # A source that does not say: the newest that was there by then.
            return self.find_blob(blob_type, (frame.epoch, frame.meta_version))
        version = told.get(str(blob_type))
        if not isinstance(version, int) or not 0 <= version < 1 << 32:
            return None
        return self.find_blob(blob_type, (frame.epoch, version), exact=True)

    def ledger(self) -> ConsumerLedger:
        """Every sequence of the span: received, or dropped and why."""
        return ConsumerLedger.of(self.counters())

    def latency(self) -> Latency:
        """How long frames took from their publication until this consumer had them: over the last whole
        interval, and over its life."""
        return Latency.of(self.latency_figures())

    @property
    def phase(self) -> Phase:
        """Where frames come from at the moment: nowhere yet, shared memory, or `fallback_uri`."""
        return Phase(self.standing()["phase"])

    @property
    def fallback_uri(self) -> str | None:
        """The other way by which frames are to come, while the phase is FALLBACK."""
        uri: str | None = self.standing()["fallback_uri"]
        return uri

    def close(self) -> None:
        """Ends iterations and lets go of the stream. Frames and their arrays stay readable."""
        super().close()
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.close()
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
