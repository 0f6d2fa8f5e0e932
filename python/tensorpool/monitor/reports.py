"""What the picture is told, beside the messages of the wire: those of other shapes, read and checked.

All of it comes from outside. `read_*` give None for what is not as it should be, and never raise.

From bytes to what the picture understands. Pure.

A thousand streams say nearly the same every second: what comes that often is read natively, and what was
said before word for word is not decoded again. Whatever comes, nothing is raised.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from .. import _native
from ..errors import CodecError
from ..sbe import decode
from ..sbe.driver import ShmDriverShutdown, ShmLeaseRevoked
from ..sbe.layout import HEADER_BYTES
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
from .snapshot import LatencyView

_MOST_REASONS: Final = 64
_MOST_ROWS: Final = 4096
_LONGEST: Final = 256
_LIMIT: Final = 1 << 64
_DECODE: Final = json.JSONDecoder().raw_decode


class RepeatedAnnounce(NamedTuple):
    """An announce that says what the last one said."""

    stream_id: int
    epoch: int
    announce: ShmPoolAnnounce
    """For whoever has forgotten it."""


class ProducerQos(NamedTuple):
    """`QosProducer`, as it is heard a thousand times a second."""

    stream_id: int
    producer_id: int
    epoch: int
    current_seq: int | None


class ConsumerQos(NamedTuple):
    """`QosConsumer`, likewise."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq: int | None
    drops_gap: int
    drops_late: int
    is_limited: bool


class Activity(NamedTuple):
    """The sign of life in a stream's memory, on this machine's monotonic clock (wire §15.14)."""

    stream_id: int
    epoch: int
    activity_ns: int


class ProducerStatus(NamedTuple):
    """A producer's account, as it tells on the status stream."""

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


class ConsumerStatus(NamedTuple):
    """A consumer's account, as it tells on the status stream."""

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
    looks: int
    is_final: bool


class LatencyStatus(NamedTuple):
    """How long frames took to a consumer in the last period."""

    stream_id: int
    consumer_id: int
    frames: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    since: str

    def view(self) -> LatencyView:
        return LatencyView(self.frames, self.p50_ns, self.p99_ns, self.max_ns, self.since)


@dataclass(frozen=True, slots=True)
class ServiceAlive:
    """Somebody answered a ping, or spoke."""

    tag: str
    name: str
    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class DriverStatus:
    tag: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DriverLeases:
    """All leases of one driver."""

    tag: str
    leases: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RecorderStatus:
    tag: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecorderLedger:
    """A recorder's ledger, row by row."""

    tag: str
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class BridgeStatus:
    tag: str
    pid: int
    mappings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ListenerPaused:
    """Nobody listened for so long: what was said meanwhile is still to be read, and nobody is to blame."""

    for_ns: int


@dataclass(frozen=True, slots=True)
class Notice:
    """For the list of what happened."""

    kind: str
    stream_id: int | None
    text: str


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that could not be used."""

    reason: str
    count: int = field(default=1)


# --- from JSON


def read_json(value: object) -> Any:
    """None for what is no JSON."""
    if not isinstance(value, str):
        return None
    try:
        found, end = _DECODE(value)
        # Most are without spaces around them: others are read the longer way.
        return found if end == len(value) else json.loads(value)
    except (ValueError, RecursionError):
        return None


def whole(value: object) -> int:
    """A count or an id; 64-bit ones may come as digits."""
    if type(value) is str and len(value) <= 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if type(value) is int and 0 <= value < _LIMIT:
        return value
    raise ValueError("not a whole number")


def counts(value: object) -> dict[str, int]:
    """Numbers by reason; no more reasons than anybody has."""
    if type(value) is not dict or len(value) > _MOST_REASONS:
        raise ValueError("not counts")
    return {text(name): whole(n) for name, n in value.items() if n} if value else {}


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:_LONGEST]


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise ValueError("not a number")
    return float(value)


def rows(value: object) -> tuple[dict[str, Any], ...] | None:
    """A list of objects, no longer than anybody needs."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    return tuple(value[:_MOST_ROWS])


_KIND: Final = struct.Struct("<HH")
_LENGTH: Final = struct.Struct("<I")
_MAX_BYTES: Final = 64 << 10
_MOST_REMEMBERED_BYTES: Final = 64 << 20
_MALFORMED: Final = RejectedMessage("malformed")
_LARGE: Final = RejectedMessage("large")


class _Known(NamedTuple):
    """By schema and template."""

    said_again: frozenset[tuple[int, int]]
    """What is remembered word for word; announces but for their time."""
    wanted: frozenset[tuple[int, int]]
    reports: frozenset[tuple[int, int]]
    event: tuple[int, int]


def _key(kind: type[Message]) -> tuple[int, int]:
    layout = kind.layout()
    return layout.schema_id, layout.template_id


@cache
def _known() -> _Known:
    again = (ShmPoolAnnounce, DataSourceAnnounce, DataSourceMeta, ConsumerHello, ConsumerConfig)
    return _Known(
        said_again=frozenset(map(_key, again)),
        wanted=frozenset(map(_key, (ShmLeaseRevoked, ShmDriverShutdown, *again))),
        reports=frozenset(map(_key, (QosProducer, QosConsumer))),
        event=_key(EventMessage),
    )


class MessageReader:
    """Remembers what was said last, so that it need not be read again."""

    def __init__(self, most_bytes: int = _MOST_REMEMBERED_BYTES) -> None:
        self._hearing = _native.Hearing(
            (ConsumerQos, ProducerQos), (ConsumerStatus, ProducerStatus, LatencyStatus), most_bytes
        )

    def heard(self, messages: list[bytes]) -> Iterator[object]:
        """What they say, but for what is for others, or was said before and changes nothing."""
        for one in self._hearing.heard(messages):
            if type(one) is not bytes:
                yield one
            elif (event := self._read(one)) is not None:
                yield event

    def told(self, messages: list[bytes]) -> list[object]:
        """Events of the status reports on the status stream; other messages are returned unchanged."""
        return [_MALFORMED if event is None else event for event in self._hearing.told(messages)]

    def forget(self) -> None:
        """Everything is read anew: the picture has forgotten some of it."""
        self._hearing.forget()

    def _read(self, message: bytes) -> object | None:
        if len(message) < 16:
            return _MALFORMED
        template, schema = _KIND.unpack_from(message, 2)
        known = _known()
        kind = (schema, template)
        if kind in known.reports:
            # Those that are sound have been read.
            return _MALFORMED
        if len(message) > _MAX_BYTES:
            return _LARGE
        if kind not in known.wanted:
            return None
        found = _decoded(message)
        if kind in known.said_again and found is not _MALFORMED:
            again = None
            if isinstance(found, ShmPoolAnnounce):
                again = RepeatedAnnounce(found.stream_id, found.epoch, found)
            self._hearing.remember(message, again)
        return found


def _decoded(message: bytes) -> object:
    try:
        return decode(message)
    except CodecError:
        return _MALFORMED


class StatusEvent(NamedTuple):
    """An event on the status stream, as far as it is looked at before anybody knows whether it matters."""

    correlation_id: int
    tag: str
    key: str
    value: str


def read_status_event(message: bytes) -> StatusEvent | None:
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
    return StatusEvent(correlation_id, tag, key, value)


def _text(message: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(message, at)
    end = at + 4 + length
    if end > len(message):
        raise ValueError("cut off")
    return message[at + 4 : end].decode(), end


_EVENT: Final = struct.Struct("<HHHHQq")
_MAX_WORD_BYTES: Final = 1 << 20
