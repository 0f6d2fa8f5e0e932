"""The lineage of frames: which frames a frame was made from, built from descriptors and trace links.

Pure. `LineageTracker` drops its oldest traces, so that it may run without end (decision: trace links).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..errors import CodecError
from ..sbe import FrameDescriptor, TraceLinkSet, decode
from ..text import JsonMapping

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

    def to_json(self) -> JsonMapping:
        """Stream, epoch and sequence; 64-bit numbers are text."""
        return {"stream_id": self.stream_id, "epoch": str(self.epoch), "seq": str(self.seq)}


@dataclass(frozen=True, slots=True)
class Lineage:
    """A trace, the frames that carry it in the order of receipt, and its parent traces."""

    trace_id: int
    frames: tuple[TracedFrame, ...] = ()
    parents: tuple[Lineage, ...] = ()

    def to_json(self) -> JsonMapping:
        """The whole tree; 64-bit numbers are text."""
        return {
            "trace_id": str(self.trace_id),
            "frames": [frame.to_json() for frame in self.frames],
            "parents": [parent.to_json() for parent in self.parents],
        }

    def __iter__(self) -> Iterator[Lineage]:
        """This trace and all its ancestors."""
        yield self
        for parent in self.parents:
            yield from parent


@dataclass(slots=True)
class _Trace:
    frames: list[TracedFrame] = field(default_factory=list)
    parents: tuple[int, ...] = ()


class LineageTracker:
    """The newest traces with their frames and parents."""

    def __init__(self, max_traces: int = _MAX_TRACES) -> None:
        self._max_traces = max_traces
        self._traces: OrderedDict[int, _Trace] = OrderedDict()
        self.malformed = 0
        self.untraced = 0

    def on_message(self, message: bytes) -> TracedFrame | None:
        """Takes a message of a descriptor or control stream. Returns the frame of a traced descriptor."""
        try:
            decoded = decode(message)
        except CodecError:
            self.malformed += 1
            return None
        match decoded:
            case FrameDescriptor(trace_id=None):
                self.untraced += 1
            case FrameDescriptor(trace_id=int() as trace_id):
                frame = TracedFrame(decoded.stream_id, decoded.epoch, decoded.seq, trace_id)
                trace = self._trace(trace_id)
                if frame not in trace.frames:
                    trace.frames.append(frame)
                    del trace.frames[:-_MAX_FRAMES]
                return frame
            case TraceLinkSet():
                self._on_links(decoded)
            case _:
                pass
        return None

    def _on_links(self, links: TraceLinkSet) -> None:
        parents = tuple(parent.trace_id for parent in links.parents)
        is_invalid = (
            not parents or 0 in parents or len(set(parents)) < len(parents) or len(parents) > _MAX_PARENTS
        )
        if is_invalid or not links.trace_id or links.trace_id in parents:
            self.malformed += 1
            return
        self._trace(links.trace_id).parents = parents

    def _trace(self, trace_id: int) -> _Trace:
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = _Trace()
            if len(self._traces) > self._max_traces:
                self._traces.popitem(last=False)
        else:
            self._traces.move_to_end(trace_id)
        return trace

    def lineage(self, trace_id: int) -> Lineage:
        """The tree of a trace. It is cut off at a trace that is its own ancestor, and at a maximal size."""
        nodes_left = _MAX_NODES

        def grow(node_id: int, descendants: frozenset[int]) -> Lineage:
            nonlocal nodes_left
            nodes_left -= 1
            trace = self._traces.get(node_id, _Trace())
            parents = (
                grow(parent_id, descendants | {node_id})
                for parent_id in trace.parents
                if parent_id not in descendants and parent_id != node_id and nodes_left > 0
            )
            return Lineage(node_id, tuple(trace.frames), tuple(parents))

        return grow(trace_id, frozenset())

    def __len__(self) -> int:
        return len(self._traces)
