"""Names and tags as the wire has them: bytes that are compared as bytes (discovery §5.1). Pure.

The codecs carry such bytes as ASCII with surrogate escapes. People write and read UTF-8.

Tags and data source id in a source's attributes, and back (decision 27). Pure.

Whatever a source wrote there: what cannot be used is left out, and the rest is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from ..sbe.wire import Attribute
from .metadata import TAGS_KEY, attribute

MAX_NAME_BYTES: Final = 256
"""Longer names are not indexed (discovery §5.1)."""
MAX_TAG_BYTES: Final = 512
"""Room for a tag that names a bridge by its channels."""
MAX_TAGS: Final = 64
MAX_ERROR_BYTES: Final = 1024


def to_wire(text: str) -> str:
    """Text as people have it, for a message. Raises ValueError for what has no bytes."""
    return text.encode("utf-8", "surrogateescape").decode("ascii", "surrogateescape")


def from_wire(text: str) -> str:
    """Text of a message as people have it; bytes that are no UTF-8 survive the way back."""
    return text.encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")


def wire_length(wire_text: str) -> int:
    """How many bytes it takes in a message: one a character."""
    return len(wire_text)


def tags_fault(tags: Sequence[str]) -> str | None:
    """Why tags of a configuration cannot be used."""
    for tag in tags:
        try:
            length = wire_length(to_wire(tag))
        except UnicodeEncodeError:
            return f"tag {tag!r} has no bytes: use text"
        if not 0 < length <= MAX_TAG_BYTES or not tag.isprintable() or tag != tag.strip():
            what = f"tag {tag!r}" if tag else "a tag is empty"
            return f"{what}: use up to {MAX_TAG_BYTES} bytes of visible characters"
    return None if len(tags) <= MAX_TAGS else f"use a list of up to {MAX_TAGS} tags"


def error_text(text: str) -> str:
    """Words for `errorMessage`: plain ASCII, and short enough for one packet (discovery §5.2)."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:MAX_ERROR_BYTES]


DATA_SOURCE_ID_KEY: Final = "tensorpool.data_source_id"
REACH_BRIDGE: Final = "reach:bridge"
"""The tag of a stream that only a bridge reaches. `reach:bridge://…` names the bridge: what follows `reach:`
is a payload fallback URI."""
REACH: Final = "reach:"
_NAMES_BRIDGE: Final = f"{REACH_BRIDGE}://"
MAX_DATA_SOURCE_ID: Final = (1 << 64) - 2
_MAX_JSON_BYTES: Final = 64 << 10


def fallback_uri_of(tags: Iterable[str]) -> str | None:
    """The payload fallback URI that a tag names; the first of several, in their order."""
    named = sorted(one for one in tags if one.startswith(_NAMES_BRIDGE))
    return named[0].removeprefix(REACH) if named else None


def needs_bridge(tags: Iterable[str]) -> bool:
    return any(one == REACH_BRIDGE or one.startswith(_NAMES_BRIDGE) for one in tags)


def read_attributes(attributes: Iterable[Attribute]) -> tuple[tuple[str, ...], int | None]:
    """Tags, each once and as the wire has them, and the data source id."""
    tags: tuple[str, ...] = ()
    source: int | None = None
    for one in attributes:
        if one.key == TAGS_KEY:
            tags = _tags(one.value)
        elif one.key == DATA_SOURCE_ID_KEY:
            source = _data_source_id(one.value)
    return tags, source


def _tags(value: bytes) -> tuple[str, ...]:
    found = _json(value)
    if not isinstance(found, list):
        return ()
    tags: dict[str, None] = {}
    for one in found:
        if not isinstance(one, str) or not one:
            continue
        try:
            tag = to_wire(one)
        except UnicodeEncodeError:
            continue
        if wire_length(tag) <= MAX_TAG_BYTES and len(tags) < MAX_TAGS:
            tags[tag] = None
    return tuple(tags)


def _data_source_id(value: bytes) -> int | None:
    """A number, or its digits: many a JSON writer would round the upper half of them."""
    found = _json(value)
    if isinstance(found, str):
        found = int(found) if found.isascii() and found.isdecimal() and len(found) <= 20 else None
    if type(found) is not int or not 0 <= found <= MAX_DATA_SOURCE_ID:
        return None
    return found


def _json(value: bytes) -> object:
    if len(value) > _MAX_JSON_BYTES:
        return None
    try:
        found: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found


def make_attributes(tags: Sequence[str], data_source_id: int | None) -> tuple[Attribute, ...]:
    """The other way around: tags as people have them."""
    made = [attribute(TAGS_KEY, list(tags))] if tags else []
    if data_source_id is not None:
        made.append(attribute(DATA_SOURCE_ID_KEY, data_source_id))
    return tuple(made)
