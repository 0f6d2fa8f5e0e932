"""The streams of a recorder: one consumer per stream, opened by id or when an announce makes it known.

The agent's thread owns them.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from .. import _native
from ..client import Consumer
from ..context import Context
from ..errors import TensorPoolError
from .ledger import ResumePosition
from .sink import Sink

_LOG = logging.getLogger(__name__)
_RETRY_NS: Final = 5_000_000_000
# More streams than a process can read. The limit bounds the memory that invented announces can fill.
_MAX_STREAMS: Final = 10_000


class _PendingConsumer(NamedTuple):
    """A consumer that another thread is opening."""

    position: ResumePosition | None
    consumer: Future[Consumer]


class RecordedStreams:
    """Consumers that the native loop reads, by stream id."""

    def __init__(self, context: Context, native: _native.Recorder, sink: Sink) -> None:
        self._context = context
        self._native = native
        self._sink = sink
        self._consumers: dict[int, Consumer] = {}
        # Announced streams, and when each may be opened next. Only used if all streams are recorded.
        self._discovered: dict[int, int] = {}
        self._pending: dict[int, _PendingConsumer] = {}
        self._opener: ThreadPoolExecutor | None = None
        self._closed_strays = 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._consumers or stream_id in self._discovered

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the streams that are read, in order."""
        return tuple(sorted(self._consumers))

    def mapped(self) -> dict[int, int | None]:
        """The mapped epoch of each stream, or None. May be called from any thread."""
        return {stream_id: consumer.epoch for stream_id, consumer in sorted(self._consumers.items())}

    @property
    def strays(self) -> int:
        """Frames announced twice or out of order, also of streams that are closed."""
        streams = self._native.buffer().streams.values()
        return self._closed_strays + sum(stream.strays for stream in streams)

    def open(self, stream_id: int) -> None:
        """Start to read a stream."""
        # Recovery of an earlier recorder's segments can take long. It comes first, because a consumer that is
        # not read meanwhile would lose frames.
        position = self._sink.open_stream(stream_id)
        self._add(stream_id, self._context.consumer(stream_id), position)

    def _add(self, stream_id: int, consumer: Consumer, position: ResumePosition | None) -> None:
        self._native.add(consumer, position)
        self._consumers[stream_id] = consumer

    def close_streams(self) -> None:
        """Stop to read all streams. The native loop still hands over the frames that it has copied."""
        streams = self._native.buffer().streams
        for stream_id in self.ids:
            self._closed_strays += streams[stream_id].strays if stream_id in streams else 0
            self._native.remove(stream_id)
            self._consumers.pop(stream_id).close()

    # --- announced streams

    def discover(self, stream_id: int) -> None:
        """Remember an announced stream; `open_discovered` opens it."""
        if len(self._discovered) < _MAX_STREAMS:
            self._discovered.setdefault(stream_id, 0)

    def open_discovered(self, now_ns: int) -> None:
        """Open announced streams. Another thread does it, because a lease can take long."""
        self._add_opened()
        for stream_id, not_before_ns in self._discovered.items():
            is_known = stream_id in self._consumers or stream_id in self._pending
            if is_known or now_ns < not_before_ns:
                continue
            self._discovered[stream_id] = now_ns + _RETRY_NS
            try:
                position = self._sink.open_stream(stream_id)
            except TensorPoolError as error:
                _LOG.error("stream %d is not recorded: %s", stream_id, error)
                continue
            if self._opener is None:
                self._opener = ThreadPoolExecutor(1, "recorder-open")
            consumer = self._opener.submit(self._context.consumer, stream_id)
            self._pending[stream_id] = _PendingConsumer(position, consumer)

    def _add_opened(self) -> None:
        opened = [stream_id for stream_id, pending in self._pending.items() if pending.consumer.done()]
        for stream_id in opened:
            position, consumer = self._pending.pop(stream_id)
            try:
                self._add(stream_id, consumer.result(), position)
            except TensorPoolError as error:
                _LOG.error("stream %d is not recorded: %s", stream_id, error)

    def close(self) -> None:
        """Close all consumers, also those that are being opened."""
        if self._opener is not None:
            self._opener.shutdown(cancel_futures=True)
        self.close_streams()
        for _, consumer in self._pending.values():
            if consumer.done() and not consumer.cancelled() and consumer.exception() is None:
                consumer.result().close()
