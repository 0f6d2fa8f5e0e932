"""A listener that remembers on which kinds of streams it received messages about a stream."""

from __future__ import annotations

import tensorpool as tp
from tensorpool.monitor.listener import StreamKind, SystemListener, SystemMonitor
from tensorpool.recorder.messages import OBSERVED_STREAMS
from tensorpool.sbe import decode


class Kinds:
    """The kinds of streams on which messages about a stream are received."""

    def __init__(self, context: tp.Context, stream_id: int) -> None:
        self._stream_id = stream_id
        self._listener = SystemListener(context.connection, raw_observers=(self,), streams=OBSERVED_STREAMS)
        self._kinds: set[StreamKind] = set()

    def observe_message(self, kind: StreamKind, message: bytes, now_ns: int) -> None:
        if getattr(decode(message), "stream_id", None) == self._stream_id:
            self._kinds.add(kind)

    def poll(self, monitor: SystemMonitor) -> set[StreamKind]:
        monitor.poll()
        self._listener.poll()
        return self._kinds

    def close(self) -> None:
        self._listener.close()
