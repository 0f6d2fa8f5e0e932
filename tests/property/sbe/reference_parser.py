"""A second parser of encoded messages, which returns the offsets of group headers, lengths and enums. Pure.

It follows the layout with plain arithmetic and shares no code with the generated decoders, so that a test can
change a byte and know the name of its field.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tensorpool.sbe.layout import BlockLayout, FieldLayout, MessageLayout


@dataclass
class MessageMap:
    """Paths and offsets in an encoded message."""

    enums: list[tuple[str, int, FieldLayout]] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)
    data: list[tuple[str, int]] = field(default_factory=list)
    end: int = 0


def parse(layout: MessageLayout, encoded: bytes) -> MessageMap:
    """Maps an encoded message."""
    result = MessageMap()
    start = 8 if layout.has_header else 0
    result.end = _walk(layout, encoded, start, layout.block_length, "", result)
    return result


def _walk(layout: BlockLayout, encoded: bytes, start: int, block: int, path: str, result: MessageMap) -> int:
    for item in layout.encoded_fields:
        if item.enum is not None:
            result.enums.append((f"{path}{item.python_name}", start + item.offset, item))
    at = start + block
    for group in layout.groups:
        result.groups.append((f"{path}{group.python_name}", at))
        length, count = struct.unpack_from("<HH", encoded, at)
        at += 4
        for index in range(count):
            at = _walk(group, encoded, at, length, f"{path}{group.python_name}[{index}].", result)
    for data in layout.data:
        result.data.append((f"{path}{data.python_name}", at))
        at += 4 + struct.unpack_from("<I", encoded, at)[0]
    return at
