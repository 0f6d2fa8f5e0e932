"""The offsets that the Rust side uses are those of the schema files."""

from __future__ import annotations

import re
from pathlib import Path

from tensorpool.sbe import MAGIC, layout
from tensorpool.sbe.layout import BlockLayout, snake_case

SOURCE = Path(__file__).parents[3] / "crates" / "core" / "src" / "wire" / "layout.rs"
CONSTANT = re.compile(r"^\s*pub const ([A-Z0-9_]+): (\w+) = (-?[0-9][0-9A-Fa-fx_]*);", re.MULTILINE)
FEWEST = 40


def screaming(name: str) -> str:
    return snake_case(name).upper()


def rust_type(primitive: str) -> str:
    return primitive.replace("uint", "u").replace("int", "i")


def expected() -> dict[str, tuple[int, str | None]]:
    """Every name that the convention gives: name -> (value, Rust type where it matters)."""
    names: dict[str, tuple[int, str | None]] = {"MAGIC": (MAGIC, "u64")}
    for number, part in enumerate(("BLOCK_LENGTH", "TEMPLATE_ID", "SCHEMA_ID", "VERSION")):
        names[f"MESSAGE_HEADER_{part}"] = (2 * number, None)
    names["MESSAGE_HEADER_LENGTH"] = (layout.HEADER_BYTES, None)
    names["GROUP_SIZE_LENGTH"] = (layout.GROUP_HEADER_BYTES, None)
    for schema in layout.schemas():
        revision = "_R2" if schema.name.endswith("-r2") else ""
        protocol = schema.name.split("-")[0].upper()
        names[f"{protocol}_SCHEMA_ID"] = (schema.schema_id, "u16")
        names[f"{protocol}_SCHEMA_VERSION"] = (schema.version, "u16")
        for enum in schema.enums.values():
            for member, value in enum.members.items():
                names[f"{screaming(enum.name)}_{member}"] = (value, rust_type(enum.primitive))
        for message in schema.messages.values():
            prefix = screaming(message.name) + revision
            names[f"{prefix}_TEMPLATE_ID"] = (message.template_id, "u16")
            header = layout.HEADER_BYTES if message.has_header else 0
            names[f"{prefix}_ENCODED_LENGTH"] = (header + message.block_length, None)
            add_block(names, prefix, message)
    slot = layout.schema("wire-900").messages["SlotHeader"].block_length
    names["SLOT_HEADER_BYTES_LENGTH_AT"] = (slot, None)
    names["SLOT_HEADER_BYTES_AT"] = (slot + layout.LENGTH_PREFIX_BYTES, None)
    return names


def add_block(names: dict[str, tuple[int, str | None]], prefix: str, block: BlockLayout) -> None:
    names[f"{prefix}_BLOCK_LENGTH"] = (block.block_length, "u16")
    for field in block.encoded_fields:
        names[f"{prefix}_{screaming(field.name)}"] = (field.offset, None)
    for field in block.constants:
        names[screaming(field.name)] = (field.constant or 0, None)
    for group in block.groups:
        add_block(names, f"{prefix}_{screaming(group.name)}", group)


def disagreements(source: str) -> tuple[list[str], int]:
    """What is wrong, and how many constants were compared."""
    known = expected()
    covered = tuple(
        f"{screaming(name)}_" for schema in layout.schemas() for name in (*schema.messages, *schema.enums)
    )
    wrong, compared = [], 0
    for name, rust, text in CONSTANT.findall(source):
        if name in known:
            value, wanted = known[name]
            compared += 1
            if int(text.replace("_", ""), 0) != value or (wanted is not None and rust != wanted):
                wrong.append(f"{name}: {rust} = {text}, the schema says {value} ({wanted or 'any type'})")
        elif name.startswith(covered):
            wrong.append(f"{name}: the schema has no such field or member")
    return wrong, compared


def test_rust_constants_agree_with_the_schemas():
    wrong, compared = disagreements(SOURCE.read_text())
    assert not wrong, "\n".join(wrong)
    assert compared >= FEWEST


def test_wrong_rust_offset_type_or_name_is_detected():
    source = """
    pub const FRAME_DESCRIPTOR_SEQ: usize = 13;
    pub const DTYPE_UINT8: u8 = 1;
    pub const FRAME_DESCRIPTOR_SEQUENCE: usize = 12;
    pub const WIRE_SCHEMA_ID: u16 = 900;
    pub const MAGIC: u64 = 0x544F_504C_5348_4D31;
    pub const MIN_STRIDE_BYTES: u32 = 64;
    """
    wrong, compared = disagreements(source)
    assert [line.split(":")[0] for line in wrong] == [
        "FRAME_DESCRIPTOR_SEQ",
        "DTYPE_UINT8",
        "FRAME_DESCRIPTOR_SEQUENCE",
    ]
    assert compared == 4
