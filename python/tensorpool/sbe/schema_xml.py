"""The parser of SBE schema files; refuses SBE features that the codecs do not support.

Supports the part of SBE that the protocols use: little-endian packed blocks of integers, enums, fixed
arrays and constants, nested groups, var-data. Attributes in the namespace `urn:tensorpool:sbe` extend SBE:
`header="none"` (no message header), `acceptBlockLength` (another valid block length for the same bytes),
`text="bytewise"` (bytes beyond ASCII are kept, not refused). A module of its own, because `layout` imports
it only when a layout is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from xml.etree import ElementTree

from .layout import (
    PRIMITIVES,
    DataLayout,
    EnumLayout,
    FieldLayout,
    GroupLayout,
    MessageLayout,
    SchemaLayout,
    default_null,
)

_SBE = "{http://fixprotocol.io/2016/sbe}"
_EXTENSION = "{urn:tensorpool:sbe}"


class SchemaError(Exception):
    """A schema file that the codecs do not support."""


@dataclass(frozen=True, slots=True)
class _Type:
    primitive: str
    length: int = 1
    optional: bool = False
    null: int | None = None
    max_value: int | None = None
    constant: int | None = None


@dataclass(frozen=True, slots=True)
class _VarData:
    ascii: bool
    max_length: int


@dataclass(slots=True)
class _Types:
    scalars: dict[str, _Type] = field(default_factory=dict)
    enums: dict[str, EnumLayout] = field(default_factory=dict)
    var_data: dict[str, _VarData] = field(default_factory=dict)


def load_schema(name: str) -> SchemaLayout:
    """The layout of a schema file of the package."""
    text = resources.files(__package__).joinpath("schemas", f"{name}.xml").read_text(encoding="utf-8")
    return parse_schema(name, text)


def parse_schema(name: str, text: str) -> SchemaLayout:
    """The layout of a schema. Raises SchemaError for an unsupported or contradictory schema."""
    root = ElementTree.fromstring(text)
    if root.tag != f"{_SBE}messageSchema":
        raise SchemaError(f"{name}: the root element is {root.tag}, not sbe:messageSchema")
    if root.get("byteOrder", "littleEndian") != "littleEndian":
        raise SchemaError(f"{name}: only littleEndian is supported")
    types = _read_types(name, root)
    schema_id, version = int(root.attrib["id"]), int(root.get("version", "0"))
    messages: dict[str, MessageLayout] = {}
    for element in root.iter(f"{_SBE}message"):
        message = _read_message(element, types, name, schema_id, version)
        if message.name in messages:
            raise SchemaError(f"{name}: {message.name} is defined twice")
        messages[message.name] = message
    return SchemaLayout(
        name=name,
        package=root.attrib["package"],
        schema_id=schema_id,
        version=version,
        enums=MappingProxyType(types.enums),
        messages=MappingProxyType(messages),
    )


def _read_types(schema: str, root: ElementTree.Element) -> _Types:
    types = _Types(scalars={primitive: _Type(primitive) for primitive in PRIMITIVES})
    for element in root.iterfind("types/*"):
        name = element.attrib["name"]
        if element.tag == "type":
            types.scalars[name] = _read_type(element)
        elif element.tag == "enum":
            members = {v.attrib["name"]: int(v.text or "") for v in element.iterfind("validValue")}
            types.enums[name] = EnumLayout(name, element.attrib["encodingType"], MappingProxyType(members))
        elif element.tag == "composite":
            _read_composite(schema, element, types)
        else:
            raise SchemaError(f"{schema}: <{element.tag}> types are not supported")
    return types


def _read_type(element: ElementTree.Element) -> _Type:
    primitive = element.attrib["primitiveType"]
    presence = element.get("presence", "required")
    null, max_value = element.get("nullValue"), element.get("maxValue")
    return _Type(
        primitive=primitive,
        length=int(element.get("length", "1")),
        optional=presence == "optional",
        null=int(null) if null is not None else default_null(primitive),
        max_value=int(max_value) if max_value is not None else None,
        constant=int(element.text or "") if presence == "constant" else None,
    )


def _read_composite(schema: str, element: ElementTree.Element, types: _Types) -> None:
    """Checks the headers of messages and groups; all other composites are var-data encodings."""
    name = element.attrib["name"]
    parts = [(t.attrib["name"], t.attrib["primitiveType"]) for t in element.iterfind("type")]
    if name == "messageHeader":
        expected = [(part, "uint16") for part in ("blockLength", "templateId", "schemaId", "version")]
    elif name == "groupSizeEncoding":
        expected = [(part, "uint16") for part in ("blockLength", "numInGroup")]
    else:
        expected = [("length", "uint32"), ("varData", "uint8")]
        length, payload = element.findall("type")
        types.var_data[name] = _VarData(
            ascii=payload.get("characterEncoding") == "US-ASCII",
            max_length=int(length.attrib["maxValue"]),
        )
    if parts != expected:
        raise SchemaError(f"{schema}: composite {name} has parts {parts}, expected {expected}")


def _read_message(
    element: ElementTree.Element, types: _Types, schema: str, schema_id: int, version: int
) -> MessageLayout:
    name = element.attrib["name"]
    fields, block_length = _read_fields(element, types, f"{schema}: {name}")
    return MessageLayout(
        name=name,
        block_length=block_length,
        fields=fields,
        groups=_read_groups(element, types, f"{schema}: {name}"),
        data=_read_data(element, types),
        description=element.get("description", ""),
        schema=schema,
        schema_id=schema_id,
        version=version,
        template_id=int(element.attrib["id"]),
        has_header=element.get(f"{_EXTENSION}header") != "none",
    )


def _read_fields(
    element: ElementTree.Element, types: _Types, where: str
) -> tuple[tuple[FieldLayout, ...], int]:
    offset = 0
    fields: list[FieldLayout] = []
    for child in element.iterfind("field"):
        field_layout = _read_field(child, types, offset, where)
        fields.append(field_layout)
        offset += field_layout.size
    declared = element.get("blockLength")
    if declared is not None and int(declared) != offset:
        raise SchemaError(f"{where} declares a block of {declared} bytes, its fields take {offset}")
    return tuple(fields), offset


def _read_field(child: ElementTree.Element, types: _Types, offset: int, where: str) -> FieldLayout:
    name, type_name = child.attrib["name"], child.attrib["type"]
    optional = child.get("presence") == "optional"
    description = child.get("description", "")
    enum = types.enums.get(type_name)
    if enum is not None:
        return FieldLayout(
            name=name,
            type_name=type_name,
            primitive=enum.primitive,
            offset=offset,
            size=PRIMITIVES[enum.primitive].size,
            optional=optional,
            null=enum.null if optional else None,
            enum=enum,
            description=description,
        )
    if type_name not in types.scalars:
        raise SchemaError(f"{where}.{name} has the unknown type {type_name}")
    scalar = types.scalars[type_name]
    if scalar.optional != optional:
        raise SchemaError(f"{where}.{name} and its type {type_name} disagree on presence")
    return FieldLayout(
        name=name,
        type_name=type_name,
        primitive=scalar.primitive,
        offset=offset,
        size=0 if scalar.constant is not None else PRIMITIVES[scalar.primitive].size * scalar.length,
        length=scalar.length,
        optional=optional,
        null=scalar.null if optional else None,
        max_value=scalar.max_value,
        constant=scalar.constant,
        description=description,
    )


def _read_groups(element: ElementTree.Element, types: _Types, where: str) -> tuple[GroupLayout, ...]:
    groups: list[GroupLayout] = []
    for child in element.iterfind("group"):
        name = child.attrib["name"]
        fields, block_length = _read_fields(child, types, f"{where}.{name}")
        accept = child.get(f"{_EXTENSION}acceptBlockLength")
        group = GroupLayout(
            name=name,
            block_length=block_length,
            fields=fields,
            groups=_read_groups(child, types, f"{where}.{name}"),
            data=_read_data(child, types),
            description=child.get("description", ""),
            accept_block_length=int(accept) if accept is not None else None,
        )
        # Decoding limits a count by the remaining bytes. Entries without bytes would escape this limit.
        if group.block_length + group.tail_bytes == 0:
            raise SchemaError(f"{where}.{name}: entries that take no bytes cannot be bounded")
        groups.append(group)
    return tuple(groups)


def _read_data(element: ElementTree.Element, types: _Types) -> tuple[DataLayout, ...]:
    data: list[DataLayout] = []
    for child in element.iterfind("data"):
        encoding = types.var_data[child.attrib["type"]]
        data.append(
            DataLayout(
                name=child.attrib["name"],
                type_name=child.attrib["type"],
                ascii=encoding.ascii,
                bytewise=child.get(f"{_EXTENSION}text") == "bytewise",
                max_length=encoding.max_length,
                description=child.get("description", ""),
            )
        )
    return tuple(data)
