"""The message classes match the schema files."""

from __future__ import annotations

import dataclasses
from types import GenericAlias
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import pytest

from tensorpool import sbe
from tensorpool.sbe import layout
from tensorpool.sbe.codec import entry_class
from tensorpool.sbe.layout import BlockLayout, DataLayout, FieldLayout, snake_case
from tensorpool.sbe.message import CLASSES

KINDS = sorted(CLASSES.values(), key=lambda kind: kind.__name__)
every_class = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

# Required fields with a default, because the protocols give one value a plain meaning (not asked for,
# reserved, unchanged); everything else required has to be expected_text.
DEFAULTS = {
    ("ConsumerHello", "max_rate_hz"): 0,
    ("ConsumerHello", "descriptor_stream_id"): 0,
    ("ConsumerHello", "control_stream_id"): 0,
    ("ConsumerConfig", "descriptor_stream_id"): 0,
    ("ConsumerConfig", "control_stream_id"): 0,
    ("ConsumerConfigR2", "descriptor_stream_id"): 0,
    ("ConsumerConfigR2", "control_stream_id"): 0,
    ("MetaBlobAnnounce", "checksum"): 0,
    ("MetaBlobComplete", "checksum"): 0,
    ("ShmRegionSuperblock", "magic"): sbe.MAGIC,
    ("SlotHeader", "payload_offset"): 0,
    ("SlotHeader", "pad"): bytes(26),
    ("TensorHeader", "pad_align"): 0,
    ("TensorHeader", "progress_unit"): sbe.ProgressUnit.NONE,
    ("TensorHeader", "progress_stride_bytes"): 0,
    ("TensorHeader", "strides"): (0,) * 8,
    ("TensorHeader", "pad"): bytes(109),
    ("ShmAttachRequest", "expected_layout_version"): 0,
    ("ShmAttachRequest", "max_dims"): 0,
    ("ShmAttachRequestR2", "expected_layout_version"): 0,
    ("ShmAttachRequestR2", "hugepages_policy"): sbe.HugepagesPolicy.UNSPECIFIED,
    ("EventMessage", "pad"): bytes(3),
}
# Var-data that must not be empty has no default.
NEVER_EMPTY = {("DiscoveryRequest", "response_channel"), ("DiscoveryResult", "driver_control_channel")}


def wanted_type(field: FieldLayout, hint: Any) -> Any:
    """The annotation that a field must have; an enum's class is checked member by member."""
    if field.enum is None:
        plain: Any = int
        if field.is_array:
            plain = bytes if field.primitive == "uint8" else tuple[int, ...]
    elif field.enum.name == "Bool":
        assert dict(field.enum.members) == {"FALSE": 0, "TRUE": 1}
        plain = bool
    else:
        plain = next(arg for arg in (*get_args(hint), hint) if arg is not type(None))
        assert plain.__name__ == field.enum.name
        assert {member.name: member.value for member in plain} == dict(field.enum.members)
    return plain | None if field.optional else plain


def check_block(kind: Any, block: BlockLayout) -> None:
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    parts: list[Any] = [*block.encoded_fields, *block.groups, *block.data]
    assert list(fields) == [snake_case(part.name) for part in parts]
    assert all(field.kw_only for field in fields.values())
    assert not hasattr(kind, "__dict__") or "__dict__" not in kind.__slots__
    for constant in block.constants:
        hint = hints[constant.python_name]
        assert get_origin(hint) is ClassVar
        assert getattr(kind, constant.python_name) == constant.constant
    for part in block.encoded_fields:
        assert hints[part.python_name] == wanted_type(part, hints[part.python_name])
        default = (
            None if part.optional else DEFAULTS.get((kind.__name__, part.python_name), dataclasses.MISSING)
        )
        assert fields[part.python_name].default == default
    for group in block.groups:
        entry: Any = entry_class(kind, (group.python_name,))
        assert hints[group.python_name] == GenericAlias(tuple, (entry, ...))
        assert fields[group.python_name].default == ()
        check_block(entry, group)
    for data in block.data:
        check_data(kind, data, hints[data.python_name], fields[data.python_name].default)


def check_data(kind: type, data: DataLayout, hint: Any, default: Any) -> None:
    assert hint is (str if data.ascii else bytes)
    if (kind.__name__, data.python_name) in NEVER_EMPTY:
        assert default is dataclasses.MISSING
    else:
        assert default == ("" if data.ascii else b"")


@every_class
def test_message_class_matches_its_schema(kind):
    check_block(kind, kind.layout())


@every_class
def test_class_is_named_as_its_message(kind):
    message = kind.layout()
    revised = message.schema.endswith("-r2") and message.name in layout.schema(message.schema[:-3]).messages
    assert kind.__name__ == message.name + ("R2" if revised else "")
    assert getattr(sbe, kind.__name__) is kind


def test_every_message_of_every_schema_has_a_class():
    for message in layout.messages():
        if (message.schema, message.name) in CLASSES:
            continue
        # What a later revision left alone has one class; then the two files must agree in everything.
        first = layout.schema(message.schema.removesuffix("-r2")).messages[message.name]
        assert message.schema.endswith("-r2")
        assert dataclasses.replace(message, schema=first.schema) == first


def test_every_schema_enum_is_a_class_or_bool():
    for schema in layout.schemas():
        for enum in schema.enums.values():
            if enum.name != "Bool":
                members = getattr(sbe, enum.name)
                assert {member.name: member.value for member in members} == dict(enum.members)


def test_public_names_are_those_listed():
    public = {
        name
        for name, value in vars(sbe).items()
        if isinstance(value, type) and value.__module__.startswith("tensorpool.sbe.")
    }
    assert public <= set(sbe.__all__)
    assert all(hasattr(sbe, name) for name in sbe.__all__)
    assert sbe.__all__ == sorted(sbe.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_camel_case_becomes_snake_case_mechanically():
    assert snake_case("leaseExpiryTimestampNs") == "lease_expiry_timestamp_ns"
    assert snake_case("payloadCrc32c") == "payload_crc32c"
    assert snake_case("headerNslots") == "header_nslots"
    assert snake_case("ShmPoolAnnounce") == "shm_pool_announce"
