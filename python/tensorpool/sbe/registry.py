"""Which class stands for which message, filled by the class decorators when the modules load.

The tables by number come from the schema files, so they are built when a message is first decoded.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from .layout import MessageLayout, schema

if TYPE_CHECKING:
    from .message import Message

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
