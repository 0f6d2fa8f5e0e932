"""A second parser of encoded messages: the positions of enums, groups and var-data.

It follows the layout with plain arithmetic and shares no code with the generated decoders. So tests can
damage a chosen byte and know which field an error must name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tensorpool.sbe.layout import BlockLayout, FieldLayout, MessageLayout


@dataclass
class MessageMap:
    """Path and offset of each enum, group and var-data, and the end of the message."""

    enums: list[tuple[str, int, FieldLayout]] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)
    data: list[tuple[str, int]] = field(default_factory=list)
    end: int = 0


def parse(layout: MessageLayout, encoded: bytes) -> MessageMap:
    """The positions within an encoded message."""
    message_map = MessageMap()
    start = 8 if layout.has_header else 0
    message_map.end = _parse_block(layout, encoded, start, layout.block_length, "", message_map)
    return message_map


def _parse_block(
    layout: BlockLayout, encoded: bytes, start: int, block: int, path: str, message_map: MessageMap
) -> int:
    for field_layout in layout.encoded_fields:
        if field_layout.enum is not None:
            offset = start + field_layout.offset
            message_map.enums.append((f"{path}{field_layout.python_name}", offset, field_layout))
    offset = start + block
    for group in layout.groups:
        message_map.groups.append((f"{path}{group.python_name}", offset))
        length, count = struct.unpack_from("<HH", encoded, offset)
        offset += 4
        for index in range(count):
            entry_path = f"{path}{group.python_name}[{index}]."
            offset = _parse_block(group, encoded, offset, length, entry_path, message_map)
    for data in layout.data:
        message_map.data.append((f"{path}{data.python_name}", offset))
        offset += 4 + struct.unpack_from("<I", encoded, offset)[0]
    return offset
