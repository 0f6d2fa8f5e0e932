"""Every message, both ways, against the codecs that sbe-tool generates from the same schema files."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings

from tensorpool import sbe
from tensorpool.sbe.layout import MAX_GROUP_COUNT, BlockLayout
from tests.interop.judge import NEEDED, built_judge, told
from tests.property.sbe.strategies import (
    LAYOUTS,
    LONG,
    absent,
    kind_of,
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


def agree(judge, layout, message):
    """Equal bytes both ways, and equal fields in both readings."""
    kind = kind_of(layout)
    ours = message.encode()
    theirs = judge.encode(layout, message)
    assert theirs.hex() == ours.hex()
    assert kind.decode(theirs) == message
    assert judge.decode(layout, ours) == (told(message, layout, constants=True), len(ours))


@pytest.mark.requirement("wire-10.1-1", "driver-4.2-5", "driver-4.2-7", "discovery-5.0-1")
@every_message
@pytest.mark.parametrize("build", [smallest, absent, lowest, largest])
def test_extreme_and_absent_values_agree_with_java(judge, layout, build):
    agree(judge, layout, build(kind_of(layout)))


@every_message
def test_drawn_messages_agree_with_java(judge, layout):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages_of(kind_of(layout)))
    def check(message):
        agree(judge, layout, message)

    check()


@pytest.mark.parametrize(
    ("layout", "group"),
    [
        pytest.param(layout, group, id=f"{layout.schema}-{layout.name}-{group.name}")
        for layout in LAYOUTS
        for group in layout.groups
    ],
)
def test_a_group_with_as_many_entries_as_there_can_be_agrees_with_java(judge, layout, group):
    kind = kind_of(layout)
    message = largest(kind, count=1, size=0)
    entry = getattr(message, group.python_name)[0]
    for nested in group.groups:
        setattr(entry, nested.python_name, ())
    setattr(message, group.python_name, (entry,) * MAX_GROUP_COUNT)
    ours = message.encode()
    assert judge.encode(layout, message) == ours
    fields, length = judge.decode(layout, ours)
    assert len(fields[group.name]) == MAX_GROUP_COUNT
    assert length == len(ours)
    assert kind.decode(ours) == message


@pytest.mark.parametrize("nested", ["payload_pools", "tags"])
def test_a_nested_group_with_as_many_entries_as_there_can_be_agrees_with_java(judge, nested):
    message = largest(sbe.DiscoveryResponse, count=1, size=1)
    assert isinstance(message, sbe.DiscoveryResponse)
    (result,) = message.results
    setattr(result, nested, getattr(result, nested) * MAX_GROUP_COUNT)
    agree(judge, sbe.DiscoveryResponse.layout(), message)


@every_message
def test_large_var_data_agrees_with_java(judge, layout):
    """A gibibyte is the limit on paper; a mebibyte shows the same code at work."""
    agree(judge, layout, largest(kind_of(layout), count=1, size=1 << 20))


@pytest.mark.parametrize(
    "layout",
    [layout for layout in LAYOUTS if layout.has_header],
    ids=lambda layout: f"{layout.schema}-{layout.name}",
)
def test_a_longer_block_is_read_alike_by_java_and_python(judge, layout):
    kind = kind_of(layout)
    message = largest(kind, count=2, size=5)
    encoded = message.encode()
    block_end = 8 + layout.block_length
    # 21 bytes more than any known revision, filled with something that would show.
    longer = struct.pack("<H", layout.block_length + 21) + encoded[2:block_end]
    longer += b"\x5a" * 21 + encoded[block_end:]
    if kind.layout().schema.endswith("-r2"):
        # A block of no known length is read as the documents' revision, which this message is not.
        assert kind.decode(longer) == message
    else:
        assert sbe.decode(longer) == message
    assert judge.decode(layout, longer) == (told(message, layout, constants=True), len(longer))


@pytest.mark.requirement("wire-8.2-2", "wire-8.2-3", "wire-8.2-5")
def test_a_slot_with_its_tensor_header_agrees_with_java_byte_for_byte(judge):
    tensor = sbe.TensorHeader(
        dtype=sbe.Dtype.UINT16, major_order=sbe.MajorOrder.ROW, ndims=2, dims=(480, 640, 0, 0, 0, 0, 0, 0)
    )
    agree(judge, sbe.TensorHeader.layout(), tensor)
    slot = sbe.SlotHeader(
        seq_commit=(41 << 1) | 1,
        values_len_bytes=480 * 640 * 2,
        payload_slot=1,
        pool_id=2,
        timestamp_ns=5,
        meta_version=0,
        header_bytes=tensor.encode(),
    )
    agree(judge, sbe.SlotHeader.layout(), slot)
    assert len(slot.encode()) == 256
    assert slot.encode()[:8] == ((41 << 1) | 1).to_bytes(8, "little")


def test_every_enum_member_agrees_with_java(judge):
    checked = 0
    for layout in LAYOUTS:
        for field in layout.encoded_fields:
            if field.enum is None:
                continue
            message = lowest(kind_of(layout))
            enum = type(getattr(message, field.python_name))
            for name, value in field.enum.members.items():
                setattr(message, field.python_name, enum(value))
                agree(judge, layout, message)
                assert told(message, layout)[field.name] == name
                checked += 1
    assert checked > 100


def test_the_judge_knows_of_no_block_that_differs_from_ours(judge):
    def size(block: BlockLayout) -> int:
        return sum(field.size for field in block.encoded_fields)

    for layout in LAYOUTS:
        fixed = judge.encode(layout, smallest(kind_of(layout)))
        assert len(fixed) == (8 if layout.has_header else 0) + size(layout) + layout.tail_bytes
        if layout.has_header:
            header = (layout.block_length, layout.template_id, layout.schema_id, layout.version)
            assert struct.unpack_from("<HHHH", fixed) == header


def test_a_missing_java_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(pytest.fail.Exception, match="java was not found"):
        built_judge()
    assert "apt-get install openjdk-17-jdk-headless maven" in NEEDED
