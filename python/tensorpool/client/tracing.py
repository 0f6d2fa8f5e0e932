"""Traces: which frames a frame was made from.

A root frame gets a trace id of its own, a frame with one parent carries the parent's on, and one with several
gets a new id and a `TraceLinkSet` on the control stream that names them. Best effort: lineage is lost, never
a frame.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from typing import Any

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..sbe.trace import TraceLinkSet, TraceParent
from .lease import LeasedProducer
from .owned_regions import StandaloneProducer
from .producer import Producer

_NODE_BITS, _COUNTER_BITS = 10, 12
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


class TraceIds:
    """64-bit ids that sort by time: milliseconds, the node, a counter. Never 0, never the same twice."""

    def __init__(self, node: int | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._node = secrets.randbits(_NODE_BITS) if node is None else node & ((1 << _NODE_BITS) - 1)
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def mint(self) -> int:
        with self._lock:
            fresh = self._first_of(self._clock.wall_ns() // 1_000_000)
            if fresh <= self._last:
                # The counter, and where it is full or the clock went back, the next millisecond.
                full = self._last & _COUNTER_MASK == _COUNTER_MASK
                millisecond = self._last >> (_NODE_BITS + _COUNTER_BITS)
                fresh = self._first_of(millisecond + 1) if full else self._last + 1
            self._last = fresh
            return fresh

    def _first_of(self, millisecond: int) -> int:
        return (millisecond << (_NODE_BITS + _COUNTER_BITS)) | (self._node << _COUNTER_BITS)


class Tracer:
    """Gives a producer's frames their trace ids and tells of their parents."""

    def __init__(self, ids: TraceIds, control: _native.Publication) -> None:
        self._ids = ids
        self._control = control

    def begin(self, parents: Iterable[_native.Frame | int]) -> tuple[int, list[int]]:
        """The trace id of a frame made from `parents`, and those that a link set must name."""
        ids = (parent if isinstance(parent, int) else parent.trace_id for parent in parents)
        unique = list(dict.fromkeys(trace for trace in ids if trace))
        if len(unique) == 1:
            return unique[0], []
        return self._ids.mint(), unique

    def link(self, stream_id: int, epoch: int, seq: int, trace_id: int, parents: list[int]) -> None:
        entries = tuple(TraceParent(trace_id=parent) for parent in parents)
        links = TraceLinkSet(stream_id=stream_id, epoch=epoch, seq=seq, trace_id=trace_id, parents=entries)
        self._control.offer(links.encode())

    def close(self) -> None:
        self._control.close()


class TracedProducer(Producer):
    """A producer whose frames tell what they were made from: `offer(array, parents=[frame, …])`."""

    tracer: Tracer
    _sources: frozenset[int] = frozenset()

    def offer(
        self, array: Any, *, parents: Iterable[_native.Frame | int] = (), trace_id: int = 0, **options: Any
    ) -> _native.Offered:
        """As without traces; `parents` are frames or trace ids. A trace id of your own goes as it is."""
        given, named = (trace_id, []) if trace_id else self._begin(parents)
        offered = super().offer(array, trace_id=given, **options)
        if named and offered.seq is not None:
            self._link(offered.seq, given, named)
        return offered

    def claim(
        self,
        shape: Any,
        dtype: Any,
        *,
        parents: Iterable[_native.Frame | int] = (),
        trace_id: int = 0,
        **options: Any,
    ) -> _native.Slot:
        """As without traces; the parents are told when the slot is claimed."""
        given, named = (trace_id, []) if trace_id else self._begin(parents)
        slot = super().claim(shape, dtype, trace_id=given, **options)
        if named:
            self._link(slot.seq, given, named)
        return slot

    def _begin(self, parents: Iterable[_native.Frame | int]) -> tuple[int, list[int]]:
        parents = tuple(parents)
        for one in parents:
            if not isinstance(one, int) and one.stream_id not in self._sources:
                self._note(one.stream_id)
        return self.tracer.begin(parents)

    def _note(self, stream_id: int) -> None:
        """Tells those who watch which streams this one is made from."""
        reporter = self._reporter
        if reporter is not None:
            reporter.note_source(stream_id)
            self._sources |= {stream_id}

    def _link(self, seq: int, trace_id: int, parents: list[int]) -> None:
        epoch = self.epoch
        if epoch is not None:
            self.tracer.link(self.stream_id, epoch, seq, trace_id, parents)

    def close(self) -> None:
        super().close()
        self.tracer.close()


class TracedStandaloneProducer(TracedProducer, StandaloneProducer):
    """With traces, and memory of its own."""


class TracedLeasedProducer(TracedProducer, LeasedProducer):
    """With traces, on a driver."""
