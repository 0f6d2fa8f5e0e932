"""Merge maps, schema 903: which input frames each frame of an output stream is made from.

The owner of the output stream announces its map on the control stream, and answers requests for it. A rule
has exactly one parameter: that of its type.
"""

from __future__ import annotations

from enum import IntEnum

from .message import Message, entry, message
from .wire import ClockDomain


class SequenceRuleType(IntEnum):
    """How the sequence of an output gives those of an input."""

    OFFSET = 0
    WINDOW = 1


class TimestampRuleType(IntEnum):
    """How the time of an output gives those of an input."""

    OFFSET_NS = 0
    WINDOW_NS = 1


class TimestampSource(IntEnum):
    """Which timestamp of a frame counts: that of its publication, or that of its capture."""

    FRAME_DESCRIPTOR = 1
    SLOT_HEADER = 2


@entry
class SequenceRule:
    """The sequences of one input."""

    input_stream_id: int
    rule_type: SequenceRuleType
    offset: int | None = None
    window_size: int | None = None


@message("merge-903")
class SequenceMergeMapAnnounce(Message):
    """Input sequences of each output of a stream."""

    out_stream_id: int
    epoch: int
    stale_timeout_ns: int | None = None
    rules: tuple[SequenceRule, ...] = ()


@message("merge-903")
class SequenceMergeMapRequest(Message):
    """A request for a SequenceMergeMapAnnounce."""

    out_stream_id: int
    epoch: int


@entry
class TimestampRule:
    """The times of one input."""

    input_stream_id: int
    rule_type: TimestampRuleType
    timestamp_source: TimestampSource
    offset_ns: int | None = None
    window_ns: int | None = None


@message("merge-903")
class TimestampMergeMapAnnounce(Message):
    """Input times of each output of a stream."""

    out_stream_id: int
    epoch: int
    stale_timeout_ns: int | None = None
    clock_domain: ClockDomain
    lateness_ns: int | None = None
    rules: tuple[TimestampRule, ...] = ()


@message("merge-903")
class TimestampMergeMapRequest(Message):
    """A request for a TimestampMergeMapAnnounce."""

    out_stream_id: int
    epoch: int
