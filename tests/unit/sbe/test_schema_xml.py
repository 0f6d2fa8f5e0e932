"""Refusal of schemas that the codecs do not support."""

from __future__ import annotations

import pytest

from tensorpool.sbe.schema_xml import SchemaError, parse_schema

WHOLE = """
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" xmlns:tp="urn:tensorpool:sbe"
                   package="p" id="1" version="1" byteOrder="littleEndian">
  <types>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="numInGroup" primitiveType="uint16"/>
    </composite>
    <type name="opt" primitiveType="uint32" presence="optional" nullValue="7"/>
  </types>
  <sbe:message name="M" id="2" blockLength="8">
    <field name="a" id="1" type="uint32"/>
    <field name="b" id="2" type="opt" presence="optional"/>
    <group name="g" id="3" dimensionType="groupSizeEncoding"><field name="c" id="1" type="int8"/></group>
  </sbe:message>
</sbe:messageSchema>
"""


def test_whole_schema_is_read():
    message = parse_schema("s", WHOLE).messages["M"]
    assert (message.block_length, message.template_id, message.field("b").null) == (8, 2, 7)
    assert message.groups[0].block_length == 1


@pytest.mark.parametrize(
    ("old", "new", "expected_text"),
    [
        ("littleEndian", "bigEndian", "only littleEndian"),
        ('blockLength="8"', 'blockLength="12"', "block of 12 bytes, its fields take 8"),
        ('name="a" id="1" type="uint32"', 'name="a" id="1" type="float"', "unknown type float"),
        ('type="opt" presence="optional"', 'type="opt"', "disagree on presence"),
        ('<field name="c" id="1" type="int8"/>', "", "take no bytes"),
        ('"numInGroup" primitiveType="uint16"', '"numInGroup" primitiveType="uint8"', "composite"),
        ("sbe:messageSchema", "sbe:other", "root element"),
        ('<type name="opt"', '<set name="flags" encodingType="uint8"/><type name="opt"', "<set>"),
    ],
)
def test_unsupported_schema_is_refused(old, new, expected_text):
    assert old in WHOLE
    with pytest.raises(SchemaError, match=expected_text):
        parse_schema("s", WHOLE.replace(old, new))


def test_message_defined_twice_is_refused():
    start, end = WHOLE.index("<sbe:message name"), WHOLE.index("</sbe:messageSchema>")
    with pytest.raises(SchemaError, match="defined twice"):
        parse_schema("s", WHOLE[:end] + WHOLE[start:end] + WHOLE[end:])
