"""From bytes to what the picture understands. Pure.

A thousand streams say nearly the same every second: reports are read by their offsets, and what was said
before word for word is not decoded again. Whatever comes, nothing is raised.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

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
    Mode,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from .events import AnnouncedAgain, ConsumerReport, ProducerReport, Unheard

_HEADER: Final = struct.Struct("<HHHH")
_TWO_IDS: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<IIQQ")
_CONSUMER: Final = struct.Struct("<IIQQQQB")
_NULL: Final = (1 << 64) - 1
_MAX_BYTES: Final = 64 << 10
_MOST_REMEMBERED_BYTES: Final = 64 << 20
_MALFORMED: Final = Unheard("malformed")
_LARGE: Final = Unheard("large")


class _Known(NamedTuple):
    wire: int
    service: int
    announce: int
    announce_time_at: int
    announce_epoch_at: int
    said_again: frozenset[tuple[int, int]]
    """Schema and template of what is remembered word for word."""
    wanted: frozenset[tuple[int, int]]
    qos_producer: tuple[int, int]
    qos_consumer: tuple[int, int]
    event: tuple[int, int]


def _key(kind: type[Message]) -> tuple[int, int]:
    layout = kind.layout()
    return layout.schema_id, layout.template_id


@cache
def _known() -> _Known:
    announce = ShmPoolAnnounce.layout()

    def at(layout: MessageLayout, name: str) -> int:
        return HEADER_BYTES + next(one.offset for one in layout.encoded_fields if one.name == name)

    again = (DataSourceAnnounce, DataSourceMeta, ConsumerHello, ConsumerConfig)
    return _Known(
        wire=announce.schema_id,
        service=EventMessage.layout().schema_id,
        announce=announce.template_id,
        announce_time_at=at(announce, "announceTimestampNs"),
        announce_epoch_at=at(announce, "epoch"),
        said_again=frozenset(map(_key, again)),
        wanted=frozenset(map(_key, (ShmLeaseRevoked, ShmDriverShutdown, *again))),
        qos_producer=_key(QosProducer),
        qos_consumer=_key(QosConsumer),
        event=_key(EventMessage),
    )


class Reader:
    """Remembers what was said last, so that it need not be read again."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int, int], bytes] = {}
        self._announces: dict[int, tuple[bytes, AnnouncedAgain]] = {}
        self._bytes = 0

    def read(self, message: bytes) -> object | None:
        """What it says; None for what is for others, or was said before and changes nothing."""
        if len(message) < 16:
            return _MALFORMED
        block, template, schema, version = _HEADER.unpack_from(message)
        known = _known()
        kind = (schema, template)
        if kind == known.qos_consumer:
            return _consumer_report(message, block, version)
        if kind == known.qos_producer:
            return _producer_report(message, block, version)
        if len(message) > _MAX_BYTES:
            return _LARGE
        if schema == known.wire and template == known.announce:
            return self._announce(message)
        if kind not in known.wanted:
            return None
        if kind in known.said_again:
            first, second = _TWO_IDS.unpack_from(message, HEADER_BYTES)
            key = (template, first, second)
            if self._last.get(key) == message:
                return None
            self._remember(message)
            self._last[key] = message
        return _decoded(message)

    def forget(self) -> None:
        """Everything is read anew: the picture has forgotten some of it."""
        self._last.clear()
        self._announces.clear()
        self._bytes = 0

    def _remember(self, message: bytes) -> None:
        """Room for one more: what strangers make up does not pile up here."""
        self._bytes += len(message)
        if self._bytes > _MOST_REMEMBERED_BYTES:
            self.forget()
            self._bytes = len(message)

    def _announce(self, message: bytes) -> object | None:
        known = _known()
        time_at = known.announce_time_at
        if len(message) < time_at + 8:
            return _MALFORMED
        (stream_id,) = _LENGTH.unpack_from(message, HEADER_BYTES)
        same = message[:time_at] + message[time_at + 8 :]
        before = self._announces.get(stream_id)
        if before is not None and before[0] == same:
            return before[1]
        found = _decoded(message)
        if isinstance(found, ShmPoolAnnounce):
            self._remember(message)
            self._announces[stream_id] = (same, AnnouncedAgain(stream_id, found.epoch, found))
        return found


def _decoded(message: bytes) -> object:
    try:
        return decode(message)
    except CodecError:
        return _MALFORMED


def _producer_report(message: bytes, block: int, version: int) -> object:
    if len(message) < HEADER_BYTES + block or block < _PRODUCER.size or version < 1:
        return _MALFORMED
    stream_id, producer_id, epoch, current = _PRODUCER.unpack_from(message, HEADER_BYTES)
    return ProducerReport(stream_id, producer_id, epoch, None if current == _NULL else current)


def _consumer_report(message: bytes, block: int, version: int) -> object:
    if len(message) < HEADER_BYTES + block or block < _CONSUMER.size or version < 1:
        return _MALFORMED
    stream, consumer, epoch, last, gap, late, mode = _CONSUMER.unpack_from(message, HEADER_BYTES)
    if mode not in (Mode.STREAM, Mode.RATE_LIMITED):
        return _MALFORMED
    is_limited = mode == Mode.RATE_LIMITED
    return ConsumerReport(stream, consumer, epoch, None if last == _NULL else last, gap, late, is_limited)


class Word(NamedTuple):
    """An event on the status stream, as far as it is looked at before anybody knows whether it matters."""

    correlation_id: int
    tag: str
    key: str
    value: str


def read_word(message: bytes) -> Word | None:
    """None for what is no event with a text. Faster than the codec, which reads everything."""
    size = len(message)
    if size < _EVENT.size or size > _MAX_WORD_BYTES:
        return None
    block, template, schema, _, _, correlation_id = _EVENT.unpack_from(message)
    if (schema, template) != _known().event or block < _EVENT.size - HEADER_BYTES:
        return None
    try:
        tag, at = _text(message, HEADER_BYTES + block)
        key, at = _text(message, at)
        value, _ = _text(message, at)
    except (struct.error, ValueError):
        return None
    return Word(correlation_id, tag, key, value)


def _text(message: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(message, at)
    end = at + 4 + length
    if end > len(message):
        raise ValueError("cut off")
    return message[at + 4 : end].decode(), end


_EVENT: Final = struct.Struct("<HHHHQq")
_MAX_WORD_BYTES: Final = 1 << 20
