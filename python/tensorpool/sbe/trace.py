"""Trace links, schema 904: which frames a frame was made from."""

from __future__ import annotations

from .message import Message, entry, message


@entry
class TraceParent:
    trace_id: int


@message("trace-904")
class TraceLinkSet(Message):
    stream_id: int
    epoch: int
    seq: int
    trace_id: int
    parents: tuple[TraceParent, ...] = ()
