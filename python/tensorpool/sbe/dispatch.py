"""Decodes whatever arrives: finds the message class by schema, template and block length.

The order matters, since two revisions may differ in nothing but their block length: schema id and
template, then a block length that exactly matches a known revision, and only then SBE's own rule, by
which a longer block has a tail to skip and a shorter one is malformed. That rule is applied to the
revision of the documents.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ..errors import CodecError
from . import message
from .layout import HEADER_BYTES
from .message import Message, MessageHeader, decode_behind, header_of, over_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def decode(buffer: ReadableBuffer) -> Message:
    """Decode any message that has a message header; bytes after it are left alone."""
    return over_bytes(buffer, _decode)[0]


def decode_prefix(buffer: ReadableBuffer) -> tuple[Message, int]:
    """As `decode`; also says how many bytes the message took."""
    return over_bytes(buffer, _decode)


def read_header(buffer: ReadableBuffer) -> MessageHeader:
    """The message header alone, to tell a foreign message from a broken one."""
    return over_bytes(buffer, header_of)


def read_correlation_id(buffer: ReadableBuffer) -> int | None:
    """The correlation id of a message that may be malformed or of another version, while it is readable.

    It lets a server answer a request that it cannot decode. None where there is no such field, or where
    the bytes end before it.
    """
    return over_bytes(buffer, _read_correlation_id)


def _decode(buf: Any) -> tuple[Message, int]:
    header = header_of(buf)
    kind = message.class_by_block(header.schema_id, header.template_id, header.block_length)
    if kind is None:
        kind = message.class_by_template(header.schema_id, header.template_id)
        if kind is None:
            raise _unknown(header)
    return decode_behind(header, kind, buf)


def _unknown(header: MessageHeader) -> CodecError:
    if header.schema_id not in message.known_schema_ids():
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
    kind = message.class_by_template(header.schema_id, header.template_id)
    if kind is None:
        return None
    for field in kind.layout().encoded_fields:
        if field.name == "correlationId":
            end = field.offset + field.size
            if header.block_length >= end and len(buf) >= HEADER_BYTES + end:
                return int(struct.unpack_from("<q", buf, HEADER_BYTES + field.offset)[0])
    return None
