"""Encoding and decoding of every message, compared with the codecs of sbe-tool's Java generator."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings

from tensorpool import sbe
from tensorpool.sbe.layout import MAX_GROUP_COUNT, BlockLayout
from tests.interop.java_codec import INSTALL_HINT, build_codec_server, to_java_json
from tests.property.sbe.strategies import (
    LAYOUTS,
    LONG,
    absent,
    class_of,
    largest,
    lowest,
    messages_of,
    smallest,
)

pytestmark = pytest.mark.timeout(900)

every_message = pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: f"{layout.schema}-{layout.name}"
)
EXAMPLES = 500 if LONG else 30


def assert_agreement(java_codec, layout, message):
    """Asserts that both encode the same bytes and decode the same fields."""
    kind = class_of(layout)
    ours = message.encode()
    theirs = java_codec.encode(layout, message)
    assert theirs.hex() == ours.hex()
    assert kind.decode(theirs) == message
    assert java_codec.decode(layout, ours) == (to_java_json(message, layout, constants=True), len(ours))


@pytest.mark.requirement("wire-10.1-1", "driver-4.2-5", "driver-4.2-7", "discovery-5.0-1")
@every_message
@pytest.mark.parametrize("build", [smallest, absent, lowest, largest])
def test_extreme_and_absent_values_agree_with_java(java_codec, layout, build):
    assert_agreement(java_codec, layout, build(class_of(layout)))


@every_message
def test_generated_messages_agree_with_java(java_codec, layout):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages_of(class_of(layout)))
    def check(message):
        assert_agreement(java_codec, layout, message)

    check()


@pytest.mark.parametrize(
    ("layout", "group"),
    [
        pytest.param(layout, group, id=f"{layout.schema}-{layout.name}-{group.name}")
        for layout in LAYOUTS
        for group in layout.groups
    ],
)
def test_group_of_maximum_count_agrees_with_java(java_codec, layout, group):
    kind = class_of(layout)
    message = largest(kind, count=1, size=0)
    entry = getattr(message, group.python_name)[0]
    for nested in group.groups:
        setattr(entry, nested.python_name, ())
    setattr(message, group.python_name, (entry,) * MAX_GROUP_COUNT)
    ours = message.encode()
    assert java_codec.encode(layout, message) == ours
    fields, length = java_codec.decode(layout, ours)
    assert len(fields[group.name]) == MAX_GROUP_COUNT
    assert length == len(ours)
    assert kind.decode(ours) == message


@pytest.mark.parametrize("nested", ["payload_pools", "tags"])
def test_nested_group_of_maximum_count_agrees_with_java(java_codec, nested):
    message = largest(sbe.DiscoveryResponse, count=1, size=1)
    assert isinstance(message, sbe.DiscoveryResponse)
    (result,) = message.results
    setattr(result, nested, getattr(result, nested) * MAX_GROUP_COUNT)
    assert_agreement(java_codec, sbe.DiscoveryResponse.layout(), message)


@every_message
def test_large_var_data_agrees_with_java(java_codec, layout):
    """The limit is a gibibyte; a mebibyte runs the same code."""
    assert_agreement(java_codec, layout, largest(class_of(layout), count=1, size=1 << 20))


@pytest.mark.parametrize(
    "layout",
    [layout for layout in LAYOUTS if layout.has_header],
    ids=lambda layout: f"{layout.schema}-{layout.name}",
)
def test_longer_block_decodes_alike_in_java_and_python(java_codec, layout):
    kind = class_of(layout)
    message = largest(kind, count=2, size=5)
    encoded = message.encode()
    block_end = 8 + layout.block_length
    # 21 bytes more than any known revision, with a value that a wrong offset would show.
    longer = struct.pack("<H", layout.block_length + 21) + encoded[2:block_end]
    longer += b"\x5a" * 21 + encoded[block_end:]
    if kind.layout().schema.endswith("-r2"):
        # sbe.decode would take a block of unknown length for the first revision.
        assert kind.decode(longer) == message
    else:
        assert sbe.decode(longer) == message
    assert java_codec.decode(layout, longer) == (to_java_json(message, layout, constants=True), len(longer))


@pytest.mark.requirement("wire-8.2-2", "wire-8.2-3", "wire-8.2-5")
def test_slot_and_tensor_header_agree_with_java(java_codec):
    tensor = sbe.TensorHeader(
        dtype=sbe.Dtype.UINT16, major_order=sbe.MajorOrder.ROW, ndims=2, dims=(480, 640, 0, 0, 0, 0, 0, 0)
    )
    assert_agreement(java_codec, sbe.TensorHeader.layout(), tensor)
    slot = sbe.SlotHeader(
        seq_commit=(41 << 1) | 1,
        values_len_bytes=480 * 640 * 2,
        payload_slot=1,
        pool_id=2,
        timestamp_ns=5,
        meta_version=0,
        header_bytes=tensor.encode(),
    )
    assert_agreement(java_codec, sbe.SlotHeader.layout(), slot)
    assert len(slot.encode()) == 256
    assert slot.encode()[:8] == ((41 << 1) | 1).to_bytes(8, "little")


def test_every_enum_member_agrees_with_java(java_codec):
    checked = 0
    for layout in LAYOUTS:
        for field in layout.encoded_fields:
            if field.enum is None:
                continue
            message = lowest(class_of(layout))
            enum = type(getattr(message, field.python_name))
            for name, value in field.enum.members.items():
                setattr(message, field.python_name, enum(value))
                assert_agreement(java_codec, layout, message)
                assert to_java_json(message, layout)[field.name] == name
                checked += 1
    assert checked > 100


def test_block_lengths_agree_with_java(java_codec):
    def size(block: BlockLayout) -> int:
        return sum(field.size for field in block.encoded_fields)

    for layout in LAYOUTS:
        smallest_message = java_codec.encode(layout, smallest(class_of(layout)))
        assert len(smallest_message) == (8 if layout.has_header else 0) + size(layout) + layout.tail_bytes
        if layout.has_header:
            header = (layout.block_length, layout.template_id, layout.schema_id, layout.version)
            assert struct.unpack_from("<HHHH", smallest_message) == header


def test_missing_java_fails_with_an_install_hint(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(pytest.fail.Exception, match="java was not found"):
        build_codec_server()
    assert "apt-get install openjdk-17-jdk-headless maven" in INSTALL_HINT
