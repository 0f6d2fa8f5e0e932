"""Messages as JSON, for `tensorpool sbe decode` and `encode`.

    {"message": "ShmAttachRequest", "schema": "driver-901", "fields": {"correlation_id": "1", ...}}

64-bit integers are strings, since many JSON readers round them; enum members are names; bytes are
`{"hex": "..."}` (`{"base64": "..."}` is accepted too); an absent field is null. Reading refuses unknown names
and accepts several forms: an integer may be a number or a string, a member its name or its number. Pure.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, NoReturn

from ..errors import CodecError
from ..text import JsonMapping, JsonValue
from . import message
from .codec import entry_class, value_class
from .layout import PRIMITIVES, BlockLayout, DataLayout, FieldLayout
from .message import Message

_WIDE_BYTES: Final = 8
_MAX_SHOWN: Final = 60


def to_json(message: Message) -> JsonMapping:
    """The message in the types of `json.dumps`."""
    layout = message.layout()
    return {
        "message": type(message).__name__,
        "schema": layout.schema,
        "fields": _block_to_json(message, layout),
    }


def from_json(form: object) -> Message:
    """The message of a JSON form. Raises CodecError for an invalid form."""
    if not isinstance(form, dict):
        raise CodecError(f"expected an object with message and fields, got {_short(form)}")
    unknown = set(form) - {"message", "schema", "fields"}
    if unknown:
        raise CodecError(f"unknown key {min(unknown)!r}: expected message, schema, fields")
    kind = class_named(form.get("message"))
    layout = kind.layout()
    if form.get("schema", layout.schema) != layout.schema:
        raise CodecError(f"{kind.__name__} belongs to {layout.schema}, not to {_short(form['schema'])}")
    fields = form.get("fields")
    if not isinstance(fields, dict):
        raise CodecError("expected an object with its values", message_name=kind.__name__, field="fields")
    decoded: Message = _block_from_json(fields, kind, layout, kind.__name__, "")
    return decoded


def class_named(name: object) -> type[Message]:
    """The message class with this name. Raises CodecError for an unknown name."""
    for kind in message.CLASSES.values():
        if kind.__name__ == name:
            return kind
    names = ", ".join(sorted(kind.__name__ for kind in message.CLASSES.values()))
    raise CodecError(f"no message is called {_short(name)}; the messages are {names}")


def _block_to_json(value: Any, layout: BlockLayout) -> JsonMapping:
    form: dict[str, JsonValue] = {}
    for field in layout.encoded_fields:
        form[field.python_name] = _field_to_json(getattr(value, field.python_name), field)
    for group in layout.groups:
        entries = getattr(value, group.python_name)
        form[group.python_name] = [_block_to_json(entry, group) for entry in entries]
    for data in layout.data:
        content = getattr(value, data.python_name)
        form[data.python_name] = content if data.ascii else {"hex": bytes(content).hex()}
    return form


def _field_to_json(value: Any, field: FieldLayout) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if field.enum is not None:
        return str(value.name)
    if field.is_array:
        return list(value)
    return str(value) if PRIMITIVES[field.primitive].size == _WIDE_BYTES else value


def _block_from_json(form: Any, kind: type, layout: BlockLayout, message: str, path: str) -> Any:
    if not isinstance(form, dict):
        raise CodecError(
            f"expected an object, got {_short(form)}", message_name=message, field=path.rstrip(".")
        )
    values: dict[str, object] = {}
    left = dict(form)
    for field in layout.encoded_fields:
        name = field.python_name
        if name in left:
            values[name] = _field_from_json(left.pop(name), field, kind, message, f"{path}{name}")
    for group in layout.groups:
        name = group.python_name
        if name in left:
            entries = left.pop(name)
            if not isinstance(entries, list):
                raise CodecError(
                    f"expected a list, got {_short(entries)}", message_name=message, field=f"{path}{name}"
                )
            entry = entry_class(kind, (name,))
            values[name] = tuple(
                _block_from_json(entry_form, entry, group, message, f"{path}{name}[{index}].")
                for index, entry_form in enumerate(entries)
            )
    for data in layout.data:
        name = data.python_name
        if name in left:
            values[name] = _data_from_json(left.pop(name), data, message, f"{path}{name}")
    # Constants are not part of the form: any remaining name is unknown.
    if left:
        raise CodecError("there is no such field", message_name=message, field=f"{path}{min(left)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise CodecError(
            f"a field is missing: {error}", message_name=message, field=path.rstrip(".")
        ) from None


def _field_from_json(form: Any, field: FieldLayout, kind: type, message: str, where: str) -> Any:
    def fail(expected: str) -> NoReturn:
        raise CodecError(f"expected {expected}, got {_short(form)}", message_name=message, field=where)

    if form is None:
        if not field.optional:
            fail("a value")
        return None
    if field.enum is not None:
        return _member_from_json(form, field, value_class(kind, field.python_name), fail)
    if field.is_array and field.primitive == "uint8":
        return _bytes_from_json(form, message, where)
    if field.is_array:
        if not isinstance(form, list) or not all(type(element) is int for element in form):
            fail("a list of integers")
        return tuple(form)
    if isinstance(form, str):
        try:
            return int(form, 0)
        except ValueError:
            fail("an integer")
    if type(form) is not int:
        fail("an integer")
    return form


def _member_from_json(form: Any, field: FieldLayout, enum: Any, fail: Any) -> Any:
    assert field.enum is not None
    if enum is bool:
        return form if isinstance(form, bool) else fail("true or false")
    if isinstance(form, str) and form in field.enum.members:
        return enum[form]
    if type(form) is int and form in field.enum.members.values():
        return enum(form)
    fail(f"one of {', '.join(field.enum.members)}")


def _data_from_json(form: Any, data: DataLayout, message: str, where: str) -> str | bytes:
    if not data.ascii:
        return _bytes_from_json(form, message, where)
    if not isinstance(form, str):
        raise CodecError(f"expected text, got {_short(form)}", message_name=message, field=where)
    return form


def _bytes_from_json(form: Any, message: str, where: str) -> bytes:
    if isinstance(form, dict) and len(form) == 1:
        (kind, text), *_ = form.items()
        try:
            if kind == "hex" and isinstance(text, str):
                return bytes.fromhex(text)
            if kind == "base64" and isinstance(text, str):
                return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise CodecError(f"bad {kind}: {error}", message_name=message, field=where) from None
    reason = f'expected {{"hex": "..."}} or {{"base64": "..."}}, got {_short(form)}'
    raise CodecError(reason, message_name=message, field=where)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
