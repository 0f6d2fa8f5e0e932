"""Trace links, schema 904: the frames that a frame was made from."""

from __future__ import annotations

from .message import Message, entry, message


@entry
class TraceParent:
    """One parent of a frame."""

    trace_id: int


@message("trace-904")
class TraceLinkSet(Message):
    """The parents of a frame that has more than one."""

    stream_id: int
    epoch: int
    seq: int
    trace_id: int
    parents: tuple[TraceParent, ...] = ()
