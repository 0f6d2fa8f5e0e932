"""Events of the system model, and the readers that make them from the bytes of messages.

Pure. Messages come from any process: `parse_*` and `read_*` functions return None for an invalid message or
raise ValueError where they say so; the readers never raise.

A thousand streams repeat nearly the same messages every second. QoS and status reports are decoded natively,
and a message that repeats the last one of its sender is not decoded again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from .. import _native
from ..errors import CodecError
from ..sbe import decode
from ..sbe.driver import ShmDriverShutdown, ShmLeaseRevoked
from ..sbe.layout import HEADER_BYTES, MessageLayout
from ..sbe.message import Message
from ..sbe.service import EventMessage
from ..sbe.wire import (
    ConsumerConfig,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from ..text import JsonMapping
from .snapshot import DriverView, LatencyView, LeaseView, MappingView, RecordedView, RecorderView

_MAX_REASONS: Final = 64
_MAX_ROWS: Final = 4096
_MAX_TEXT: Final = 256
_UINT64_LIMIT: Final = 1 << 64
_MAX_NUMBER: Final = 1e18
_MAX_MESSAGE_BYTES: Final = 64 << 10
"""A larger message is not decoded: the memory of a model is bounded by the messages that it accepts."""
_MAX_EVENT_BYTES: Final = 1 << 20
_MAX_CACHED_BYTES: Final = 64 << 20
_MAX_CACHED_MESSAGES: Final = 250_000
_MAX_ANNOUNCE_BYTES: Final = 16 << 20
_PARSE_JSON: Final = json.JSONDecoder().raw_decode
_MESSAGE_HEADER: Final = struct.Struct("<HHHH")
"""Block length, template id, schema id, version."""
_UINT32: Final = struct.Struct("<I")
_EVENT_HEAD: Final = struct.Struct("<HHHHQq")
"""Message header, timestamp and correlation id of an EventMessage."""
_MIN_MESSAGE_BYTES: Final = HEADER_BYTES + 8
"""Header and the two ids that every message of interest starts with."""


# --- events from endpoints


class RepeatedAnnounce(NamedTuple):
    """An announce that differs from the last one in its time only."""

    stream_id: int
    epoch: int
    announce: ShmPoolAnnounce
    """The first of these announces, for an observer that has dropped it."""


class RepeatedMetadata(NamedTuple):
    """A DataSourceAnnounce or DataSourceMeta that is equal to the last one of its sender."""

    stream_id: int
    by_driver: bool
    """Whether its metadata version is 0, which only drivers use."""
    is_meta: bool
    message: bytes
    """The message itself, for an observer that has dropped it."""
    is_empty: bool = False
    """Whether it is of a producer without metadata: then it says nothing about the stream."""

    def decode(self) -> DataSourceAnnounce | DataSourceMeta:
        """The message, which was decoded without error before."""
        return (
            DataSourceMeta.decode(self.message) if self.is_meta else DataSourceAnnounce.decode(self.message)
        )


class ProducerQos(NamedTuple):
    """`QosProducer` as the native reader makes it."""

    stream_id: int
    producer_id: int
    epoch: int
    current_seq: int | None
    watermark: int | None = None


class ConsumerQos(NamedTuple):
    """`QosConsumer` as the native reader makes it."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq: int | None
    """None for 0 too: that is also sent before the first frame. A status report distinguishes the two."""
    drops_gap: int
    drops_late: int
    is_limited: bool


class Activity(NamedTuple):
    """The activity timestamp of a stream's header ring, on this host's monotonic clock (wire §15.14)."""

    stream_id: int
    epoch: int
    activity_ns: int


class ProducerReport(NamedTuple):
    """A producer's ledger, as its status report has it."""

    stream_id: int
    producer_id: int
    pid: int
    epoch: int
    next_seq: int
    committed: int
    published: int
    unpublished: Mapping[str, int]
    deferred: int
    dropped: Mapping[str, int]
    holes: int
    nbytes: int
    sources: tuple[int, ...]
    is_final: bool


class ConsumerReport(NamedTuple):
    """A consumer's ledger, as its status report has it."""

    stream_id: int
    consumer_id: int
    pid: int
    epoch: int | None
    first_seq: int | None
    last_seq: int | None
    span: int
    received: int
    dropped: Mapping[str, int]
    outside: Mapping[str, int]
    polls: int
    is_final: bool
    label: str = ""
    """What its user calls it."""


class LatencyStatus(NamedTuple):
    """The latency of a consumer's frames in the last period."""

    stream_id: int
    consumer_id: int
    frames: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    since: str

    def view(self) -> LatencyView:
        """The latency as a snapshot shows it."""
        return LatencyView(self.frames, self.p50_ns, self.p99_ns, self.max_ns, self.since)


# --- events from services and from the listener itself


@dataclass(frozen=True, slots=True)
class ServiceAlive:
    """A service answered a ping."""

    tag: str
    name: str
    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The status of a driver."""

    driver: DriverView


@dataclass(frozen=True, slots=True)
class DriverLeases:
    """All leases of one driver."""

    tag: str
    leases: tuple[LeaseView, ...]


@dataclass(frozen=True, slots=True)
class RecorderReport:
    """The status of a recorder, without its ledger."""

    recorder: RecorderView


@dataclass(frozen=True, slots=True)
class RecorderLedgerReport:
    """A recorder's ledger: one row for each stream and epoch."""

    tag: str
    rows: tuple[RecordedView, ...]


@dataclass(frozen=True, slots=True)
class BridgeReport:
    """All mappings of one end of a bridge, without rates."""

    tag: str
    pid: int
    mappings: tuple[MappingView, ...]


@dataclass(frozen=True, slots=True)
class ListenerPaused:
    """The listener did not poll for this long. Messages of that time may still be unread, so that no endpoint
    may be taken for stale."""

    for_ns: int


@dataclass(frozen=True, slots=True)
class Notice:
    """An entry for the list of notices of a snapshot."""

    kind: str
    stream_id: int | None
    text: str


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """One or more messages that could not be used."""

    reason: str
    count: int = field(default=1)


_MALFORMED: Final = RejectedMessage("malformed")
_LARGE: Final = RejectedMessage("large")


# --- JSON


def parse_json(value: object) -> Any:
    """The parsed text; None for a value that is not JSON text."""
    if not isinstance(value, str):
        return None
    try:
        parsed, end = _PARSE_JSON(value)
        # Most texts have no white space around them; other texts take the slower way.
        return parsed if end == len(value) else json.loads(value)
    except (ValueError, RecursionError):
        return None


def read_unsigned(value: object) -> int:
    """A count or an id, which may be text if it has 64 bits. Raises ValueError."""
    if type(value) is str and len(value) <= 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if type(value) is int and 0 <= value < _UINT64_LIMIT:
        return value
    raise ValueError("not an unsigned integer")


def read_counts(value: object) -> dict[str, int]:
    """Counts by reason, without zeros. Raises ValueError, also for more reasons than exist."""
    if type(value) is not dict or len(value) > _MAX_REASONS:
        raise ValueError("not counts by reason")
    return {read_text(reason): read_unsigned(n) for reason, n in value.items() if n} if value else {}


def read_text(value: object) -> str:
    """A text, cut to a bounded length. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:_MAX_TEXT]


def read_number(value: object) -> float:
    """A finite number. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_NUMBER:
        raise ValueError("not a number")
    return float(value)


def read_object(value: object) -> JsonMapping:
    """A JSON object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def read_integer(value: object) -> int:
    """A whole number of at most 64 bits; negative ones too. Raises ValueError."""
    if type(value) is not int or abs(value) >= _UINT64_LIMIT:
        raise ValueError("not a whole number")
    return value


def read_ids(value: object) -> tuple[int, ...]:
    """A list of ids. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("not a list of ids")
    return tuple(map(read_unsigned, value))


def read_rows(value: object) -> tuple[JsonMapping, ...]:
    """A list of JSON objects, cut to a bounded length. Raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError("not a list of objects")
    return tuple(value[:_MAX_ROWS])


# --- messages of the announce, metadata, QoS and control streams

_MessageId = tuple[int, int]
"""Schema id and template id."""


class _MessageIds(NamedTuple):
    cached: frozenset[_MessageId]
    """Messages whose repetition is recognised by their bytes; of announces, without their time."""
    decoded: frozenset[_MessageId]
    qos: frozenset[_MessageId]
    event: _MessageId
    announce: _MessageId
    metadata: frozenset[_MessageId]
    version_at: dict[_MessageId, int]
    """Offset of the metadata version in metadata messages."""


def _message_id(layout: MessageLayout) -> _MessageId:
    return layout.schema_id, layout.template_id


@cache
def _message_ids() -> _MessageIds:
    """Read from the schemas when first needed: every start of a command imports this module."""

    def ids(*kinds: type[Message]) -> frozenset[_MessageId]:
        return frozenset(_message_id(kind.layout()) for kind in kinds)

    def version_at(layout: MessageLayout) -> int:
        return HEADER_BYTES + next(
            encoded.offset for encoded in layout.encoded_fields if encoded.name == "metaVersion"
        )

    repeated = (ShmPoolAnnounce, DataSourceAnnounce, DataSourceMeta, ConsumerHello, ConsumerConfig)
    metadata = (DataSourceAnnounce.layout(), DataSourceMeta.layout())
    return _MessageIds(
        cached=ids(*repeated),
        decoded=ids(ShmLeaseRevoked, ShmDriverShutdown, *repeated),
        qos=ids(QosProducer, QosConsumer),
        event=_message_id(EventMessage.layout()),
        announce=_message_id(ShmPoolAnnounce.layout()),
        metadata=frozenset(map(_message_id, metadata)),
        version_at={_message_id(layout): version_at(layout) for layout in metadata},
    )


class MessageReader:
    """Makes events from messages. It caches the last message of each sender: a repeated one is not decoded.

    The cache holds at most `max_bytes` of messages, and at most `max_messages` were added since it was
    cleared. Beyond either limit it is cleared, and the next repetitions are decoded once more.
    """

    def __init__(self, max_bytes: int = _MAX_CACHED_BYTES, max_messages: int = _MAX_CACHED_MESSAGES) -> None:
        self._native = _native.ReportReader(
            (ConsumerQos, ProducerQos), (ConsumerReport, ProducerReport, LatencyStatus), max_bytes
        )
        self._max_messages = max_messages
        self.cached_messages = 0
        """Messages that were added to the cache since it was cleared."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of the messages in the cache."""
        return self._native.cached_bytes

    def read_wire(self, messages: list[bytes]) -> Iterator[object]:
        """The events of messages of the wire and driver schemas. A message of another kind, and a repeated
        hello or config, is no event."""
        for item in self._native.read_wire(messages):
            if type(item) is not bytes:
                yield item
            elif (event := self._read(item)) is not None:
                yield event

    def read_status(self, messages: list[bytes]) -> list[object]:
        """The events of the status reports on the status stream; other messages are returned as bytes."""
        return [_MALFORMED if event is None else event for event in self._native.read_status(messages)]

    def clear(self) -> None:
        """Empties the cache: every message is decoded once more."""
        self._native.clear()
        self.cached_messages = 0

    def _read(self, message: bytes) -> object | None:
        if len(message) < _MIN_MESSAGE_BYTES:
            return _MALFORMED
        _, template_id, schema_id, _ = _MESSAGE_HEADER.unpack_from(message)
        ids = _message_ids()
        message_id = (schema_id, template_id)
        if message_id in ids.qos:
            # The native reader has read all valid QoS reports.
            return _MALFORMED
        if len(message) > _MAX_MESSAGE_BYTES:
            return _LARGE
        if message_id not in ids.decoded:
            return None
        try:
            decoded = decode(message)
        except CodecError:
            return _MALFORMED
        if message_id in ids.cached:
            self._cache(message, _repetition(message, decoded))
        return decoded

    def _cache(self, message: bytes, repetition: object | None) -> None:
        if self.cached_messages >= self._max_messages:
            self.clear()
        self._native.cache(message, repetition)
        self.cached_messages += 1


def _repetition(message: bytes, decoded: Message) -> RepeatedAnnounce | RepeatedMetadata | None:
    """The event of every repetition of a message; None for a message whose repetition is no event."""
    match decoded:
        case ShmPoolAnnounce(stream_id=stream_id, epoch=epoch):
            return RepeatedAnnounce(stream_id, epoch, decoded)
        case DataSourceAnnounce(stream_id=stream_id, meta_version=version):
            return RepeatedMetadata(stream_id, version == 0, False, message, is_undescribed(decoded))
        case DataSourceMeta(stream_id=stream_id, meta_version=version):
            return RepeatedMetadata(stream_id, version == 0, True, message)
        case _:
            return None


def read_stream_id(message: bytes) -> int | None:
    """The stream of an announce or of metadata; None for every other message."""
    if len(message) < HEADER_BYTES + _UINT32.size:
        return None
    message_id = _id_of(message)
    ids = _message_ids()
    if message_id != ids.announce and message_id not in ids.metadata:
        return None
    stream_id: int = _UINT32.unpack_from(message, HEADER_BYTES)[0]
    return stream_id


def is_driver_metadata(message: bytes) -> bool:
    """Whether it is metadata of version 0, which drivers publish about their streams."""
    at = _message_ids().version_at.get(_id_of(message))
    return at is not None and len(message) >= at + _UINT32.size and not _UINT32.unpack_from(message, at)[0]


def is_undescribed(source: DataSourceAnnounce) -> bool:
    """Whether it is of a producer without metadata (or of a driver that adds only attributes)."""
    return not (source.meta_version or source.name or source.summary)


def _id_of(message: bytes) -> _MessageId:
    _, template_id, schema_id, _ = _MESSAGE_HEADER.unpack_from(message)
    return schema_id, template_id


class AnnounceReader:
    """Makes events from the announces and metadata of one driver's streams (discovery §6.4).

    `accepts` decides by stream id which messages are this driver's.
    """

    def __init__(self, accepts: Callable[[int], bool] = lambda stream_id: True) -> None:
        self._accepts = accepts
        # A producer and its driver publish metadata about one stream under the same ids: each sender needs a
        # cache of its own, or the two would replace each other's messages.
        self._readers = tuple(MessageReader(_MAX_ANNOUNCE_BYTES // 2) for _ in range(2))

    def read(self, message: bytes) -> object | None:
        """The event of a message; None for a message about no stream of this driver. Never raises."""
        stream_id = read_stream_id(message)
        if stream_id is None or not self._accepts(stream_id):
            return None
        reader = self._readers[is_driver_metadata(message)]
        return next(reader.read_wire([message]), _MALFORMED)

    @property
    def cached_messages(self) -> int:
        """Messages that were added to the caches since they were cleared."""
        return sum(reader.cached_messages for reader in self._readers)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the messages in the caches."""
        return sum(reader.cached_bytes for reader in self._readers)

    def clear(self) -> None:
        """Empties the caches."""
        for reader in self._readers:
            reader.clear()


# --- messages of the status stream


class StatusEvent(NamedTuple):
    """An EventMessage with a text value, as far as the listener needs it."""

    correlation_id: int
    tag: str
    key: str
    value: str


def read_status_event(message: bytes) -> StatusEvent | None:
    """The event; None for any other message. Faster than the codec, which decodes all fields."""
    size = len(message)
    if size < _EVENT_HEAD.size or size > _MAX_EVENT_BYTES:
        return None
    block_length, template_id, schema_id, _, _, correlation_id = _EVENT_HEAD.unpack_from(message)
    is_event = (schema_id, template_id) == _message_ids().event
    if not is_event or block_length < _EVENT_HEAD.size - HEADER_BYTES:
        return None
    try:
        tag, end = _read_var_text(message, HEADER_BYTES + block_length)
        key, end = _read_var_text(message, end)
        value, _ = _read_var_text(message, end)
    except (struct.error, ValueError):
        return None
    return StatusEvent(correlation_id, tag, key, value)


def _read_var_text(message: bytes, start: int) -> tuple[str, int]:
    """A text with its length before it, and the offset behind it."""
    (length,) = _UINT32.unpack_from(message, start)
    first = start + _UINT32.size
    end = first + length
    if end > len(message):
        raise ValueError("truncated")
    return message[first:end].decode(), end
