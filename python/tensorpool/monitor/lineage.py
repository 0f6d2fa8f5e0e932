"""Which frames a frame was made from, put together from what is heard (decision: trace links).

`LineageBook` is pure: descriptors and link sets in, trees out. It forgets the oldest, so it may run for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import CodecError
from ..sbe import FrameDescriptor, TraceLinkSet, decode

_MAX_TRACES: Final = 100_000
_MAX_FRAMES: Final = 64
_MAX_PARENTS: Final = 1024
_MAX_NODES: Final = 1000


@dataclass(frozen=True, slots=True)
class TracedFrame:
    """A frame by its descriptor."""

    stream_id: int
    epoch: int
    seq: int
    trace_id: int

    def as_json(self) -> dict[str, Any]:
        return {"stream_id": self.stream_id, "epoch": str(self.epoch), "seq": str(self.seq)}


@dataclass(frozen=True, slots=True)
class Lineage:
    """A trace, the frames that carry it, as they were heard, and the traces that it was made from."""

    trace_id: int
    frames: tuple[TracedFrame, ...] = ()
    parents: tuple[Lineage, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "trace_id": str(self.trace_id),
            "frames": [frame.as_json() for frame in self.frames],
            "parents": [parent.as_json() for parent in self.parents],
        }

    def __iter__(self) -> Iterator[Lineage]:
        """Itself, and all it was made from."""
        yield self
        for parent in self.parents:
            yield from parent


@dataclass(slots=True)
class _Trace:
    frames: list[TracedFrame] = field(default_factory=list)
    parents: tuple[int, ...] = ()


class LineageTracker:
    """What was heard of traces."""

    def __init__(self, max_traces: int = _MAX_TRACES) -> None:
        self._max = max_traces
        self._traces: OrderedDict[int, _Trace] = OrderedDict()
        self.malformed = 0
        self.untraced = 0

    def hear(self, message: bytes) -> TracedFrame | None:
        """One message of a descriptor or control stream; the frame, if it tells of one that has a trace."""
        try:
            found = decode(message)
        except CodecError:
            self.malformed += 1
            return None
        match found:
            case FrameDescriptor(trace_id=None):
                self.untraced += 1
            case FrameDescriptor(trace_id=int() as trace_id):
                frame = TracedFrame(found.stream_id, found.epoch, found.seq, trace_id)
                trace = self._trace(trace_id)
                if frame not in trace.frames:
                    trace.frames.append(frame)
                    del trace.frames[:-_MAX_FRAMES]
                return frame
            case TraceLinkSet():
                self._linked(found)
            case _:
                pass
        return None

    def _linked(self, links: TraceLinkSet) -> None:
        parents = tuple(parent.trace_id for parent in links.parents)
        wrong = not parents or 0 in parents or len(set(parents)) < len(parents) or len(parents) > _MAX_PARENTS
        if wrong or not links.trace_id or links.trace_id in parents:
            self.malformed += 1
            return
        self._trace(links.trace_id).parents = parents

    def _trace(self, trace_id: int) -> _Trace:
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = _Trace()
            if len(self._traces) > self._max:
                self._traces.popitem(last=False)
        else:
            self._traces.move_to_end(trace_id)
        return trace

    def lineage(self, trace_id: int) -> Lineage:
        """The tree of a trace. A trace that comes again below itself, or too much of a tree, is cut off."""
        left = [_MAX_NODES]

        def grow(one: int, above: frozenset[int]) -> Lineage:
            left[0] -= 1
            trace = self._traces.get(one, _Trace())
            below = (p for p in trace.parents if p not in above and p != one and left[0] > 0)
            return Lineage(one, tuple(trace.frames), tuple(grow(p, above | {one}) for p in below))

        return grow(trace_id, frozenset())

    def __len__(self) -> int:
        return len(self._traces)
