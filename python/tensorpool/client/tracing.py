"""Trace ids and the messages that link frames to the frames they were made from (schema 904).

A root frame gets a new trace id. A frame with one parent carries the parent's trace id. A frame with several
parents gets a new id, and a TraceLinkSet on the control stream names the parents. Delivery is best effort: a
lost TraceLinkSet loses lineage, never a frame.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..sbe.trace import TraceLinkSet, TraceParent

_NODE_BITS: Final = 12
_NODES: Final = 1 << _NODE_BITS
_COUNTER_BITS: Final = 10
_COUNTER_MASK: Final = (1 << _COUNTER_BITS) - 1
# The counter of a millisecond starts at a random number of this many bits: two hosts with the same node
# rarely count alike.
_START_BITS: Final = _COUNTER_BITS - 1
_HANDOVER_S: Final = 0.002
_SOCKET_NAME: Final = "\0tensorpool-trace-node-{}"


class TraceNode:
    """The number of a node that no other live process of this host uses.

    It is held by binding an abstract Unix socket with that number in its name. This needs neither a file nor
    a permission, holds between users, and ends with the process. Processes in another network namespace count
    as another host: there the number is only unlikely to be the same, one in 4096.
    """

    def __init__(self, first: int | None = None) -> None:
        """`first`: the number that is tried first; None: any."""
        first = secrets.randbelow(_NODES) if first is None else first
        self.number = first
        self._socket: socket.socket | None = None
        for number in ((first + offset) % _NODES for offset in range(_NODES)):
            if (bound := _bind(number)) is not None:
                self.number, self._socket = number, bound
                # The last holder of the number may have used the present millisecond.
                time.sleep(_HANDOVER_S)
                return

    def close(self) -> None:
        """Lets others use the number."""
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()


def _bind(number: int) -> socket.socket | None:
    """A socket that holds the number; None if another process has it."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.bind(_SOCKET_NAME.format(number))
    except OSError:
        bound.close()
        return None
    return bound


class TraceIds:
    """64-bit ids that sort by time: milliseconds (42 bits), node (12), counter (10). Never 0, never the same
    twice, and never the same as those of another `TraceIds` with another node."""

    def __init__(self, node: int | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`node`: for tests. None: one that no other live process of this host uses; `close` frees it."""
        self._held = TraceNode() if node is None else None
        self._node = (self._held.number if self._held is not None else node or 0) % _NODES
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def new_id(self) -> int:
        """The next id. Safe to call from several threads."""
        with self._lock:
            trace_id = self._first_id(self._millisecond())
            if trace_id <= self._last | _COUNTER_MASK:
                # The same millisecond, or the clock went back: count on. A full counter needs the next
                # millisecond.
                is_full = self._last & _COUNTER_MASK == _COUNTER_MASK
                millisecond = self._last >> (_NODE_BITS + _COUNTER_BITS)
                trace_id = self._start(self._first_id(millisecond + 1)) if is_full else self._last + 1
            else:
                trace_id = self._start(trace_id)
            self._last = trace_id
            return trace_id

    def close(self) -> None:
        """Frees the node. Ids that are made later may be those of another process."""
        if self._held is not None:
            self._held.close()

    def _millisecond(self) -> int:
        return self._clock.wall_ns() // 1_000_000

    def _first_id(self, millisecond: int) -> int:
        return (millisecond << (_NODE_BITS + _COUNTER_BITS)) | (self._node << _COUNTER_BITS)

    @staticmethod
    def _start(first_id: int) -> int:
        return first_id + secrets.randbits(_START_BITS)


class Tracer:
    """Chooses the trace ids of a producer's frames and publishes their TraceLinkSets."""

    def __init__(self, ids: TraceIds, control: _native.Publication) -> None:
        self._ids = ids
        self._control = control

    def trace_id_from(
        self, parents: Iterable[_native.Frame | int], given_id: int = 0
    ) -> tuple[int, list[int]]:
        """The trace id of a frame made from `parents`, and the trace ids that a TraceLinkSet must name.

        `given_id` is the caller's own trace id for the frame; 0 if it has none.
        """
        ids = (parent if isinstance(parent, int) else parent.trace_id for parent in parents)
        unique = list(dict.fromkeys(trace_id for trace_id in ids if trace_id))
        if given_id:
            # A frame that carries a parent's id continues its trace: it is not made from itself.
            return given_id, [trace_id for trace_id in unique if trace_id != given_id]
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
