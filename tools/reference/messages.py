"""The reference page of all messages, from the schema files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tensorpool.sbe.layout import (
    BlockLayout,
    DataLayout,
    EnumLayout,
    FieldLayout,
    MessageLayout,
    SchemaLayout,
    schemas,
)
from tensorpool.sbe.message import CLASSES

_OPENING: Final = """\
# Messages

Every message of every protocol. This page is made from `schemas/*.xml` by
`python -m tools.reference`; a test keeps it up to date.

All numbers are little-endian and packed: a field starts where the one before it ends. A message that
travels begins with 8 bytes, four unsigned 16-bit numbers: block length, template id, schema id, version.
Then come the fixed block, the groups, the var-data.

- **Optional** fields hold the null value when they are absent; in Python they are `None`. A value equal to
  the null is refused when encoding, except where the null is 0: there 0 and `None` mean the same.
- **Groups** begin with two unsigned 16-bit numbers, the block length of an entry and the number of entries
  (at most 65,534). In Python they are tuples of entries.
- **Var-data** is an unsigned 32-bit length and that many bytes. Length 0 means absent, in Python an empty
  `str` or `bytes`. ASCII text with other bytes in it is refused, except where the table says *bytewise*:
  such text is compared byte for byte, so other bytes are carried through as surrogate escapes.
- **Bool** is an enum on the wire (0, 1) and `bool` in Python. Other enums are `IntEnum` classes; a value that
  is no member is refused.
- A **block longer** than listed is a newer one: the tail is skipped. A shorter one is malformed. Where a
  message has two revisions, a block length that matches one exactly decides first.

The classes are in `tensorpool.sbe`; field names there are these in snake case.
"""


def render() -> str:
    """The text of the page."""
    parts = [_OPENING]
    for schema in schemas():
        parts.extend(_schema(schema))
    return "\n".join(parts).rstrip() + "\n"


def _schema(schema: SchemaLayout) -> Iterator[str]:
    yield f"## {schema.name}\n"
    yield f"Schema id {schema.schema_id}, version {schema.version}, package `{schema.package}`.\n"
    for message in sorted(schema.messages.values(), key=lambda message: message.template_id):
        yield from _message(message)
    enums = [enum for enum in schema.enums.values() if enum.name != "Bool"]
    if enums:
        yield f"### Enums of {schema.name}\n"
        yield from map(_enum, enums)
        yield ""


def _message(message: MessageLayout) -> Iterator[str]:
    kind = CLASSES.get((message.schema, message.name))
    yield f"### {message.name}{_suffix(message, kind)}\n"
    if message.description:
        yield f"{message.description}\n"
    if kind is None:
        first = message.schema.removesuffix("-r2")
        yield f"Template {message.template_id}, block {message.block_length} bytes: the same as in {first}.\n"
        return
    header = "" if message.has_header else ", in shared memory without a message header"
    numbers = f"Template {message.template_id}, block {message.block_length} bytes{header}."
    yield f"{numbers} Class `{kind.__name__}`.\n"
    yield from _block(message, "")


def _suffix(message: MessageLayout, kind: type | None) -> str:
    return " (later revision)" if kind is not None and kind.__name__ != message.name else ""


def _block(block: BlockLayout, path: str) -> Iterator[str]:
    if block.fields:
        yield "| offset | field | type | absent | |"
        yield "|---:|---|---|---|---|"
        yield from map(_field, block.fields)
        yield ""
    for group in block.groups:
        name = f"{path}{group.name}"
        note = f" {group.description[0].upper()}{group.description[1:]}." if group.description else ""
        other = (
            f" A block length of {group.accept_block_length} is accepted too: the bytes are the same."
            if group.accept_block_length is not None
            else ""
        )
        yield f"Group `{name}`, entry block {group.block_length} bytes.{note}{other}\n"
        yield from _block(group, f"{name}.")
    if block.data:
        yield f"| var-data{f' of `{path[:-1]}`' if path else ''} | type | at most | |"
        yield "|---|---|---:|---|"
        yield from map(_data, block.data)
        yield ""


def _field(field: FieldLayout) -> str:
    kind = field.enum.name if field.enum is not None else field.primitive
    if field.is_array:
        kind += f"[{field.length}]"
    if field.constant is not None:
        return f"| | `{field.name}` | {kind} | | constant {field.constant}, takes no bytes |"
    absent = str(field.null) if field.optional else ""
    notes = [field.description] if field.description else []
    if field.max_value is not None:
        notes.append(f"at most {field.max_value}")
    return f"| {field.offset} | `{field.name}` | {kind} | {absent} | {', '.join(notes)} |"


def _data(data: DataLayout) -> str:
    kind = "bytes" if not data.ascii else "ASCII, bytewise" if data.bytewise else "ASCII"
    return f"| `{data.name}` | {kind} | {data.max_length} | {data.description} |"


def _enum(enum: EnumLayout) -> str:
    members = ", ".join(f"`{name}` {value}" for name, value in enum.members.items())
    return f"- **{enum.name}** ({enum.primitive}): {members}"
