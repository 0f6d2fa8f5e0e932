"""Tags and data source id in a source's attributes, and back (decision 27). Pure.

Whatever a source wrote there: what cannot be used is left out, and the rest is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from ..attributes.metadata import TAGS_KEY, attribute
from ..sbe.wire import Attribute
from .text import MAX_TAG_BYTES, MAX_TAGS, nbytes, to_wire

DATA_SOURCE_ID_KEY: Final = "tensorpool.data_source_id"
REACH_BRIDGE: Final = "reach:bridge"
"""The tag of a stream that only a bridge reaches. `reach:bridge://…` names the bridge: what follows `reach:`
is a payload fallback URI."""
REACH: Final = "reach:"
_NAMES_BRIDGE: Final = f"{REACH_BRIDGE}://"
MAX_DATA_SOURCE_ID: Final = (1 << 64) - 2
_MAX_JSON_BYTES: Final = 64 << 10


def fallback_of(tags: Iterable[str]) -> str | None:
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
        if nbytes(tag) <= MAX_TAG_BYTES and len(tags) < MAX_TAGS:
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
