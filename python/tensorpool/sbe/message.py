"""What every typed message can do: encode itself, and be decoded.

Owned by no thread: messages are plain values, and the table of compiled codecs only ever grows.

Which class stands for which message, filled by the class decorators when the modules load.

The tables by number come from the schema files, so they are built when a message is first decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast, dataclass_transform

from ..errors import CodecError
from .codec import Codec, compile_codec
from .codec_errors import short_block, truncated
from .layout import HEADER_BYTES, MessageLayout, schema

if TYPE_CHECKING:
    pass
    from _typeshed import ReadableBuffer, WriteableBuffer

CLASSES: dict[tuple[str, str], type[Message]] = {}
"""(schema name, message name) -> class, the documents' revision of a message before a later one."""

_NAMES: dict[type[Message], tuple[str, str]] = {}


def register(schema_name: str, message_name: str, kind: type[Message]) -> None:
    CLASSES[schema_name, message_name] = kind
    _NAMES[kind] = (schema_name, message_name)


def layout_of(kind: type[Message]) -> MessageLayout:
    schema_name, message_name = _NAMES[kind]
    return schema(schema_name).messages[message_name]


def class_by_block(schema_id: int, template_id: int, block_length: int) -> type[Message] | None:
    """The class whose block has exactly this length."""
    return _by_block().get((schema_id, template_id, block_length))


def class_by_template(schema_id: int, template_id: int) -> type[Message] | None:
    """The class of the documents' revision, whatever the block length."""
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
    found: dict[tuple[int, int], type[Message]] = {}
    for (schema_id, template_id, _), kind in _by_block().items():
        found.setdefault((schema_id, template_id), kind)
    return found


@cache
def known_schema_ids() -> frozenset[int]:
    return frozenset(schema_id for schema_id, _ in _by_template())


_HEADER = struct.Struct("<HHHH")
_T = TypeVar("_T")
_M = TypeVar("_M", bound="Message")


class MessageHeader(NamedTuple):
    """The 8 bytes in front of every message that travels."""

    block_length: int
    template_id: int
    schema_id: int
    version: int


class Message:
    """The root of the typed messages. Fields are keyword arguments; see the modules by protocol."""

    __slots__ = ()

    @classmethod
    def layout(cls) -> MessageLayout:
        """Where the fields lie, as the schema file says."""
        return layout_of(cls)

    def encode(self) -> bytes:
        """The whole message, with its message header if it has one."""
        return _CODECS[type(self)].encode(self)

    def encode_into(self, buffer: WriteableBuffer, offset: int = 0) -> int:
        """Write the message into `buffer` at `offset`; returns the number of bytes written."""
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
        """Read this kind of message from the start of `buffer`; bytes after it are left alone."""
        return cast(Self, over_bytes(buffer, cls._decode)[0])

    @classmethod
    def decode_prefix(cls, buffer: ReadableBuffer) -> tuple[Self, int]:
        """As `decode`; also says how many bytes the message took."""
        return over_bytes(buffer, cls._decode)

    @classmethod
    def _decode(cls, buf: Any) -> tuple[Any, int]:
        codec = _CODECS[cls]
        layout = codec.layout
        if not layout.has_header:
            return codec.decode(buf, 0, len(buf), layout.block_length)
        header = header_of(buf, layout.name)
        if header.schema_id != layout.schema_id:
            raise _wrong(layout, "schema_id", 4, header.schema_id, layout.schema_id)
        if header.template_id != layout.template_id:
            raise _wrong(layout, "template_id", 2, header.template_id, layout.template_id)
        if header.block_length != layout.block_length:
            other = class_by_block(header.schema_id, header.template_id, header.block_length)
            if other is not None:
                reason = f"block length {header.block_length} is that of {other.__name__}"
                raise CodecError(reason, message_name=layout.name, field="block_length", offset=0)
        return decode_behind(header, cls, buf)


def decode_behind(header: MessageHeader, kind: type[Message], buf: Any) -> tuple[Any, int]:
    """Decode what follows a header whose schema and template are known to be those of `kind`."""
    codec = _CODECS[kind]
    layout = codec.layout
    if header.version != layout.version:
        raise _wrong(layout, "version", 6, header.version, layout.version)
    if header.block_length < layout.block_length:
        raise short_block(layout.name, "block_length", 0, header.block_length, layout.block_length)
    return codec.decode(buf, HEADER_BYTES, len(buf), header.block_length)


def header_of(buf: Any, message_name: str = "MessageHeader") -> MessageHeader:
    if len(buf) < HEADER_BYTES:
        raise truncated(message_name, "(header)", 0, HEADER_BYTES, len(buf))
    return MessageHeader._make(_HEADER.unpack_from(buf, 0))


def over_bytes(buffer: ReadableBuffer, read: Callable[[Any], _T]) -> _T:
    """Call `read` with something that can be indexed as bytes, and let go of the buffer afterwards.

    A view that outlived an error would keep a memory map from being closed.
    """
    if type(buffer) is bytes:
        return read(buffer)
    with memoryview(buffer) as given, given.cast("B") as view:
        return read(view)


def _wrong(layout: MessageLayout, field: str, offset: int, got: int, wanted: int) -> CodecError:
    reason = f"{field.replace('_', ' ')} is {got}, expected {wanted}"
    return CodecError(reason, message_name=layout.name, field=field, offset=offset)


class _Codecs(dict[type[Message], Codec]):
    """Compiles a codec when it is first asked for. If two threads both do so, either result serves."""

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
    """Class decorator: the typed form of a message in `schemas/<schema>.xml`.

    `name` is the message's name there, where the class is called differently.
    """

    def decorate(kind: type[_M]) -> type[_M]:
        made = dataclass(slots=True, kw_only=True)(kind)
        register(schema, name or kind.__name__, made)
        return made

    return decorate
