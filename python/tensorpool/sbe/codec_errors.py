"""Errors of the codecs: functions that return or raise the `CodecError` for invalid bytes or messages.

The generated codecs only detect that a value is invalid, which keeps them fast. Decoding errors are built
from the position where decoding stopped. For encoding, `refuse` checks the message again, field by field,
and names the invalid field. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NoReturn

from ..errors import CodecError
from .layout import (
    MAX_GROUP_COUNT,
    BlockLayout,
    DataLayout,
    FieldLayout,
    GroupLayout,
    MessageLayout,
    integer_range,
)


def truncated(message: str, field: str, offset: int, needed: int, limit: int) -> CodecError:
    """The buffer ends before the end of a field."""
    return CodecError(
        f"needs {needed} bytes, {max(limit - offset, 0)} are left",
        message_name=message,
        field=field,
        offset=offset,
    )


def truncated_block(
    message: str, path: str, fields: Sequence[tuple[str, int, int]], start: int, needed: int, limit: int
) -> CodecError:
    """The buffer ends inside a fixed block; names the first incomplete field."""
    for name, offset, size in fields:
        if start + offset + size > limit:
            return truncated(message, f"{path}{name}", start + offset, size, limit)
    return truncated(message, f"{path}(block)", start, needed, limit)


def short_block(message: str, field: str, offset: int, acting: int, needed: int) -> CodecError:
    """The block length is too small for the fields."""
    return CodecError(
        f"block length {acting} is shorter than the {needed} bytes of the fields",
        message_name=message,
        field=field,
        offset=offset,
    )


def bad_count(message: str, field: str, offset: int, count: int, left: int) -> CodecError:
    """The count of a group is too large for the remaining bytes."""
    return CodecError(
        f"{count} entries cannot fit into the {left} bytes that are left",
        message_name=message,
        field=field,
        offset=offset,
    )


def bad_length(message: str, field: str, offset: int, length: int, left: int, maximum: int) -> CodecError:
    """The length of var-data is too large for the schema or for the remaining bytes."""
    if length > maximum:
        reason = f"length {length} exceeds the maximum of {maximum}"
    else:
        reason = f"length {length} exceeds the {left} bytes that are left"
    return CodecError(reason, message_name=message, field=field, offset=offset)


def unknown_member(message: str, field: str, offset: int, enum: str, value: int) -> CodecError:
    """The value is not a member of the enum."""
    return CodecError(f"{value} is no {enum}", message_name=message, field=field, offset=offset)


def too_large(message: str, field: str, offset: int, value: int, maximum: int) -> CodecError:
    """The value exceeds the maximum of the schema."""
    return CodecError(
        f"{value} exceeds the maximum of {maximum}", message_name=message, field=field, offset=offset
    )


def not_ascii(message: str, field: str, offset: int, byte: int) -> CodecError:
    """Text has a byte beyond ASCII."""
    return CodecError(f"byte 0x{byte:02x} is not ASCII", message_name=message, field=field, offset=offset)


def member(enum: type[IntEnum], value: object) -> IntEnum:
    """The enum member of a plain integer. Raises TypeError for any other type."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return enum(value)


def boolean(value: object) -> bool:
    """The value itself. Raises TypeError if it is not a bool."""
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def byte_string(value: object) -> bytes:
    """The bytes of a buffer. Raises TypeError for other types: bytes(5) would be five zeros."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(value)
    return bytes(value)


def filled(values: Sequence[int], length: int) -> Sequence[int]:
    """A fixed array filled up with zeros. An array that is too long fails later, in its struct."""
    return (*values, *([0] * (length - len(values))))


def refuse(message: object, layout: MessageLayout, cause: Exception) -> NoReturn:
    """Raises the `CodecError` that names the field which cannot be encoded."""
    _check_block(message, layout, layout.name, "")
    raise CodecError(f"cannot be encoded: {cause}", message_name=layout.name) from cause


def _check_block(value: object, layout: BlockLayout, message: str, path: str) -> None:
    for field in layout.encoded_fields:
        _check_field(_get(value, field.python_name, message, path), field, message, path)
    for group in layout.groups:
        _check_group(_get(value, group.python_name, message, path), group, message, path)
    for data in layout.data:
        _check_data(_get(value, data.python_name, message, path), data, message, path)


def _get(value: object, name: str, message: str, path: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        reason = f"a {type(value).__name__} has no such field"
        raise CodecError(reason, message_name=message, field=f"{path}{name}") from None


def _check_field(value: Any, field: FieldLayout, message: str, path: str) -> None:
    def fail(reason: str) -> NoReturn:
        raise CodecError(reason, message_name=message, field=f"{path}{field.python_name}")

    if field.optional and value is None:
        return
    if field.enum is not None and field.enum.name == "Bool":
        if not isinstance(value, bool):
            fail(f"expected a bool, got {value!r}")
        return
    if field.is_array:
        if field.primitive == "uint8":
            if not isinstance(value, bytes | bytearray | memoryview):
                fail(f"expected bytes, got {value!r}")
            elements: Sequence[Any] = bytes(value)
        else:
            if not isinstance(value, Sequence):
                fail(f"expected a sequence of integers, got {value!r}")
            elements = value
        if len(elements) > field.length:
            fail(f"{len(elements)} elements do not fit into {field.length}")
    else:
        elements = (value,)
    low, high = integer_range(field.primitive)
    if field.max_value is not None:
        high = field.max_value
    for element in elements:
        if not hasattr(element, "__index__"):
            fail(f"expected an integer, got {element!r}")
        if not low <= int(element) <= high:
            fail(f"{element} is not between {low} and {high}")
    if field.optional and field.null != 0 and value == field.null:
        fail(f"{value} is the null value, which would be decoded as absent; use None for an absent value")
    if field.enum is not None and (int(value) not in field.enum.members.values() or isinstance(value, bool)):
        fail(f"{value!r} is no {field.enum.name}")


def _check_group(value: Any, group: GroupLayout, message: str, path: str) -> None:
    where = f"{path}{group.python_name}"
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise CodecError(f"expected a sequence of entries, got {value!r}", message_name=message, field=where)
    if len(value) > MAX_GROUP_COUNT:
        reason = f"{len(value)} entries, at most {MAX_GROUP_COUNT} fit into a group"
        raise CodecError(reason, message_name=message, field=where)
    for index, entry in enumerate(value):
        _check_block(entry, group, message, f"{where}[{index}].")


def _check_data(value: Any, data: DataLayout, message: str, path: str) -> None:
    def fail(reason: str) -> NoReturn:
        raise CodecError(reason, message_name=message, field=f"{path}{data.python_name}")

    if data.ascii:
        if not isinstance(value, str):
            fail(f"expected a str, got {type(value).__name__}")
        try:
            value = value.encode("ascii", "surrogateescape" if data.bytewise else "strict")
        except UnicodeEncodeError as error:
            fail(f"{value[error.start]!r} is not ASCII")
    elif isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
    else:
        fail(f"expected bytes, got {type(value).__name__}")
    if len(value) > data.max_length:
        fail(f"{len(value)} bytes exceed the maximum of {data.max_length}")
