"""Words about the streams that are recorded: announces, metadata, QoS, trace links.

What only repeats is passed over.
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

# A reader that sleeps must not stall those who speak.
_CHANNEL: Final = "aeron:ipc?tether=false"
_TRACE_SCHEMA: Final = 904
_MOST_CONTROL: Final = 4096
# Words of one stream, and streams. Of whoever says more, the oldest are forgotten: that costs a further row
# if they are said again, and keeps our memory from filling.
_MOST_KNOWN: Final = 65_536
_MOST_STREAMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message for one of the tables."""

    table: str
    message: bytes
    stream_id: int
    epoch: int | None = None
    meta_version: int | None = None
    is_announce: bool = False


class MessageFilter:
    """Which messages are worth a row. Pure."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[int, int] = OrderedDict()
        self._known: OrderedDict[int, OrderedDict[object, object]] = OrderedDict()

    def hear(self, message: bytes) -> MessageRow | None:
        """None for what is none of ours, and for what was said before."""
        try:
            found = decode(message)
        except CodecError:
            return None
        match found:
            case ShmPoolAnnounce(stream_id=stream_id, epoch=epoch):
                same = replace(found, announce_timestamp_ns=0)
                if self._epochs.get(stream_id) != epoch:
                    # A new producer counts its metadata versions anew.
                    self._known.pop(stream_id, None)
                _remember(self._epochs, stream_id, epoch, _MOST_STREAMS)
                is_news = self._is_news(stream_id, "announce", same)
                return (
                    MessageRow("announces", message, stream_id, epoch, is_announce=True) if is_news else None
                )
            case (
                QosProducer(stream_id=stream_id, epoch=epoch) | QosConsumer(stream_id=stream_id, epoch=epoch)
            ):
                return MessageRow("qos", message, stream_id, epoch)
            case DataSourceAnnounce(stream_id=stream_id, epoch=epoch, meta_version=version):
                if self._is_news(stream_id, "source", found):
                    return MessageRow("metadata", message, stream_id, epoch, version)
            case DataSourceMeta(stream_id=stream_id, meta_version=version):
                if self._is_news(stream_id, ("meta", version), replace(found, timestamp_ns=0)):
                    return MessageRow("metadata", message, stream_id, self._epochs.get(stream_id), version)
            case MetaBlobAnnounce() | MetaBlobChunk() | MetaBlobComplete():
                stream_id, version = found.stream_id, found.meta_version
                at = found.chunk_offset if isinstance(found, MetaBlobChunk) else None
                if self._is_news(stream_id, (type(found).__name__, version, at), len(message)):
                    return MessageRow("metadata", message, stream_id, self._epochs.get(stream_id), version)
            case TraceLinkSet(stream_id=stream_id, epoch=epoch):
                return MessageRow("metadata", message, stream_id, epoch)
            case _:
                pass
        return None

    def _is_news(self, stream_id: int, key: object, value: object) -> bool:
        known = self._known.get(stream_id, OrderedDict())
        _remember(self._known, stream_id, known, _MOST_STREAMS)
        is_news = key not in known or known[key] != value
        _remember(known, key, value, _MOST_KNOWN)
        return is_news


def _remember(known: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Takes note, and forgets what was longest not heard of."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


class MessageListener:
    """Listens on the streams for announces, metadata and QoS, and for traces on the control stream."""

    def __init__(self, context: Context) -> None:
        ids = context.stream_ids
        streams = dict.fromkeys((ids.announce, ids.metadata, ids.qos))
        self._ears = [
            _native.Subscription(context.connection.conductor, _CHANNEL, stream) for stream in streams
        ]
        self._control = _native.Subscription(context.connection.conductor, _CHANNEL, ids.control)
        self._book = MessageFilter()

    def poll(self, *, wants: Callable[[MessageRow], bool]) -> Iterator[MessageRow]:
        """What is new, of the streams that are wanted."""
        # Of what is said there most is between clients and their driver.
        links = (message for message in self._control.poll(_MOST_CONTROL) if _is_trace(message))
        for messages in (links, *(ear.poll(256) for ear in self._ears)):
            for message in messages:
                note = self._book.hear(message)
                if note is not None and wants(note):
                    yield note

    def close(self) -> None:
        for ear in (self._control, *self._ears):
            ear.close()


def _is_trace(message: bytes) -> bool:
    try:
        return read_header(message).schema_id == _TRACE_SCHEMA
    except CodecError:
        return False
