"""Forwarded messages: their kind, and copies with another stream id or epoch (bridge §7.1, §7.2, §9). Pure.

Every forwarded message has its stream id at the start of its block. Bytes behind the known fields are copied
unchanged, so that fields of later schema versions cross the bridge too.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

_HEADER_AND_STREAM = struct.Struct("<HHHHI")
_U32 = struct.Struct("<I")
_SOURCE_FIELDS = struct.Struct("<IIQ")
"""streamId, producerId and epoch of a DataSourceAnnounce."""
_TRACE_FIELDS = struct.Struct("<IQ")
"""streamId and epoch of a TraceLinkSet."""
_BLOCK_OFFSET: Final = 8

WIRE_SCHEMA: Final = 900
# Template ids of the wire schema.
SHM_POOL_ANNOUNCE: Final = 1
_QOS_CONSUMER: Final = 5
_QOS_PRODUCER: Final = 6
DATA_SOURCE_ANNOUNCE: Final = 7
DATA_SOURCE_META: Final = 8
_META_BLOB_ANNOUNCE: Final = 10
_FRAME_PROGRESS: Final = 11
_META_BLOB_CHUNK: Final = 12
_META_BLOB_COMPLETE: Final = 13

QOS: Final = frozenset({_QOS_CONSUMER, _QOS_PRODUCER})
PROGRESS: Final = frozenset({_FRAME_PROGRESS})
METADATA: Final = frozenset(
    {DATA_SOURCE_ANNOUNCE, DATA_SOURCE_META, _META_BLOB_ANNOUNCE, _META_BLOB_CHUNK, _META_BLOB_COMPLETE}
)


TRACE_SCHEMA: Final = 904


class MessageInfo(NamedTuple):
    """The template and the stream of a message."""

    template_id: int
    stream_id: int


def read_info(message: bytes) -> MessageInfo | None:
    """The template and stream of a message of the wire schema; None for other or truncated bytes."""
    if len(message) < _HEADER_AND_STREAM.size:
        return None
    block_length, template_id, schema_id, version, stream_id = _HEADER_AND_STREAM.unpack_from(message)
    if schema_id != WIRE_SCHEMA or version < 1 or block_length < _U32.size:
        return None
    if len(message) < _BLOCK_OFFSET + block_length:
        return None
    return MessageInfo(template_id, stream_id)


def replace_stream(message: bytes, stream_id: int) -> bytes:
    """The message with another stream id."""
    return message[:_BLOCK_OFFSET] + _U32.pack(stream_id) + message[_BLOCK_OFFSET + _U32.size :]


def replace_source(message: bytes, stream_id: int, producer_id: int, epoch: int) -> bytes | None:
    """A DataSourceAnnounce with another stream, producer and epoch; None if it is too short."""
    end = _BLOCK_OFFSET + _SOURCE_FIELDS.size
    if len(message) < end:
        return None
    return message[:_BLOCK_OFFSET] + _SOURCE_FIELDS.pack(stream_id, producer_id, epoch) + message[end:]


def read_meta_version(message: bytes, template_id: int) -> int | None:
    """The metadata version of a DataSourceAnnounce or DataSourceMeta; None for other messages."""
    offset = {
        DATA_SOURCE_ANNOUNCE: _BLOCK_OFFSET + _SOURCE_FIELDS.size,
        DATA_SOURCE_META: _BLOCK_OFFSET + _U32.size,
    }.get(template_id)
    if offset is None or len(message) < offset + _U32.size:
        return None
    return int(_U32.unpack_from(message, offset)[0])


def is_undescribed(info: MessageInfo, message: bytes) -> bool:
    """Whether it is the DataSourceAnnounce of a producer without metadata: no version, name or summary."""
    if info.template_id != DATA_SOURCE_ANNOUNCE:
        return False
    return not any(message[_BLOCK_OFFSET + _SOURCE_FIELDS.size :])


def read_traced_stream(message: bytes) -> int | None:
    """The stream of a TraceLinkSet; None for other or truncated bytes."""
    if len(message) < _HEADER_AND_STREAM.size:
        return None
    _, template_id, schema_id, version, stream_id = _HEADER_AND_STREAM.unpack_from(message)
    return int(stream_id) if (schema_id, template_id) == (TRACE_SCHEMA, 1) and version >= 1 else None


def replace_trace(message: bytes, stream_id: int, epoch: int) -> bytes | None:
    """A TraceLinkSet with another stream and epoch; None if it is too short."""
    end = _BLOCK_OFFSET + _TRACE_FIELDS.size
    if len(message) < end:
        return None
    return message[:_BLOCK_OFFSET] + _TRACE_FIELDS.pack(stream_id, epoch) + message[end:]


class PendingLinks:
    """TraceLinkSets that a publication has not taken yet.

    Other messages are repeated by their sources once a period; a TraceLinkSet is published once. It is
    offered again, in order, until the publication takes it or it is too old.
    """

    MAX_LINKS: Final = 1024
    MAX_AGE_NS: Final = 5_000_000_000

    def __init__(self, offer: Callable[[bytes], bool], on_done: Callable[[bool], None]) -> None:
        """`on_done` is called once for each TraceLinkSet, with whether it was sent."""
        self._offer = offer
        self._on_done = on_done
        self._pending: deque[tuple[int, bytes]] = deque()

    def add(self, links: bytes, now_ns: int) -> None:
        """Sends a TraceLinkSet, after those that wait."""
        if len(self._pending) == self.MAX_LINKS:
            self._pending.popleft()
            self._on_done(False)
        self._pending.append((now_ns, links))
        self.send(now_ns)

    def send(self, now_ns: int) -> int:
        """Offers what waits. Returns how many are done: sent, or too old."""
        done = 0
        while self._pending:
            added_ns, links = self._pending[0]
            is_sent = self._offer(links)
            if not is_sent and now_ns - added_ns < self.MAX_AGE_NS:
                break
            self._pending.popleft()
            self._on_done(is_sent)
            done += 1
        return done
