"""Trace ids and the messages that link frames to the frames they were made from (schema 904).

A root frame gets a new trace id. A frame with one parent carries the parent's trace id. A frame with several
parents gets a new id, and a TraceLinkSet on the control stream names the parents. Delivery is best effort: a
lost TraceLinkSet loses lineage, never a frame.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from typing import Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..sbe.trace import TraceLinkSet, TraceParent

_NODE_BITS: Final = 10
_COUNTER_BITS: Final = 12
_COUNTER_MASK: Final = (1 << _COUNTER_BITS) - 1


class TraceIds:
    """64-bit ids that sort by time: milliseconds, node, counter. Never 0, and never the same twice."""

    def __init__(self, node: int | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._node = secrets.randbits(_NODE_BITS) if node is None else node & ((1 << _NODE_BITS) - 1)
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def new_id(self) -> int:
        """The next id. Safe to call from several threads."""
        with self._lock:
            trace_id = self._first_id(self._clock.wall_ns() // 1_000_000)
            if trace_id <= self._last:
                # The same millisecond, or the clock went back: count on. A full counter needs the next
                # millisecond.
                is_full = self._last & _COUNTER_MASK == _COUNTER_MASK
                millisecond = self._last >> (_NODE_BITS + _COUNTER_BITS)
                trace_id = self._first_id(millisecond + 1) if is_full else self._last + 1
            self._last = trace_id
            return trace_id

    def _first_id(self, millisecond: int) -> int:
        return (millisecond << (_NODE_BITS + _COUNTER_BITS)) | (self._node << _COUNTER_BITS)


class Tracer:
    """Chooses the trace ids of a producer's frames and publishes their TraceLinkSets."""

    def __init__(self, ids: TraceIds, control: _native.Publication) -> None:
        self._ids = ids
        self._control = control

    def trace_id_from(self, parents: Iterable[_native.Frame | int]) -> tuple[int, list[int]]:
        """The trace id of a frame made from `parents`, and the trace ids that a TraceLinkSet must name."""
        ids = (parent if isinstance(parent, int) else parent.trace_id for parent in parents)
        unique = list(dict.fromkeys(trace_id for trace_id in ids if trace_id))
        if len(unique) == 1:
            return unique[0], []
        return self._ids.new_id(), unique

    def publish_links(self, stream_id: int, epoch: int, seq: int, trace_id: int, parents: list[int]) -> None:
        """Publishes which traces the frame `seq` was made from."""
        entries = tuple(TraceParent(trace_id=parent) for parent in parents)
        links = TraceLinkSet(stream_id=stream_id, epoch=epoch, seq=seq, trace_id=trace_id, parents=entries)
        self._control.offer(links.encode())

    def close(self) -> None:
        """Closes the publication on the control stream."""
        self._control.close()
