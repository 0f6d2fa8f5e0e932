"""Messages about recorded streams: announces, metadata, QoS reports, trace links (wire §10).

`MessageListener` receives them on the agent's thread. `MessageFilter` decides which of them become rows of
the recording's tables and ignores repeated messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from .. import _native
from ..context import Context
from ..errors import CodecError
from ..sbe import (
    DataSourceAnnounce,
    DataSourceMeta,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
    TraceLinkSet,
    decode,
    read_header,
)

K = TypeVar("K")
V = TypeVar("V")

# Untethered: a recorder that pauses must not hold publishers back.
_CHANNEL: Final = "aeron:ipc?tether=false"
_TRACE_SCHEMA: Final = 904
_MAX_CONTROL_FRAGMENTS: Final = 4096
_MAX_FRAGMENTS: Final = 256
# Bounds of the filter's memory: messages of one stream, and streams. The least recently used entry is
# evicted, which costs one more row if its message is repeated.
_MAX_MESSAGES: Final = 65_536
_MAX_STREAMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message for one of the recording's tables."""

    table: str
    message: bytes
    stream_id: int
    epoch: int | None = None
    meta_version: int | None = None
    is_announce: bool = False


class MessageFilter:
    """Decides which messages become rows. Pure."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[int, int] = OrderedDict()
        self._messages: OrderedDict[int, OrderedDict[object, object]] = OrderedDict()

    def to_row(self, message: bytes) -> MessageRow | None:
        """The row of a message; None for repeated, unrelated and invalid messages."""
        try:
            decoded = decode(message)
        except CodecError:
            return None
        match decoded:
            case ShmPoolAnnounce(stream_id=stream_id, epoch=epoch):
                if self._epochs.get(stream_id) != epoch:
                    # A new producer numbers its metadata versions from the beginning.
                    self._messages.pop(stream_id, None)
                _put_bounded(self._epochs, stream_id, epoch, _MAX_STREAMS)
                if self._is_new(stream_id, "announce", replace(decoded, announce_timestamp_ns=0)):
                    return MessageRow("announces", message, stream_id, epoch, is_announce=True)
            case (
                QosProducer(stream_id=stream_id, epoch=epoch) | QosConsumer(stream_id=stream_id, epoch=epoch)
            ):
                return MessageRow("qos", message, stream_id, epoch)
            case DataSourceAnnounce(stream_id=stream_id, epoch=epoch, meta_version=version):
                if self._is_new(stream_id, "source", decoded):
                    return MessageRow("metadata", message, stream_id, epoch, version)
            case DataSourceMeta(stream_id=stream_id, meta_version=version):
                if self._is_new(stream_id, ("meta", version), replace(decoded, timestamp_ns=0)):
                    return MessageRow("metadata", message, stream_id, self._epochs.get(stream_id), version)
            case MetaBlobAnnounce() | MetaBlobChunk() | MetaBlobComplete():
                stream_id, version = decoded.stream_id, decoded.meta_version
                offset = decoded.chunk_offset if isinstance(decoded, MetaBlobChunk) else None
                if self._is_new(stream_id, (type(decoded).__name__, version, offset), len(message)):
                    return MessageRow("metadata", message, stream_id, self._epochs.get(stream_id), version)
            case TraceLinkSet(stream_id=stream_id, epoch=epoch):
                return MessageRow("metadata", message, stream_id, epoch)
            case _:
                pass
        return None

    def _is_new(self, stream_id: int, key: object, value: object) -> bool:
        messages = self._messages.get(stream_id, OrderedDict())
        _put_bounded(self._messages, stream_id, messages, _MAX_STREAMS)
        is_new = key not in messages or messages[key] != value
        _put_bounded(messages, key, value, _MAX_MESSAGES)
        return is_new


def _put_bounded(cache: OrderedDict[K, V], key: K, value: V, max_entries: int) -> None:
    """Insert or renew an entry; evict the least recently used entry if there are too many."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > max_entries:
        cache.popitem(last=False)


class MessageListener:
    """Subscriptions to the announce, metadata and QoS streams, and to the control stream for trace links."""

    def __init__(self, context: Context) -> None:
        ids = context.stream_ids
        stream_ids = dict.fromkeys((ids.announce, ids.metadata, ids.qos))
        conductor = context.connection.conductor
        self._subscriptions = [_native.Subscription(conductor, _CHANNEL, stream) for stream in stream_ids]
        self._control = _native.Subscription(conductor, _CHANNEL, ids.control)
        self._filter = MessageFilter()

    def poll(self, *, is_recorded: Callable[[MessageRow], bool]) -> Iterator[MessageRow]:
        """The rows of received messages that `is_recorded` accepts."""
        # Most messages of the control stream are between clients and the driver: do not decode them.
        links = (message for message in self._control.poll(_MAX_CONTROL_FRAGMENTS) if _is_trace(message))
        for messages in (links, *(source.poll(_MAX_FRAGMENTS) for source in self._subscriptions)):
            for message in messages:
                row = self._filter.to_row(message)
                if row is not None and is_recorded(row):
                    yield row

    def close(self) -> None:
        """Close the subscriptions."""
        for subscription in (self._control, *self._subscriptions):
            subscription.close()


def _is_trace(message: bytes) -> bool:
    try:
        return read_header(message).schema_id == _TRACE_SCHEMA
    except CodecError:
        return False
