"""From bytes to what the picture understands. Pure.

A thousand streams say nearly the same every second: what comes that often is read natively, and what was
said before word for word is not decoded again. Whatever comes, nothing is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

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
from .events import (
    AnnouncedAgain,
    ConsumerReport,
    ConsumerTold,
    LatencyTold,
    ProducerReport,
    ProducerTold,
    Unheard,
)

_KIND: Final = struct.Struct("<HH")
_LENGTH: Final = struct.Struct("<I")
_MAX_BYTES: Final = 64 << 10
_MOST_REMEMBERED_BYTES: Final = 64 << 20
_MALFORMED: Final = Unheard("malformed")
_LARGE: Final = Unheard("large")


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


class Reader:
    """Remembers what was said last, so that it need not be read again."""

    def __init__(self, most_bytes: int = _MOST_REMEMBERED_BYTES) -> None:
        self._hearing = _native.Hearing(
            (ConsumerReport, ProducerReport), (ConsumerTold, ProducerTold, LatencyTold), most_bytes
        )

    def heard(self, messages: list[bytes]) -> Iterator[object]:
        """What they say, but for what is for others, or was said before and changes nothing."""
        for one in self._hearing.heard(messages):
            if type(one) is not bytes:
                yield one
            elif (event := self._read(one)) is not None:
                yield event

    def told(self, messages: list[bytes]) -> list[object]:
        """Accounts and latencies on the status stream; words of other forms come back as they are."""
        return self._hearing.told(messages)

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
                again = AnnouncedAgain(found.stream_id, found.epoch, found)
            self._hearing.remember(message, again)
        return found


def _decoded(message: bytes) -> object:
    try:
        return decode(message)
    except CodecError:
        return _MALFORMED


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
