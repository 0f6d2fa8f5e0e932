"""How long frames take to consumers, as these tell it on the services' status stream.

`LatencyBook` is pure: values and times in, figures out. `LatencyEar` is its ear on a connection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from .. import _native
from ..context import Context
from ..errors import CodecError
from ..sbe.status import STATUS_KEY, ConsumerStatus
from ..service import Event

TAG: Final = "service:consumer:"
# Who has not said anything for so long has left, or gets no frames.
_FORGET_AFTER_NS: Final = 3_000_000_000
# Whoever can reach the stream can make up consumers.
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class StreamLatency:
    """Of all consumers of a stream that tell: the slowest counts."""

    consumers: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    def as_json(self) -> dict[str, int]:
        return {
            "consumers": self.consumers,
            "p50_ns": self.p50_ns,
            "p99_ns": self.p99_ns,
            "max_ns": self.max_ns,
        }


class LatencyBook:
    """What each consumer told last."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], tuple[int, tuple[int, int, int]]] = {}
        self.malformed = 0

    def hear(self, value: object, now_ns: int) -> None:
        """Takes the latency of a status report, the value of one event. A malformed one is counted."""
        try:
            report = ConsumerStatus.decode(value if isinstance(value, bytes) else b"")
        except CodecError:
            self.malformed += 1
            return
        if report.is_final or not report.interval_frames:
            return
        who = (report.stream_id, report.consumer_id)
        figures = (report.interval_p50_ns, report.interval_p99_ns, report.interval_max_ns)
        self._told.pop(who, None)
        self._told[who] = (now_ns, figures)
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]

    def of(self, stream_id: int, now_ns: int) -> StreamLatency | None:
        """None while nobody tells of that stream."""
        fresh = [
            figures
            for (stream, _), (at_ns, figures) in self._told.items()
            if stream == stream_id and now_ns - at_ns <= _FORGET_AFTER_NS
        ]
        if not fresh:
            return None
        p50_ns, p99_ns, max_ns = (max(column) for column in zip(*fresh, strict=True))
        return StreamLatency(len(fresh), p50_ns, p99_ns, max_ns)


class LatencyEar:
    """Listens on the status stream of a connection. Poll it now and then."""

    def __init__(self, context: Context) -> None:
        streams = context.service_streams
        self.book = LatencyBook()
        self._mailbox = _native.Mailbox(
            context.connection.conductor, streams.channel, streams.status, [f"{TAG}*"]
        )

    def poll(self) -> None:
        for message in self._mailbox.take(256):
            try:
                event = Event.decode(message)
            except CodecError:
                self.book.malformed += 1
                continue
            if event.key == STATUS_KEY:
                self.book.hear(event.value, time.monotonic_ns())

    def close(self) -> None:
        self._mailbox.close()
