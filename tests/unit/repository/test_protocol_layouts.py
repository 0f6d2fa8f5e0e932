"""The tables of shared memory in docs/protocol/wire.md have the offsets of the schema."""

from __future__ import annotations

import re

from tensorpool.sbe import layout
from tools import reference

PAGE = (reference.DIRECTORY / "protocol" / "wire.md").read_text("utf-8")
TENSOR_HEADER = 72


def rows(section: str) -> dict[str, int]:
    """Field and offset of each row of the table in a section."""
    text = PAGE.split(f'<a id="{section}"></a>')[1].split("<!--")[0]
    return {name: int(offset) for offset, name in re.findall(r"^\| (\d+) \| (\w+) \|", text, re.M)}


def offsets(message: str) -> dict[str, int]:
    """Field and offset of a message, in snake case, without padding and constants."""
    found = layout.schema("wire-900").messages[message]
    return {
        layout.snake_case(field.name): field.offset for field in found.encoded_fields if field.name != "pad"
    }


def test_superblock_table_has_the_offsets_of_the_schema() -> None:
    assert rows("7.1") == offsets("ShmRegionSuperblock")


def test_slot_table_has_the_offsets_of_the_schema() -> None:
    expected = offsets("SlotHeader")
    expected |= {name: TENSOR_HEADER + offset for name, offset in offsets("TensorHeader").items()}
    table = rows("8.2")
    del table["pad"]
    assert table == expected
