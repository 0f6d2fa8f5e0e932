"""The consumer of one stream: the native consumer with iteration, asyncio, metadata and reports.

Methods run on the thread of the caller. `async for` waits on a thread that the consumer owns (`AsyncWaiter`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy.typing as npt

from .. import _native
from ..attributes.metadata import BLOBS_KEY
from ..cuda import Device, DeviceFrame, open_api, parse_device
from ..errors import ConfigError, ForkedError, ReceiveTimeout
from ..transport import SHARED_CHANNEL, Connection
from ..units import NULL_U32
from .frame_loops import FrameBatches, WholeFrames, map_frames
from .lease import LeaseOptions
from .ledger import ConsumerLedger, Latency, Phase
from .options import FRESH_PERIODS, ConsumerOptions, PerConsumerStreams, descriptor_stream_id

_POLL_S: Final = 0.002
_MAX_META_VERSION: Final = NULL_U32
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


class Consumer(_native.Consumer):
    """Receives the frames of a stream, zero-copy, from the producer's first announce on.

        for frame, mean in consumer.map(lambda frame: frame.array.mean()):
            print(frame.seq, mean)    # waits without the GIL; Ctrl-C works

    `map` calls a function with each frame, without a copy, and `whole` yields copies; both skip frames that
    were overwritten meanwhile. `for frame in consumer` yields the frames themselves: use each in
    `with frame:`, which raises FrameOverwritten at its end if the producer was faster.

    `poll(limit)` returns the frames that have arrived, `receive(timeout)` waits for a frame, `latest()` skips
    to the newest, `async for` does not block the event loop. `take(n)` gives many small frames as one array.
    A consumer never holds its producer back: frames that it reads too late are dropped and counted, and
    `ledger()` adds up. Several threads may read one consumer; each frame goes to one of them.
    """

    # Defaults of the class: `close` may run on a consumer whose construction was interrupted.
    timeout: float | None = None
    """Longest wait for a frame in an iteration, in seconds; None: no limit."""
    reporter: _native.StatusReporter | None = None
    """Publishes status reports until the consumer is closed; None if it publishes none."""
    label: str = ""
    """What the user calls this consumer; shown by `top`, the supervisor, ledgers and metrics."""
    device: Device | None = None
    """Copies frames to the GPU of `device=`; None without one."""
    owner: object = None
    """The context of this consumer: a program that keeps only the consumer keeps the context open."""
    _waiter: AsyncWaiter | None = None

    @classmethod
    def open(
        cls,
        connection: Connection,
        stream_id: int,
        options: ConsumerOptions,
        *,
        streams: PerConsumerStreams,
        lease: LeaseOptions | None = None,
        metadata: _native.MetadataListener | None = None,
        fallback_uri: str | None = None,
        sends_hello_unmapped: bool = False,
    ) -> Self:
        """A consumer of `stream_id`; without `lease` it maps the regions of standalone producers."""
        consumer = cls.__new__(
            cls,
            connection,
            stream_id,
            options,
            descriptor_channel=SHARED_CHANNEL,
            descriptor_stream_id=descriptor_stream_id(options, connection.stream_ids),
            freshness_ns=FRESH_PERIODS * connection.announce_period_ns,
            request=streams.request(options),
            lease=lease,
            metadata=metadata,
            fallback_uri=fallback_uri,
            sends_hello_unmapped=sends_hello_unmapped,
        )
        consumer.timeout = options.timeout
        consumer.label = options.label
        consumer._waiter = AsyncWaiter(f"tp-consumer-{stream_id}")
        if options.device is not None:
            try:
                consumer.device = Device(open_api(parse_device(options.device)))
                consumer.set_device(consumer.device)
            except BaseException:
                consumer.close()
                raise
        return consumer

    def wait_for_producer(self, timeout: float = 10.0) -> bool:
        """Waits until the regions of a producer are mapped; False if that takes over `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.epoch is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def receive(self, timeout: float | None = None) -> _native.Frame:
        """The next frame. Raises ReceiveTimeout after `timeout` seconds without a frame, or when closed.

        Without a `timeout` it is that of the consumer; without that, too, it waits without end.
        """
        timeout = self.timeout if timeout is None else timeout
        frame = self.receive_or_none(timeout)
        if frame is None:
            raise self._timeout_error(timeout)
        return frame

    def whole(self) -> WholeFrames:
        """Frames as copies that no producer can change; frames that were overwritten before are skipped.

            for frame in consumer.whole():    # also `async for`
                work(frame.array)             # private and writable, at the cost of one copy

        The loop for consumers that may be slower than their producer: it ends only when the consumer is
        closed. Skipped frames count in the ledger, as `late`.
        """
        self.counters()  # raises here instead of in the first step of the iteration
        return WholeFrames(self)

    def take(
        self, n: int, out: npt.NDArray[Any] | None = None, *, timeout: float | None = None, at_least: int = 1
    ) -> _native.FrameBatch:
        """Up to `n` frames of one layout as one array, with their sequences and timestamps as arrays.

            batch = consumer.take(4096)       # waits for the first frame, without the GIL
            batch.array.mean(axis=0)          # of shape (frames, *shape of a frame); writable
            batch.seqs, batch.timestamps_ns

        For small frames at a high rate: they are copied and checked natively, and no frame is torn. Those
        that were overwritten before are left out, and count in the ledger. A batch ends before a frame of
        another shape, element type, metadata version or epoch. `at_least` waits for more frames than one, up
        to `timeout` seconds; then it returns those that came. `out` is an array to fill instead of a new one.
        Raises ReceiveTimeout after `timeout` seconds without a frame, or when closed. Without a `timeout` it
        is that of the consumer; without that, too, it waits without end.
        """
        timeout = self.timeout if timeout is None else timeout
        batch = self.take_or_none(n, out, timeout, at_least)
        if batch is None:
            raise self._timeout_error(timeout)
        return batch

    def batches(self, n: int = 1024) -> FrameBatches:
        """Batches of up to `n` frames, as `take` returns them, until the consumer is closed.

            for batch in consumer.batches():  # also `async for`
                histogram += np.bincount(batch.array.ravel(), minlength=256)

        Each has the frames that came since the one before: few when they come slowly, many when they come
        fast.
        """
        self.counters()  # raises here instead of in the first step of the iteration
        if n < 1:
            raise ConfigError(f"n {n}: take 1 or more frames")
        return FrameBatches(self, n)

    def map(self, function: Callable[[_native.Frame], _T]) -> Iterator[tuple[_native.Frame, _T]]:
        """Frames with the result of `function` for each, without a copy; overwritten frames are skipped.

            for frame, peak in consumer.map(lambda frame: frame.array.max()):
                print(frame.seq, peak)        # computed from this frame alone

        A frame is checked after `function` has returned or failed: no result was computed from a frame that
        changed meanwhile. Results must not be views of `frame.array`.
        """
        self.counters()
        return map_frames(self, function)

    def on_device(self, *, depth: int = 3, stream: object = None) -> Iterator[DeviceFrame]:
        """Frames as copies on the GPU of `device=`; frames that were overwritten meanwhile are skipped.

            for frame in consumer.on_device():    # of ctx.consumer(..., device="cuda:0")
                model(torch.from_dlpack(frame))

        Up to `depth` copies run ahead, beside the work of the caller. Each frame is proven after its copy has
        ended and before it is returned. `stream` is the CUDA stream that the frames are used on, where DLPack
        does not say it. Skipped frames count in the ledger, as `late`.
        """
        self.counters()  # raises here instead of in the first step of the iteration
        if depth < 1:
            raise ConfigError(f"depth {depth}: use 1 or more copies")
        if self.device is None:
            raise ConfigError(
                f'this consumer has no device; use ctx.consumer({self.stream_id}, device="cuda:0")'
            )
        return self.device.iterate(self, depth, stream)

    def progress(self, timeout: float | None = None) -> Iterator[_native.Progress]:
        """Partial frames while they are written; ends when closed, or after `timeout` seconds without any.

            for part in consumer.progress():    # of ctx.consumer(..., progress=True)
                with part:              # raises FrameOverwritten if it was overwritten meanwhile
                    work(part.array)    # the rows so far, read-only, zero-copy

        Progress messages may be lost, and a frame may be abandoned: only a frame that the consumer receives
        is complete. Receive the frames too, with `poll()`, or newer frames overwrite them.
        """
        self.poll_progress(0)  # raises here instead of in the first step of the iteration

        def parts() -> Iterator[_native.Progress]:
            while self.wait_progress(timeout):
                yield from self.poll_progress()

        return parts()

    def __iter__(self) -> Iterator[_native.Frame]:
        return self

    def __next__(self) -> _native.Frame:
        frame = self.receive_or_none(self.timeout)
        if frame is not None:
            return frame
        if self.closed:
            raise StopIteration
        raise self._timeout_error(self.timeout)

    def __aiter__(self) -> AsyncIterator[_native.Frame]:
        return self

    async def __anext__(self) -> _native.Frame:
        if (frame := await self.wait_async(lambda: self.receive_or_none(0.0))) is not None:
            return frame
        raise StopAsyncIteration

    async def wait_async(self, poll: Callable[[], _T | None]) -> _T | None:
        """What `poll` returns once it is not None, called whenever there is something to read.

        The event loop runs meanwhile. None once the consumer is closed. Raises ReceiveTimeout if the consumer
        has a `timeout`, after that many seconds.
        """
        assert self._waiter is not None, "`open` makes it"
        return await self._waiter.poll(
            poll,
            lambda: self.wait(ASYNC_WAIT_S),
            is_closed=lambda: self.closed,
            timeout=self.timeout,
            timeout_error=lambda: self._timeout_error(self.timeout),
        )

    def _timeout_error(self, timeout: float | None) -> ReceiveTimeout:
        if self.closed:
            return ReceiveTimeout(
                f"no frame: the consumer is closed; open another with ctx.consumer({self.stream_id})",
                stream_id=self.stream_id,
            )
        if self.epoch is None and (lease := self.lease()) is not None and lease.lease_id is None:
            answer = f" ({lease.code}: {lease.message})" if lease.code else ""
            why = f"the driver has granted no lease for stream {self.stream_id} yet{answer}"
        elif self.epoch is None:
            why = f"stream {self.stream_id} was not announced; does its producer run on this media driver?"
        else:
            why = f"no new frame of stream {self.stream_id} was published"
        after = "" if timeout is None else f" within {timeout} s"
        return ReceiveTimeout(f"no frame{after}: {why}", stream_id=self.stream_id)

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The newest attributes of the source; those of a frame are `frame.meta`. None: none received yet."""
        return self.newest_metadata()

    @property
    def source_name(self) -> str | None:
        """The name of the source; None if it has none, or no metadata was received yet."""
        source = self.source()
        if source is None:
            return None
        name, _summary = source
        return name or None

    def wait_for_metadata(self, timeout: float = 10.0, *, key: str | None = None) -> Mapping[str, Any] | None:
        """Waits for metadata of the source; with `key`, until it has that attribute.

        The first metadata may be incomplete: a driver publishes the configured name of a stream before its
        producer publishes attributes. None after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (metadata := self.newest_metadata()) is None or not (key is None or key in metadata):
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        return metadata

    def blob(
        self, blob_type: int, frame: _native.Frame | None = None, *, timeout: float = 0.0
    ) -> bytes | None:
        """The newest blob of that type, or the blob that belongs to `frame`.

        Waits up to `timeout` seconds. None if there is none, or not all chunks were received yet: producers
        repeat blobs every ten announce periods.
        """
        deadline = time.monotonic() + timeout
        while (blob := self._received_blob(blob_type, frame)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return blob

    def _received_blob(self, blob_type: int, frame: _native.Frame | None) -> bytes | None:
        if frame is None:
            return self.find_blob(blob_type)
        versions = None if frame.meta is None else frame.meta.get(BLOBS_KEY)
        if not isinstance(versions, dict):
            # The metadata lists no blob versions: use the newest blob up to the frame's own version.
            return self.find_blob(blob_type, (frame.epoch, frame.meta_version))
        version = versions.get(str(blob_type))
        if not isinstance(version, int) or not 0 <= version <= _MAX_META_VERSION:
            return None
        return self.find_blob(blob_type, (frame.epoch, version), exact=True)

    def ledger(self) -> ConsumerLedger:
        """Counts of all sequences of the span: received, or dropped and why."""
        return ConsumerLedger.from_counters(self.counters())

    def latency(self) -> Latency:
        """Time from publication to receipt of frames: of the last whole interval, and in total."""
        return Latency.from_report(self.latency_report())

    @property
    def phase(self) -> Phase:
        """The source of frames at the moment: none yet, shared memory, or the bridge of `fallback_uri`."""
        return Phase(self.state().phase)

    @property
    def fallback_uri(self) -> str | None:
        """The bridge that frames are read from while the phase is FALLBACK; None otherwise."""
        return self.state().fallback_uri

    def __repr__(self) -> str:
        if self.closed:
            return f"<Consumer stream={self.stream_id} closed>"
        label = f" label={self.label!r}" if self.label else ""
        name = f" name={self.source_name!r}" if self.source_name else ""
        epoch = "no producer" if self.epoch is None else f"epoch={self.epoch}"
        return f"<Consumer stream={self.stream_id}{name}{label} {epoch} {self.ledger()}>"

    def close(self) -> None:
        """Ends iterations and detaches from the stream. Frames and their arrays stay readable."""
        super().close()
        if self.device is not None:
            self.device.close()
        reporter, self.reporter = self.reporter, None
        if reporter is not None:
            reporter.close()
        if self._waiter is not None:
            self._waiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the consumer belongs to the parent process: there is nothing to close.
        with suppress(ForkedError):
            self.close()

    def __del__(self) -> None:
        # Without a close the conductor would keep the consumer and its memory as long as the context.
        with suppress(ForkedError):
            self.close()
