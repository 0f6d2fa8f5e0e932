"""Decoding of any message: the class is found by schema, template and block length.

The order matters, because two revisions may differ only in their block length. Schema id and template come
first, then a block length that exactly matches a known revision. Only then SBE's rule applies, to the
specified revision: a longer block has a tail to skip, a shorter block is malformed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ..errors import CodecError
from . import message
from .layout import HEADER_BYTES
from .message import Message, MessageHeader, decode_after_header, header_of, over_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def decode(buffer: ReadableBuffer) -> Message:
    """Decodes any message that has a message header; bytes after it are ignored."""
    return over_bytes(buffer, _decode)[0]


def decode_prefix(buffer: ReadableBuffer) -> tuple[Message, int]:
    """As `decode`; also returns the length of the message."""
    return over_bytes(buffer, _decode)


def read_header(buffer: ReadableBuffer) -> MessageHeader:
    """The message header alone, to tell a message of another protocol from a malformed one."""
    return over_bytes(buffer, header_of)


def read_correlation_id(buffer: ReadableBuffer) -> int | None:
    """The correlation id of a message that may be malformed or of another version.

    With it, a server can respond to a request that it cannot decode. None for a message without this field,
    or with too few bytes.
    """
    return over_bytes(buffer, _read_correlation_id)


def _decode(buf: Any) -> tuple[Message, int]:
    header = header_of(buf)
    kind = message.class_by_block(header.schema_id, header.template_id, header.block_length)
    if kind is None:
        kind = message.class_by_template(header.schema_id, header.template_id)
        if kind is None:
            raise _unknown(header)
    return decode_after_header(header, kind, buf)


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
