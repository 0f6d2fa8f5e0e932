"""The streams that a recorder reads: a consumer each, and how it comes by them. Its agent owns them."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from .. import _native
from ..client import Consumer
from ..context import Context
from ..errors import TensorPoolError
from .sink import Sink

_LOG = logging.getLogger(__name__)
_AGAIN_NS: Final = 5_000_000_000
# More than one process can read; whoever announces more is kept from filling our memory.
_MOST_STREAMS: Final = 10_000
_Position = tuple[int, int] | None


class RecordedStreams:
    """Consumers that the native loop reads, by stream."""

    def __init__(self, context: Context, native: _native.Recorder, sink: Sink) -> None:
        self._context = context
        self._native = native
        self._sink = sink
        self._consumers: dict[int, Consumer] = {}
        # Where all streams are wanted: those that were heard of, and when they are next asked for.
        self._heard_of: dict[int, int] = {}
        self._joining: dict[int, tuple[_Position, Future[Consumer]]] = {}
        self._joiner: ThreadPoolExecutor | None = None
        self._strays = 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._consumers or stream_id in self._heard_of

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._consumers))

    def mapped(self) -> dict[int, int | None]:
        """The epoch of each stream that is mapped. May be asked from any thread."""
        return {stream_id: consumer.epoch for stream_id, consumer in sorted(self._consumers.items())}

    @property
    def strays(self) -> int:
        """Frames that were told twice or out of turn, also of streams that are read no more."""
        streams = self._native.stats()["streams"].values()
        return self._strays + sum(int(one["strays"]) for one in streams)

    def open(self, stream_id: int) -> None:
        """Reads a stream from here on."""
        # What an earlier recorder left is looked at first, which takes its time: a consumer that nobody
        # reads meanwhile would lose frames.
        position = self._sink.open_stream(stream_id)
        self._add(stream_id, self._context.consumer(stream_id), position)

    def _add(self, stream_id: int, consumer: Consumer, position: _Position) -> None:
        self._native.add(consumer, position)
        self._consumers[stream_id] = consumer

    def let_go(self) -> None:
        """Reads nothing any more. What was taken is handed over."""
        streams = self._native.stats()["streams"]
        for stream_id in self.ids:
            self._strays += streams[stream_id]["strays"] if stream_id in streams else 0
            self._native.remove(stream_id)
            self._consumers.pop(stream_id).close()

    # --- streams that come by themselves

    def hear_of(self, stream_id: int) -> None:
        """A stream was announced, and all are wanted."""
        if len(self._heard_of) < _MOST_STREAMS:
            self._heard_of.setdefault(stream_id, 0)

    def join(self, now_ns: int) -> None:
        """Takes up what was heard of. Getting a lease takes its time, so another thread asks for it."""
        self._take_up()
        for stream_id, not_before_ns in self._heard_of.items():
            is_there = stream_id in self._consumers or stream_id in self._joining
            if is_there or now_ns < not_before_ns:
                continue
            self._heard_of[stream_id] = now_ns + _AGAIN_NS
            try:
                position = self._sink.open_stream(stream_id)
            except TensorPoolError as error:
                _LOG.error("stream %d is not recorded: %s", stream_id, error)
                continue
            if self._joiner is None:
                self._joiner = ThreadPoolExecutor(1, "recorder-join")
            asked = self._joiner.submit(self._context.consumer, stream_id)
            self._joining[stream_id] = position, asked

    def _take_up(self) -> None:
        for stream_id in [stream_id for stream_id, (_, one) in self._joining.items() if one.done()]:
            position, joined = self._joining.pop(stream_id)
            try:
                self._add(stream_id, joined.result(), position)
            except TensorPoolError as error:
                _LOG.error("stream %d is not recorded: %s", stream_id, error)

    def close(self) -> None:
        if self._joiner is not None:
            self._joiner.shutdown(cancel_futures=True)
        self.let_go()
        for _, one in self._joining.values():
            if one.done() and not one.cancelled() and one.exception() is None:
                one.result().close()
