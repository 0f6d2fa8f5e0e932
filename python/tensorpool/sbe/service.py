"""Commands to services and their status, schema 920 (service §5)."""

from __future__ import annotations

from enum import IntEnum

from .message import Message, message


class Format(IntEnum):
    """The type of `EventMessage.value`."""

    NOTHING = 0
    UINT8 = 1
    INT8 = 2
    UINT16 = 3
    INT16 = 4
    UINT32 = 5
    INT32 = 6
    UINT64 = 7
    INT64 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    BOOLEAN = 11
    STRING = 12
    BYTES = 13
    BIT = 14
    REF = 15


@message("service-920")
class EventMessage(Message):
    """A command to a service, or a service's event, echo or status."""

    timestamp_ns: int
    correlation_id: int
    format: Format
    pad: bytes = bytes(3)
    ref_stream_id: int | None = None
    ref_epoch: int | None = None
    ref_seq: int | None = None
    trace_id: int | None = None
    tag: str = ""
    key: str = ""
    value: bytes = b""
