"""A second reader of encoded messages: finds where the headers, lengths and enums lie.

It walks the layout with plain arithmetic and shares nothing with the generated decoders, so that tests
can aim at a byte and know which field must be named.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tensorpool.sbe.layout import BlockLayout, FieldLayout, MessageLayout


@dataclass
class Anatomy:
    """Each place is (path, offset)."""

    enums: list[tuple[str, int, FieldLayout]] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)
    data: list[tuple[str, int]] = field(default_factory=list)
    end: int = 0


def dissect(layout: MessageLayout, encoded: bytes) -> Anatomy:
    found = Anatomy()
    start = 8 if layout.has_header else 0
    found.end = _walk(layout, encoded, start, layout.block_length, "", found)
    return found


def _walk(layout: BlockLayout, encoded: bytes, start: int, block: int, path: str, found: Anatomy) -> int:
    for one in layout.encoded_fields:
        if one.enum is not None:
            found.enums.append((f"{path}{one.python_name}", start + one.offset, one))
    at = start + block
    for group in layout.groups:
        found.groups.append((f"{path}{group.python_name}", at))
        length, count = struct.unpack_from("<HH", encoded, at)
        at += 4
        for index in range(count):
            at = _walk(group, encoded, at, length, f"{path}{group.python_name}[{index}].", found)
    for data in layout.data:
        found.data.append((f"{path}{data.python_name}", at))
        at += 4 + struct.unpack_from("<I", encoded, at)[0]
    return at
