"""Encoding: exact bytes, and refusal of values without bytes."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorpool import sbe
from tensorpool.errors import CodecError, TensorPoolError

REQUEST = sbe.ShmAttachRequest(correlation_id=-2, stream_id=10000, client_id=7, role=sbe.Role.PRODUCER)
Loose: Any = sbe.Attribute  # for values that mypy would not let through
SUPERBLOCK = sbe.ShmRegionSuperblock(
    layout_version=1,
    epoch=2,
    stream_id=10000,
    region_type=sbe.RegionType.PAYLOAD_POOL,
    pool_id=3,
    nslots=8,
    slot_bytes=4096,
    stride_bytes=4096,
    pid=5,
    start_timestamp_ns=6,
    activity_timestamp_ns=7,
)


def refused(message: sbe.Message) -> CodecError:
    with pytest.raises(CodecError) as caught:
        message.encode()
    error = caught.value
    assert isinstance(error, TensorPoolError)
    assert isinstance(error, ValueError)
    assert error.message_name == message.layout().name
    assert error.offset is None
    return error


@pytest.mark.requirement("driver-4.2-5", "driver-4.2-7")
def test_attach_request_is_the_known_bytes():
    expected = (
        "1800 0100 8503 0100"  # block 24, template 1, schema 901, version 1
        "feffffffffffffff 10270000 07000000 01 00000000 00 ff ff"
    )
    assert REQUEST.encode() == bytes.fromhex(expected)


@pytest.mark.requirement("wire-10.1-1")
def test_absent_field_is_the_null_and_decodes_as_none():
    absent = sbe.FrameDescriptor(stream_id=1, epoch=2, seq=3)
    assert absent.encode()[8 + 20 :] == b"\xff" * 12 + bytes(8)
    assert sbe.FrameDescriptor.decode(absent.encode()) == absent
    present = replace(absent, timestamp_ns=0, meta_version=0, trace_id=1)
    assert sbe.FrameDescriptor.decode(present.encode()) == present


@pytest.mark.requirement("wire-10.1-2", "discovery-5.0-2")
def test_absent_var_data_has_length_zero_and_decodes_empty():
    config = sbe.ConsumerConfig(stream_id=1, consumer_id=2, use_shm=True, mode=sbe.Mode.STREAM)
    assert config.encode()[8 + 18 :] == bytes(12)
    assert sbe.ConsumerConfig.decode(config.encode()).descriptor_channel == ""


def test_value_equal_to_the_null_is_refused():
    error = refused(sbe.FrameDescriptor(stream_id=1, epoch=2, seq=3, meta_version=0xFFFFFFFF))
    assert error.field == "meta_version"
    assert "None" in error.reason


def test_trace_id_of_zero_means_none():
    traced = sbe.FrameDescriptor(stream_id=1, epoch=2, seq=3, trace_id=0)
    assert sbe.FrameDescriptor.decode(traced.encode()).trace_id is None


def test_required_fields_use_the_whole_range():
    widest = replace(SUPERBLOCK, slot_bytes=0xFFFFFFFF, stride_bytes=0, epoch=0xFFFFFFFFFFFFFFFF)
    assert sbe.ShmRegionSuperblock.decode(widest.encode()) == widest


@pytest.mark.requirement("wire-6-1")
def test_superblock_is_64_bytes_and_starts_with_the_magic():
    encoded = SUPERBLOCK.encode()
    assert len(encoded) == 64
    assert encoded[:8] == bytes.fromhex("314D48534C504F54")


@pytest.mark.requirement("wire-8.2-1", "wire-8.2-5")
def test_tensor_header_has_a_header_and_zero_filled_arrays():
    header = sbe.TensorHeader(
        dtype=sbe.Dtype.FLOAT32, major_order=sbe.MajorOrder.ROW, ndims=2, dims=(480, 640)
    )
    encoded = header.encode()
    assert len(encoded) == 192
    assert encoded[:8] == bytes.fromhex("b800 3400 8403 0100")
    assert sbe.TensorHeader.decode(encoded).dims == (480, 640, 0, 0, 0, 0, 0, 0)
    assert sbe.TensorHeader.decode(encoded).encode() == encoded


def test_numpy_numbers_and_integers_for_members_are_accepted():
    given: Any = {"stream_id": np.uint32(10000), "role": 1}
    request = replace(REQUEST, **given)
    assert request.encode() == REQUEST.encode()


@pytest.mark.parametrize(
    ("changes", "field", "expected_text"),
    [
        ({"stream_id": -1}, "stream_id", "not between 0 and 4294967295"),
        ({"stream_id": 1 << 32}, "stream_id", "not between"),
        ({"stream_id": 1.5}, "stream_id", "expected an integer"),
        ({"stream_id": None}, "stream_id", "expected an integer"),
        ({"stream_id": "1"}, "stream_id", "expected an integer"),
        ({"correlation_id": 1 << 63}, "correlation_id", "not between"),
        ({"role": 3}, "role", "3 is no Role"),
        ({"role": True}, "role", "True is no Role"),
        ({"role": None}, "role", "expected an integer"),
        ({"publish_mode": 255}, "publish_mode", "null value"),
        ({"publish_mode": 9}, "publish_mode", "is no PublishMode"),
        ({"require_hugepages": 1}, "require_hugepages", "expected a bool"),
    ],
)
def test_values_that_cannot_be_encoded_are_refused_by_name(changes, field, expected_text):
    error = refused(replace(REQUEST, **changes))
    assert error.field == field
    assert expected_text in error.reason


ANNOUNCE = sbe.DataSourceMeta(
    stream_id=1, meta_version=2, timestamp_ns=3, attributes=(sbe.Attribute(key="a"), sbe.Attribute(key="b"))
)


@pytest.mark.parametrize(
    ("entry", "field", "expected_text"),
    [
        (Loose(key="é"), "attributes[1].key", "'é' is not ASCII"),
        (Loose(key=b"raw"), "attributes[1].key", "expected a str"),
        (Loose(value="text"), "attributes[1].value", "expected bytes"),
        (Loose(value=5), "attributes[1].value", "expected bytes"),
        (sbe.Tag(tag="x"), "attributes[1].key", "a Tag has no such field"),
    ],
)
def test_invalid_group_entry_is_refused_with_its_index(entry, field, expected_text):
    error = refused(replace(ANNOUNCE, attributes=(sbe.Attribute(), entry)))
    assert error.field == field
    assert expected_text in error.reason


@pytest.mark.parametrize(
    ("entries", "expected_text"), [(5, "sequence"), ((sbe.Attribute(),) * 65535, "65534")]
)
def test_invalid_or_too_long_group_is_refused(entries, expected_text):
    error = refused(replace(ANNOUNCE, attributes=entries))
    assert error.field == "attributes"
    assert expected_text in error.reason


def test_arrays_and_data_that_are_too_long_are_refused():
    tensor = sbe.TensorHeader(dtype=sbe.Dtype.UINT8, major_order=sbe.MajorOrder.ROW, ndims=8, dims=(1,) * 9)
    assert refused(tensor).field == "dims"
    assert refused(replace(tensor, dims=(1 << 31,))).field == "dims"
    assert refused(replace(tensor, dims=(1,), pad=bytes(110))).field == "pad"
    wrong: Any = {"pad": "zeros"}
    assert refused(replace(tensor, dims=(1,), **wrong)).field == "pad"
    chunk = sbe.BridgeFrameChunk(
        stream_id=1,
        epoch=1,
        seq=1,
        chunk_index=0,
        chunk_count=1,
        chunk_offset=0,
        chunk_length=0,
        payload_length=0,
        header_included=True,
        header_bytes=bytes(256),
    )
    assert sbe.decode(chunk.encode()) == chunk
    assert "257 bytes exceed the maximum of 256" in refused(replace(chunk, header_bytes=bytes(257))).reason
    assert refused(replace(chunk, chunk_count=65536)).field == "chunk_count"


def test_bytes_field_accepts_any_buffer():
    meta = replace(ANNOUNCE, attributes=(Loose(value=memoryview(b"xyz")[1:]),))
    decoded = sbe.DataSourceMeta.decode(meta.encode())
    assert decoded.attributes[0].value == b"yz"


def test_encode_into_writes_in_place_and_returns_the_length():
    with mmap.mmap(-1, 4096) as region:
        assert SUPERBLOCK.encode_into(region) == 64
        assert SUPERBLOCK.encode_into(region, 4096 - 64) == 64
        assert region[:64] == region[-64:] == SUPERBLOCK.encode()
        assert sbe.ShmRegionSuperblock.decode(region) == SUPERBLOCK
        for offset in (4096 - 63, 5000, -1):
            with pytest.raises(CodecError) as caught:
                SUPERBLOCK.encode_into(region, offset)
            assert caught.value.offset == offset


def test_failed_decode_releases_a_memory_map():
    region = mmap.mmap(-1, 4096)
    with pytest.raises(CodecError) as caught:
        sbe.decode(region)
    region.close()  # would raise BufferError while a view, kept alive by the traceback, exports it
    assert caught.value.offset == 4


@pytest.mark.parametrize("name", ["caf\u00e9", "\udcff\udc80"])
def test_bytewise_names_keep_bytes_beyond_ascii(name):
    raw = name.encode("latin-1") if name.isprintable() else b"\xff\x80"
    text = raw.decode("ascii", "surrogateescape")
    source = sbe.DataSourceAnnounce(stream_id=1, producer_id=2, epoch=3, meta_version=4, name=text)
    encoded = source.encode()
    assert raw in encoded
    assert sbe.DataSourceAnnounce.decode(encoded) == source
    # A character that no byte stands for is refused all the same.
    assert refused(replace(source, name="caf\u00e9")).field == "name"
    assert refused(replace(source, name="", summary=text)).field == "summary"
