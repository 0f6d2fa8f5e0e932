"""Names and tags as the wire has them: bytes that are compared as bytes (discovery §5.1). Pure.

The codecs carry such bytes as ASCII with surrogate escapes. People write and read UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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


def nbytes(wire_text: str) -> int:
    """How many bytes it takes in a message: one a character."""
    return len(wire_text)


def tags_fault(tags: Sequence[str]) -> str | None:
    """Why tags of a configuration cannot be used."""
    for tag in tags:
        try:
            length = nbytes(to_wire(tag))
        except UnicodeEncodeError:
            return f"tag {tag!r} has no bytes: use text"
        if not 0 < length <= MAX_TAG_BYTES or not tag.isprintable() or tag != tag.strip():
            what = f"tag {tag!r}" if tag else "a tag is empty"
            return f"{what}: use up to {MAX_TAG_BYTES} bytes of visible characters"
    return None if len(tags) <= MAX_TAGS else f"use a list of up to {MAX_TAGS} tags"


def error_text(text: str) -> str:
    """Words for `errorMessage`: plain ASCII, and short enough for one packet (discovery §5.2)."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:MAX_ERROR_BYTES]
