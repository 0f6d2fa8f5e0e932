"""Names, tags and data source ids: their text on the wire, and their attributes in metadata. Pure.

Names and tags are compared byte for byte (discovery §5.1). The codecs represent such bytes as ASCII text with
surrogate escapes; users write UTF-8. Attributes may come from any source, so reading them skips invalid
values and keeps the others (decision 27).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..sbe.wire import Attribute
from ..units import MAX_U64
from .metadata import TAGS_KEY, attribute

MAX_NAME_BYTES: Final = 256
"""Longer names are not indexed (discovery §5.1)."""
MAX_TAG_BYTES: Final = 512
"""Long enough for a tag with the channels of a bridge."""
MAX_TAGS: Final = 64
IGNORED_TAGS: Final = ("long", "many", "invalid")
"""Why a tag of a stream is not indexed: it exceeds MAX_TAG_BYTES, the stream has MAX_TAGS already, or it is
no text. A list that cannot be read, because it is too long or not JSON, counts as one invalid tag."""
MAX_ERROR_BYTES: Final = 1024
DATA_SOURCE_ID_KEY: Final = "tensorpool.data_source_id"
REACH: Final = "reach:"
REACH_BRIDGE: Final = "reach:bridge"
"""The tag of a stream that only a bridge can reach. In `reach:bridge://…` the part after `reach:` is the
payload fallback URI."""
REACH_LOCAL: Final = "reach:local"
"""The tag that a provider gives to streams which clients on its own media driver can attach to."""
MAX_DATA_SOURCE_ID: Final = MAX_U64
_BRIDGE_URI_PREFIX: Final = f"{REACH_BRIDGE}://"
_MAX_JSON_BYTES: Final = 64 << 10
_MAX_ID_DIGITS: Final = 20


def to_wire(text: str) -> str:
    """The wire form of a user's text. Raises ValueError for text that UTF-8 cannot encode."""
    return text.encode("utf-8", "surrogateescape").decode("ascii", "surrogateescape")


def from_wire(text: str) -> str:
    """The user's form of wire text. Bytes that are not UTF-8 stay recoverable as surrogate escapes."""
    return text.encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")


def wire_length(wire_text: str) -> int:
    """The length of wire text in bytes: one byte per character."""
    return len(wire_text)


def tags_fault(tags: Sequence[str]) -> str | None:
    """Why tags of a configuration are invalid; None for valid tags."""
    for tag in tags:
        try:
            length = wire_length(to_wire(tag))
        except UnicodeEncodeError:
            return f"tag {tag!r} has no UTF-8 form: use plain text"
        if not 0 < length <= MAX_TAG_BYTES or not tag.isprintable() or tag != tag.strip():
            subject = f"tag {tag!r}" if tag else "a tag is empty"
            return f"{subject}: use up to {MAX_TAG_BYTES} bytes of visible characters"
    return None if len(tags) <= MAX_TAGS else f"use a list of up to {MAX_TAGS} tags"


def error_text(text: str) -> str:
    """Text for `errorMessage`: plain ASCII, and short enough for one packet (discovery §5.2)."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:MAX_ERROR_BYTES]


def fallback_uri_of(tags: Iterable[str]) -> str | None:
    """The payload fallback URI of a tag; of several, the first in alphabetical order."""
    bridge_tags = sorted(tag for tag in tags if tag.startswith(_BRIDGE_URI_PREFIX))
    return bridge_tags[0].removeprefix(REACH) if bridge_tags else None


def needs_bridge(tags: Iterable[str]) -> bool:
    """Whether only a bridge can reach the stream."""
    return any(tag == REACH_BRIDGE or tag.startswith(_BRIDGE_URI_PREFIX) for tag in tags)


@dataclass(frozen=True, slots=True)
class LabelAttributes:
    """The attributes of a stream by which it is found."""

    tags: tuple[str, ...] = ()
    """In wire form, without duplicates."""
    data_source_id: int | None = None
    ignored_tags: tuple[tuple[str, int], ...] = ()
    """How many tags are not in `tags`, by reason (IGNORED_TAGS)."""


def read_attributes(attributes: Iterable[Attribute]) -> LabelAttributes:
    """The tags and the data source id among the attributes of a stream."""
    tags: tuple[str, ...] = ()
    ignored: Counter[str] = Counter()
    data_source_id: int | None = None
    for item in attributes:
        if item.key == TAGS_KEY:
            tags, ignored = _read_tags(item.value)
        elif item.key == DATA_SOURCE_ID_KEY:
            data_source_id = _read_data_source_id(item.value)
    return LabelAttributes(tags, data_source_id, tuple(sorted(ignored.items())))


def _read_tags(value: bytes) -> tuple[tuple[str, ...], Counter[str]]:
    items = _read_json(value)
    if not isinstance(items, list):
        return (), Counter(invalid=1)
    tags: dict[str, None] = {}
    ignored: Counter[str] = Counter()
    for item in items:
        tag = _read_tag(item)
        if tag is None:
            ignored["invalid"] += 1
        elif wire_length(tag) > MAX_TAG_BYTES:
            ignored["long"] += 1
        elif tag not in tags and len(tags) >= MAX_TAGS:
            ignored["many"] += 1
        else:
            tags[tag] = None
    return tuple(tags), ignored


def _read_tag(item: object) -> str | None:
    if not isinstance(item, str) or not item:
        return None
    try:
        return to_wire(item)
    except UnicodeEncodeError:
        return None


def _read_data_source_id(value: bytes) -> int | None:
    """The id from a number or from its digits: many JSON writers round numbers above 2^53."""
    number = _read_json(value)
    if isinstance(number, str):
        is_digits = number.isascii() and number.isdecimal() and len(number) <= _MAX_ID_DIGITS
        number = int(number) if is_digits else None
    if type(number) is not int or not 0 <= number <= MAX_DATA_SOURCE_ID:
        return None
    return number


def _read_json(value: bytes) -> object:
    if len(value) > _MAX_JSON_BYTES:
        return None
    try:
        document: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return document


def make_attributes(tags: Sequence[str], data_source_id: int | None) -> tuple[Attribute, ...]:
    """The attributes for tags in the user's form and a data source id."""
    attributes = [attribute(TAGS_KEY, list(tags))] if tags else []
    if data_source_id is not None:
        attributes.append(attribute(DATA_SOURCE_ID_KEY, data_source_id))
    return tuple(attributes)
