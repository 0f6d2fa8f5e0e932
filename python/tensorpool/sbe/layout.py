"""Layouts of all messages: offsets, types and nulls of their fields, as read from `schemas/*.xml`.

Codecs, the reference page and tests (also the test of the Rust offsets) use these layouts. No message is
described by hand. Layouts are immutable, so any thread may read them. Pure, except for reading the schema
files once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple


class Primitive(NamedTuple):
    """A primitive type of SBE: its code in a `struct` format, and its size in bytes."""

    code: str
    size: int


PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    {
        "int8": Primitive("b", 1),
        "uint8": Primitive("B", 1),
        "int16": Primitive("h", 2),
        "uint16": Primitive("H", 2),
        "int32": Primitive("i", 4),
        "uint32": Primitive("I", 4),
        "int64": Primitive("q", 8),
        "uint64": Primitive("Q", 8),
    }
)
"""Primitive types by their SBE name."""

SCHEMA_NAMES = (
    "wire-900",
    "wire-900-r2",
    "driver-901",
    "driver-901-r2",
    "bridge-902",
    "bridge-902-r2",
    "merge-903",
    "trace-904",
    "discovery-910",
    "service-920",
    "status-921",
)
"""Names of the schema files. Of two files with one schema id, the second is a later revision."""

HEADER_BYTES = 8
GROUP_HEADER_BYTES = 4
LENGTH_PREFIX_BYTES = 4
MAX_GROUP_COUNT = 65534
"""65535 is the null of numInGroup, so no encoder can write it."""


@dataclass(frozen=True, slots=True)
class EnumLayout:
    """An enum: its integer type and its members."""

    name: str
    primitive: str
    members: Mapping[str, int]

    @property
    def null(self) -> int:
        """The value of an absent field."""
        return default_null(self.primitive)


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """A field of a fixed block. A constant has size 0 and its value in `constant`."""

    name: str
    type_name: str
    primitive: str
    offset: int
    size: int
    length: int = 1
    optional: bool = False
    null: int | None = None
    max_value: int | None = None
    constant: int | None = None
    enum: EnumLayout | None = None
    description: str = ""

    @property
    def python_name(self) -> str:
        """The attribute of the Python class."""
        return snake_case(self.name)

    @property
    def is_array(self) -> bool:
        """Whether the field is a fixed array."""
        return self.length > 1

    @property
    def code(self) -> str:
        """The struct code of the whole field; byte arrays are one bytes object."""
        char = PRIMITIVES[self.primitive].code
        if not self.is_array:
            return char
        return f"{self.length}s" if self.primitive == "uint8" else f"{self.length}{char}"


@dataclass(frozen=True, slots=True)
class DataLayout:
    """Var-data: a 32-bit length, then the bytes. `bytewise`: bytes beyond ASCII are kept, not refused."""

    name: str
    type_name: str
    ascii: bool
    bytewise: bool
    max_length: int
    description: str = ""

    @property
    def python_name(self) -> str:
        """The attribute of the Python class."""
        return snake_case(self.name)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The common parts of a message and a group entry: a fixed block, then groups, then var-data."""

    name: str
    block_length: int
    fields: tuple[FieldLayout, ...]
    groups: tuple[GroupLayout, ...]
    data: tuple[DataLayout, ...]
    description: str

    @property
    def encoded_fields(self) -> tuple[FieldLayout, ...]:
        """The fields that take bytes."""
        return tuple(f for f in self.fields if f.constant is None)

    @property
    def constants(self) -> tuple[FieldLayout, ...]:
        """The fields that take no bytes."""
        return tuple(f for f in self.fields if f.constant is not None)

    @property
    def tail_bytes(self) -> int:
        """The least number of bytes after the fixed block: the prefixes of groups and var-data."""
        return GROUP_HEADER_BYTES * len(self.groups) + LENGTH_PREFIX_BYTES * len(self.data)

    def field(self, name: str) -> FieldLayout:
        """The field with this schema name."""
        return next(f for f in self.fields if f.name == name)

    def offsets(self) -> dict[str, int]:
        """Offset of each encoded field inside the block."""
        return {f.name: f.offset for f in self.encoded_fields}


@dataclass(frozen=True, slots=True)
class GroupLayout(BlockLayout):
    """A repeating group. `accept_block_length` is another valid block length for the same bytes."""

    accept_block_length: int | None = None

    @property
    def python_name(self) -> str:
        """The attribute of the Python class."""
        return snake_case(self.name)


@dataclass(frozen=True, slots=True)
class MessageLayout(BlockLayout):
    """A message: its block, groups, var-data and header numbers."""

    schema: str
    schema_id: int
    version: int
    template_id: int
    has_header: bool


@dataclass(frozen=True, slots=True)
class SchemaLayout:
    """One schema file: its enums and messages."""

    name: str
    package: str
    schema_id: int
    version: int
    enums: Mapping[str, EnumLayout]
    messages: Mapping[str, MessageLayout]


def default_null(primitive: str) -> int:
    """SBE's null value of a primitive type: the largest unsigned, the smallest signed number."""
    bits = PRIMITIVES[primitive].size * 8
    return (1 << bits) - 1 if primitive.startswith("u") else -(1 << (bits - 1))


def integer_range(primitive: str) -> tuple[int, int]:
    """The smallest and the largest number of a primitive type."""
    bits = PRIMITIVES[primitive].size * 8
    if primitive.startswith("u"):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def snake_case(name: str) -> str:
    """A schema name in Python's style: `leaseExpiryTimestampNs` -> `lease_expiry_timestamp_ns`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def schema(name: str) -> SchemaLayout:
    """The layout of one schema file by its name, for example `driver-901-r2`."""
    from .schema_xml import load_schema  # imports the XML parser only when a layout is needed

    return load_schema(name)


def schemas() -> tuple[SchemaLayout, ...]:
    """All schema files."""
    return tuple(schema(name) for name in SCHEMA_NAMES)


def messages() -> Iterator[MessageLayout]:
    """Every message of every schema file, the later revisions included."""
    for schema_layout in schemas():
        yield from schema_layout.messages.values()
