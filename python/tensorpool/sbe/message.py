"""The base class of all messages, the table of message classes, and the decoding of any message.

Any thread may use them: messages are plain values, and the table of compiled codecs only grows. Class
decorators fill the table of classes at import. The tables by number come from the schema files, so they are
built when a message is first decoded.

`decode` finds the class by schema, template and block length. The order matters, because two revisions may
differ only in their block length. Schema id and template come first, then a block length that exactly matches
a known revision. Only then SBE's rule applies, to the specified revision: a longer block has a tail to skip,
a shorter block is malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast, dataclass_transform

from ..errors import CodecError
from .codec import Codec, compile_codec
from .codec_errors import short_block, truncated
from .layout import HEADER_BYTES, MessageLayout, schema

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CLASSES: dict[tuple[str, str], type[Message]] = {}
"""(schema name, message name) -> class. The specified revision of a message precedes a later revision."""

_NAMES: dict[type[Message], tuple[str, str]] = {}
_HEADER: Final = struct.Struct("<HHHH")
_TEMPLATE_ID_OFFSET: Final = 2
_SCHEMA_ID_OFFSET: Final = 4
_VERSION_OFFSET: Final = 6
_T = TypeVar("_T")
_M = TypeVar("_M", bound="Message")


def register(schema_name: str, message_name: str, kind: type[Message]) -> None:
    """Adds a class to the tables."""
    CLASSES[schema_name, message_name] = kind
    _NAMES[kind] = (schema_name, message_name)


def layout_of(kind: type[Message]) -> MessageLayout:
    """The layout of a message class."""
    schema_name, message_name = _NAMES[kind]
    return schema(schema_name).messages[message_name]


def class_by_block(schema_id: int, template_id: int, block_length: int) -> type[Message] | None:
    """The class whose block has exactly this length; None if there is none."""
    return _by_block().get((schema_id, template_id, block_length))


def class_by_template(schema_id: int, template_id: int) -> type[Message] | None:
    """The class of the specified revision, for any block length; None for an unknown template."""
    return _by_template().get((schema_id, template_id))


@cache
def _by_block() -> dict[tuple[int, int, int], type[Message]]:
    return {
        (layout.schema_id, layout.template_id, layout.block_length): kind
        for kind, layout in ((kind, layout_of(kind)) for kind in CLASSES.values())
        if layout.has_header
    }


@cache
def _by_template() -> dict[tuple[int, int], type[Message]]:
    classes: dict[tuple[int, int], type[Message]] = {}
    for (schema_id, template_id, _), kind in _by_block().items():
        classes.setdefault((schema_id, template_id), kind)
    return classes


@cache
def known_schema_ids() -> frozenset[int]:
    """The ids of all schemas with messages."""
    return frozenset(schema_id for schema_id, _ in _by_template())


class MessageHeader(NamedTuple):
    """The 8 bytes before every message on a stream."""

    block_length: int
    template_id: int
    schema_id: int
    version: int


class Message:
    """Base class of all messages. Fields are keyword arguments; each schema has a module of classes."""

    __slots__ = ()

    @classmethod
    def layout(cls) -> MessageLayout:
        """The layout of the message in its schema file."""
        return layout_of(cls)

    def encode(self) -> bytes:
        """The whole message, with its message header if it has one."""
        return _CODECS[type(self)].encode(self)

    def encode_into(self, buffer: WriteableBuffer, offset: int = 0) -> int:
        """Writes the message into `buffer` at `offset`. Returns the number of bytes."""
        encoded = self.encode()
        with memoryview(buffer) as given, given.cast("B") as view:
            if offset < 0 or len(view) - offset < len(encoded):
                raise CodecError(
                    f"{len(encoded)} bytes do not fit into a buffer of {len(view)}",
                    message_name=self.layout().name,
                    offset=offset,
                )
            view[offset : offset + len(encoded)] = encoded
        return len(encoded)

    @classmethod
    def decode(cls, buffer: ReadableBuffer) -> Self:
        """Decodes this message from the start of `buffer`; bytes after it are ignored."""
        return cast(Self, over_bytes(buffer, cls._decode)[0])

    @classmethod
    def decode_prefix(cls, buffer: ReadableBuffer) -> tuple[Self, int]:
        """As `decode`; also returns the length of the message."""
        return over_bytes(buffer, cls._decode)

    @classmethod
    def _decode(cls, buf: Any) -> tuple[Any, int]:
        codec = _CODECS[cls]
        layout = codec.layout
        if not layout.has_header:
            return codec.decode(buf, 0, len(buf), layout.block_length)
        header = header_of(buf, layout.name)
        if header.schema_id != layout.schema_id:
            raise _mismatch(layout, "schema_id", _SCHEMA_ID_OFFSET, header.schema_id, layout.schema_id)
        if header.template_id != layout.template_id:
            raise _mismatch(
                layout, "template_id", _TEMPLATE_ID_OFFSET, header.template_id, layout.template_id
            )
        if header.block_length != layout.block_length:
            other = class_by_block(header.schema_id, header.template_id, header.block_length)
            if other is not None:
                reason = f"block length {header.block_length} is that of {other.__name__}"
                raise CodecError(reason, message_name=layout.name, field="block_length", offset=0)
        return decode_after_header(header, cls, buf)


def decode_after_header(header: MessageHeader, kind: type[Message], buf: Any) -> tuple[Any, int]:
    """Decodes the block after a header whose schema and template are those of `kind`."""
    codec = _CODECS[kind]
    layout = codec.layout
    if header.version != layout.version:
        raise _mismatch(layout, "version", _VERSION_OFFSET, header.version, layout.version)
    if header.block_length < layout.block_length:
        raise short_block(layout.name, "block_length", 0, header.block_length, layout.block_length)
    return codec.decode(buf, HEADER_BYTES, len(buf), header.block_length)


def header_of(buf: Any, message_name: str = "MessageHeader") -> MessageHeader:
    """The message header at the start of a buffer."""
    if len(buf) < HEADER_BYTES:
        raise truncated(message_name, "(header)", 0, HEADER_BYTES, len(buf))
    return MessageHeader._make(_HEADER.unpack_from(buf, 0))


def over_bytes(buffer: ReadableBuffer, read: Callable[[Any], _T]) -> _T:
    """Calls `read` with a byte-indexed view of the buffer, and releases the view afterwards.

    An unreleased view would prevent the closing of a memory map.
    """
    if type(buffer) is bytes:
        return read(buffer)
    with memoryview(buffer) as given, given.cast("B") as view:
        return read(view)


def _mismatch(layout: MessageLayout, field: str, offset: int, actual: int, expected: int) -> CodecError:
    reason = f"{field.replace('_', ' ')} is {actual}, expected {expected}"
    return CodecError(reason, message_name=layout.name, field=field, offset=offset)


class _Codecs(dict[type[Message], Codec]):
    """Codecs by class, compiled at first use. If two threads compile the same codec, either is valid."""

    def __missing__(self, kind: type[Message]) -> Codec:
        codec = self[kind] = compile_codec(kind, layout_of(kind))
        return codec


_CODECS = _Codecs()


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclass_field,))
def entry(kind: type[_T]) -> type[_T]:
    """Class decorator for the entries of a group."""
    return dataclass(slots=True, kw_only=True)(kind)


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclass_field,))
def message(schema: str, name: str | None = None) -> Callable[[type[_M]], type[_M]]:
    """Class decorator for a message of `schemas/<schema>.xml`.

    `name` is the message's name in the schema, where the class has another name.
    """

    def decorate(kind: type[_M]) -> type[_M]:
        message_class = dataclass(slots=True, kw_only=True)(kind)
        register(schema, name or kind.__name__, message_class)
        return message_class

    return decorate


def decode(buffer: ReadableBuffer) -> Message:
    """Decodes any message that has a message header; bytes after it are ignored."""
    return over_bytes(buffer, _decode)[0]


def decode_prefix(buffer: ReadableBuffer) -> tuple[Message, int]:
    """As `decode`; also returns the length of the message."""
    return over_bytes(buffer, _decode)


def read_header(buffer: ReadableBuffer) -> MessageHeader:
    """The message header alone, to distinguish a message of another protocol from a malformed one."""
    return over_bytes(buffer, header_of)


def read_correlation_id(buffer: ReadableBuffer) -> int | None:
    """The correlation id of a message that may be malformed or of another version.

    With it, a server can respond to a request that it cannot decode. None for a message without this field,
    or with too few bytes.
    """
    return over_bytes(buffer, _read_correlation_id)


def _decode(buf: Any) -> tuple[Message, int]:
    header = header_of(buf)
    kind = class_by_block(header.schema_id, header.template_id, header.block_length)
    if kind is None:
        kind = class_by_template(header.schema_id, header.template_id)
        if kind is None:
            raise _unknown(header)
    return decode_after_header(header, kind, buf)


def _unknown(header: MessageHeader) -> CodecError:
    if header.schema_id not in known_schema_ids():
        return CodecError(
            f"unknown schema id {header.schema_id}", message_name="MessageHeader", field="schema_id", offset=4
        )
    return CodecError(
        f"schema {header.schema_id} has no message with template id {header.template_id}",
        message_name="MessageHeader",
        field="template_id",
        offset=2,
    )


def _read_correlation_id(buf: Any) -> int | None:
    if len(buf) < HEADER_BYTES:
        return None
    header = header_of(buf)
    kind = class_by_template(header.schema_id, header.template_id)
    if kind is None:
        return None
    for field in kind.layout().encoded_fields:
        if field.name == "correlationId":
            end = field.offset + field.size
            if header.block_length >= end and len(buf) >= HEADER_BYTES + end:
                return int(struct.unpack_from("<q", buf, HEADER_BYTES + field.offset)[0])
    return None
