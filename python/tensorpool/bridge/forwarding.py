"""Messages that a bridge carries on as they are, but for a stream id or an epoch (bridge §7.1, §7.2, §9).

Every message that is forwarded has its stream id at the start of its block; bytes that are not understood
stay untouched, so a peer's later fields cross too.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_HEAD = struct.Struct("<HHHHI")
_U32 = struct.Struct("<I")
_ANNOUNCE = struct.Struct("<IIQ")
_BLOCK: Final = 8

WIRE_SCHEMA: Final = 900
POOL_ANNOUNCE: Final = 1
QOS: Final = frozenset({5, 6})
SOURCE_ANNOUNCE: Final = 7
SOURCE_META: Final = 8
METADATA: Final = frozenset({SOURCE_ANNOUNCE, SOURCE_META, 10, 12, 13})
PROGRESS: Final = frozenset({11})


class MessageInfo(NamedTuple):
    """What a message is, and of which stream it speaks."""

    template_id: int
    stream_id: int


def read_info(message: bytes) -> MessageInfo | None:
    """None for what is no message of the wire protocol."""
    if len(message) < _HEAD.size:
        return None
    block_length, template_id, schema_id, version, stream_id = _HEAD.unpack_from(message)
    if schema_id != WIRE_SCHEMA or version < 1 or len(message) < _BLOCK + block_length or block_length < 4:
        return None
    return MessageInfo(template_id, stream_id)


def with_stream(message: bytes, stream_id: int) -> bytes:
    """The same of another stream."""
    return message[:_BLOCK] + _U32.pack(stream_id) + message[_BLOCK + _U32.size :]


def with_source(message: bytes, stream_id: int, producer_id: int, epoch: int) -> bytes | None:
    """A `DataSourceAnnounce` of another stream, producer and epoch. None if it is too short for one."""
    if len(message) < _BLOCK + _ANNOUNCE.size:
        return None
    return (
        message[:_BLOCK] + _ANNOUNCE.pack(stream_id, producer_id, epoch) + message[_BLOCK + _ANNOUNCE.size :]
    )


def version_of(message: bytes, template_id: int) -> int | None:
    """The metadata version of a `DataSourceAnnounce` or `DataSourceMeta`; None where there is none."""
    at = {SOURCE_ANNOUNCE: _BLOCK + _ANNOUNCE.size, SOURCE_META: _BLOCK + _U32.size}.get(template_id)
    if at is None or len(message) < at + _U32.size:
        return None
    return int(_U32.unpack_from(message, at)[0])
