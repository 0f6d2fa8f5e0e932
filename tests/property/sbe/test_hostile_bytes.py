"""Decoding of arbitrary bytes returns a message or raises a `CodecError`, and nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import sbe
from tensorpool.errors import CodecError
from tests.property.sbe.reference_parser import parse
from tests.property.sbe.strategies import (
    HOSTILE,
    KINDS,
    LAYOUTS,
    TIMEOUT_SECONDS,
    class_of,
    largest,
    messages_of,
)

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
U32 = st.integers(0, 0xFFFFFFFF)
U16 = st.integers(0, 0xFFFF)


def outcome(kind, encoded):
    """Decodes. A message must encode to itself again; an error must be well formed."""
    try:
        message, end = kind.decode_prefix(encoded)
    except CodecError as error:
        check_error(error, encoded, kind.layout().name)
        return None
    assert end <= len(encoded)
    assert kind.decode(message.encode()) == message
    return message


def check_error(error, encoded, name):
    assert error.message_name == name
    assert error.field
    assert error.offset is not None
    assert 0 <= error.offset <= len(encoded)


def damaged(draw, kind, encoded):
    """One drawn kind of damage."""
    positions = parse(kind.layout(), encoded)
    kinds = ["truncate", "byte", "insert", "noise"]
    kinds += ["count", "group block"] * bool(positions.groups) + ["length"] * bool(positions.data)
    kinds += ["enum"] * bool(positions.enums) + ["header"] * kind.layout().has_header
    broken = bytearray(encoded)
    match draw(st.sampled_from(kinds)):
        case "truncate":
            del broken[draw(st.integers(0, len(broken) - 1)) :]
        case "byte":
            broken[draw(st.integers(0, len(broken) - 1))] = draw(st.integers(0, 255))
        case "insert":
            offset = draw(st.integers(0, len(broken)))
            broken[offset:offset] = draw(st.binary(min_size=1, max_size=8))
        case "noise":
            keep = draw(st.integers(0, min(len(broken), 8)))
            broken[keep:] = draw(st.binary(max_size=200))
        case "count":
            struct.pack_into("<H", broken, draw(st.sampled_from(positions.groups))[1] + 2, draw(U16))
        case "group block":
            struct.pack_into("<H", broken, draw(st.sampled_from(positions.groups))[1], draw(U16))
        case "length":
            struct.pack_into("<I", broken, draw(st.sampled_from(positions.data))[1], draw(U32))
        case "enum":
            _, offset, field = draw(st.sampled_from(positions.enums))
            broken[offset : offset + field.size] = draw(st.binary(min_size=field.size, max_size=field.size))
        case "header":
            struct.pack_into("<H", broken, draw(st.sampled_from([0, 2, 4, 6])), draw(U16))
    return bytes(broken)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_damaged_message_is_refused_or_decoded(kind):
    @HOSTILE
    @given(st.data())
    def check(data):
        broken = damaged(data.draw, kind, data.draw(messages_of(kind)).encode())
        decoded = outcome(kind, broken)
        # Other bytes around the message must not change the result.
        around = memoryview(b"\x01" * 7 + broken + b"\x01" * 7)[7 : 7 + len(broken)]
        assert outcome(kind, around) == decoded

    check()


@HOSTILE
@given(
    st.binary(max_size=300),
    st.sampled_from(LAYOUTS),
    st.one_of(st.none(), st.binary(max_size=300)),
)
def test_random_bytes_raise_only_codec_errors(noise, layout, tail):
    if tail is not None:
        header = (layout.block_length, layout.template_id, layout.schema_id, layout.version)
        noise = struct.pack("<HHHH", *header) + tail
    try:
        sbe.decode(noise)
    except CodecError as error:
        # After a whole header the error has the message name, unless the message has no header on the wire.
        named = tail is not None and layout.has_header
        check_error(error, noise, layout.name if named else error.message_name)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.schema}-{layout.name}")
def test_message_truncated_at_any_byte_is_refused(layout):
    kind = class_of(layout)
    message = largest(kind, count=2, size=9)
    encoded = message.encode()
    assert kind.decode(encoded) == message
    # The other bytes follow the view: a decoder that reads past the end would not fail otherwise.
    whole = memoryview(encoded)
    for end in range(len(encoded)):
        with pytest.raises(CodecError) as caught:
            kind.decode(whole[:end])
        assert caught.value.message_name == layout.name
        assert caught.value.field
        assert caught.value.offset is not None
        assert caught.value.offset <= end


@pytest.mark.requirement("wire-15.8-1", "driver-4.9-8")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unknown_enum_value_is_refused_with_field_and_offset(kind):
    encoded = largest(kind, count=2, size=2).encode()
    for path, offset, field in parse(kind.layout(), encoded).enums:
        assert field.enum is not None
        low = -128 if field.primitive.startswith("i") else 0
        known = {*field.enum.members.values(), *([field.null] if field.optional else [])}
        for value in {low, 100, 127, *([254, 255] if low == 0 else [-1])} - known:
            broken = bytearray(encoded)
            broken[offset : offset + field.size] = value.to_bytes(field.size, "little", signed=low < 0)
            with pytest.raises(CodecError) as caught:
                kind.decode(broken)
            assert (caught.value.message_name, caught.value.field) == (kind.layout().name, path)
            assert caught.value.offset == offset


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures_stay_fixed(path):
    case = json.loads(path.read_text())
    encoded = bytes.fromhex("".join(case["hex"]))
    decode = getattr(sbe, case["message"]).decode if case["message"] else sbe.decode
    if case["error"] is None:
        again = decode(encoded)
        assert type(again).decode(again.encode()) == again
        return
    with pytest.raises(CodecError) as caught:
        decode(encoded)
    error = caught.value
    actual = {"message_name": error.message_name, "field": error.field, "offset": error.offset}
    assert actual == case["error"]
