"""A JSON Schema of the configuration, with which editors complete and check a TOML file.

The schema says what a file may hold: tables, keys, kinds, bounds and choices. What only the settings know
(values that contradict each other, paths, channels) is checked by `Config.load`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ...text import JsonMapping
from .kinds import Kind
from .spec import RESERVED, FieldSpec, TableSpec, spec_of

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""Draft 7, which the TOML extensions of editors support."""

_INTEGER: Final[JsonMapping] = {"type": "integer"}
_TEXT: Final[JsonMapping] = {"type": "string"}
_ID_RANGE: Final = r"^\s*\d+\s*(-\s*\d+\s*)?$"
_DURATION: Final = r"^\s*\d+(\.\d+)?\s*(ns|us|µs|ms|s|min|h|d)\s*$"
_SIZE: Final = r"^\s*\d+\s*(B|KiB|MiB|GiB)?\s*$"
_MODE: Final = "^[0-7]{1,5}$"


def _pattern(pattern: str) -> JsonMapping:
    return {"type": "string", "pattern": pattern}


_KINDS: Final[Mapping[str, JsonMapping]] = {
    "true or false": {"type": "boolean"},
    "whole number": _INTEGER,
    "number": {"type": "number"},
    "text": _TEXT,
    "secret": _TEXT,
    "path": {"type": "string", "minLength": 1},
    "duration": {"anyOf": [_pattern(_DURATION), {"enum": [0, "0"]}]},
    "size": {"anyOf": [_pattern(_SIZE), {"type": "integer", "minimum": 0}]},
    "file mode": {"anyOf": [_pattern(_MODE), {"type": "integer", "minimum": 0, "maximum": 0o7777}]},
    "id or name of a stream": {
        "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}]
    },
    "range of ids": {
        "anyOf": [
            _pattern(_ID_RANGE),
            {"type": "integer", "minimum": 0},
            {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2},
        ]
    },
}
"""What TOML may hold for each kind of setting."""


def json_schema(roles: Mapping[str, type[Any]]) -> JsonMapping:
    """The schema of a file with the tables of these roles. Tables of roles that are not among them may hold
    anything."""
    tables: JsonMapping = {role: _table(spec_of(cls)) for role, cls in sorted(roles.items())}
    others: JsonMapping = {role: {"type": "object"} for role in sorted(RESERVED - set(roles))}
    return {
        "$schema": DIALECT,
        "title": "Configuration of TensorPool",
        "type": "object",
        "additionalProperties": False,
        "properties": {**tables, **others},
    }


def _table(table: TableSpec) -> JsonMapping:
    return {
        "description": _one_line(table.doc),
        "type": "object",
        "additionalProperties": False,
        "properties": {field.key: _field(field) for field in table.fields.values()},
    }


def _entry(table: TableSpec) -> JsonMapping:
    """The schema of an entry of an array. Only here a key can be required: elsewhere a variable or a flag may
    give the value."""
    required = [field.key for field in table.fields.values() if field.is_required]
    return {**_table(table), **({"required": required} if required else {})}


def _field(field: FieldSpec) -> JsonMapping:
    if field.nested is not None:
        if not field.is_array:
            return {**_table(field.nested), "description": _one_line(field.doc)}
        return {"description": _one_line(field.doc), "type": "array", "items": _entry(field.nested)}
    kind = field.kind
    assert kind is not None, "a field is a table or has a kind"
    item = _item(kind, field)
    schema: JsonMapping = {"type": "array", "items": item} if kind.is_list else item
    schema = {"description": _remarks(field), **schema}
    if not field.is_required and field.default is not None and not field.is_secret:
        schema["default"] = kind.write(field.default)
    return schema


def _item(kind: Kind, field: FieldSpec) -> JsonMapping:
    if kind.choices:
        # A choice that looks like a number may be written as one.
        numbers = [int(choice) for choice in kind.choices if choice.isdecimal()]
        return {"enum": [*kind.choices, *numbers]}
    schema = dict(_KINDS[kind.name.removeprefix("list of ")])
    if schema.get("type") in ("integer", "number"):
        bounds = {"minimum": field.minimum, "maximum": field.maximum}
        schema |= {name: limit for name, limit in bounds.items() if limit is not None}
    return schema


def _remarks(field: FieldSpec) -> str:
    """The description, and the bounds that the schema cannot say."""
    parts = [_one_line(field.doc)]
    bounds = {"At least": field.minimum, "At most": field.maximum}
    parts += [f"{name} {field.bound(limit)}." for name, limit in bounds.items() if limit is not None]
    parts += ["A reload applies it."] if field.live else []
    return " ".join(parts)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
