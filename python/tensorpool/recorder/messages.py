"""Messages about recorded streams: announces, metadata, QoS reports, trace links (wire §10).

`MessageObserver` takes them from the `monitor.SystemListener` of the agent's thread. `MessageFilter` decides
which of them become rows of the recording's tables and ignores repeated messages. Pure.

`ServiceEvents` has the events of the services' status stream: the record of accepted commands (service §6).
The conductor's thread receives them into a queue while the recorder is busy with frames. Status reports of
producers and consumers use the same stream, and are no part of the record. The agent's thread owns it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ..errors import CodecError
from ..monitor.listener import StreamKind
from ..monitor.reports import is_undescribed
from ..sbe import (
    STATUS_KEY,
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
from ..service import ALL_SERVICES, Event, EventKind
from ..service.events import LOST
from ..transport import Connection

K = TypeVar("K")
V = TypeVar("V")

OBSERVED_STREAMS: Final = frozenset(
    {StreamKind.ANNOUNCE, StreamKind.METADATA, StreamKind.QOS, StreamKind.CONTROL}
)
"""The kinds of streams whose messages are recorded; of the control stream, trace links only."""
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

    @property
    def remembered_streams(self) -> int:
        """The number of streams whose epoch is known."""
        return len(self._epochs)

    @property
    def remembered_messages(self) -> int:
        """The number of messages that would be recognised as repeated."""
        return sum(map(len, self._messages.values()))

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
                # A driver repeats its own, with version 0, beside the producer's.
                if not is_undescribed(decoded) and self._is_new(stream_id, ("source", version == 0), decoded):
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


class MessageObserver:
    """A raw observer of a `SystemListener`: keeps the rows of received messages until they are written."""

    def __init__(
        self,
        *,
        is_recorded: Callable[[int], bool],
        on_announce: Callable[[int], None] | None = None,
    ) -> None:
        """`is_recorded`: whether the stream with that id is recorded, at the time of receipt. `on_announce`
        gets the id of each announced stream before that."""
        self.rows: deque[MessageRow] = deque()
        """Rows in order of receipt. The agent removes each row when it is written."""
        self._is_recorded = is_recorded
        self._on_announce = on_announce
        self._filter = MessageFilter()
        self._trace_schema_id = TraceLinkSet.layout().schema_id

    def observe_message(self, kind: StreamKind, message: bytes, now_ns: int) -> None:
        """Adds the row of a message, if it becomes one."""
        # Most messages of the control stream are between clients and the driver: do not decode them.
        if kind is StreamKind.CONTROL and not self._is_trace(message):
            return
        row = self._filter.to_row(message)
        if row is None:
            return
        if row.is_announce and self._on_announce is not None:
            self._on_announce(row.stream_id)
        if self._is_recorded(row.stream_id):
            self.rows.append(row)

    def _is_trace(self, message: bytes) -> bool:
        try:
            return read_header(message).schema_id == self._trace_schema_id
        except CodecError:
            return False


_BATCH: Final = 1024


def lost_event(count: int) -> bytes:
    """The event that stands for events that are missing in the record."""
    return Event(ALL_SERVICES, LOST, count).encode()


class ServiceEvents:
    """The events of all services since it was opened, in order of receipt."""

    def __init__(self, connection: Connection) -> None:
        self._mailbox = connection.mailbox(connection.services.status_address, [])
        self._waiting: deque[tuple[bytes, EventKind]] = deque()
        self._lost = 0

    @property
    def is_ready(self) -> bool:
        """Whether every event that is published from now on is received."""
        return self._mailbox.is_ready

    def take(self) -> Iterator[tuple[bytes, EventKind]]:
        """Yields the received events, as messages with their kind; each is removed when the next is wanted.

        So an error of the caller costs no event: the next call begins with the same one.
        """
        self._receive()
        while self._waiting:
            yield self._waiting[0]
            self._waiting.popleft()

    def _receive(self) -> None:
        if self._waiting:
            return
        messages = self._mailbox.take(_BATCH)
        # The queue drops its oldest messages: what is missing was before these.
        lost = self._mailbox.counters().overflowed
        if lost != self._lost:
            self._waiting.append((lost_event(lost - self._lost), EventKind.LOST))
            self._lost = lost
        for message in messages:
            try:
                event = Event.decode(message)
            except CodecError:
                continue
            if event.key != STATUS_KEY:
                self._waiting.append((message, event.kind))

    def close(self) -> None:
        """Closes the subscription."""
        self._mailbox.close()
