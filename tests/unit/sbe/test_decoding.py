"""Decoding: choice of the class, block lengths of other revisions, refusal of malformed messages."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace

import pytest

from tensorpool import sbe
from tensorpool.errors import CodecError

REQUEST = sbe.ShmAttachRequest(correlation_id=77, stream_id=10000, client_id=7, role=sbe.Role.CONSUMER)
REQUEST_R2 = sbe.ShmAttachRequestR2(
    correlation_id=77, stream_id=10000, client_id=7, role=sbe.Role.CONSUMER, desired_node_id=1
)
ANNOUNCE = sbe.ShmPoolAnnounce(
    stream_id=1,
    producer_id=2,
    epoch=3,
    announce_timestamp_ns=4,
    announce_clock_domain=sbe.ClockDomain.MONOTONIC,
    layout_version=1,
    header_nslots=8,
    header_slot_bytes=256,
    payload_pools=(
        sbe.PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=64, region_uri="shm:file?path=/a"),
        sbe.PayloadPool(pool_id=2, pool_nslots=8, stride_bytes=128, region_uri="shm:file?path=/b"),
    ),
    header_region_uri="shm:file?path=/h",
)
FIND = sbe.DiscoveryRequest(
    request_id=1,
    client_id=2,
    response_stream_id=3,
    response_channel="aeron:ipc",
    tags=(sbe.Tag(tag="a"), sbe.Tag(tag="bc")),
)


def patched(encoded: bytes, offset: int, code: str, *values: int) -> bytes:
    changed = bytearray(encoded)
    struct.pack_into(f"<{code}", changed, offset, *values)
    return bytes(changed)


def refused(encoded, decode=sbe.decode) -> CodecError:
    with pytest.raises(CodecError) as caught:
        decode(encoded)
    return caught.value


@pytest.mark.parametrize(("message", "block"), [(REQUEST, 24), (REQUEST_R2, 27)])
def test_exact_block_length_decides_the_revision(message, block):
    encoded = message.encode()
    assert sbe.read_header(encoded) == (block, 1, 901, 1)
    assert sbe.decode(encoded) == message


def test_message_class_refuses_bytes_of_another_revision():
    error = refused(REQUEST_R2.encode(), sbe.ShmAttachRequest.decode)
    assert (error.message_name, error.field, error.offset) == ("ShmAttachRequest", "block_length", 0)
    assert "ShmAttachRequestR2" in error.reason
    assert "ShmAttachRequest" in refused(REQUEST.encode(), sbe.ShmAttachRequestR2.decode).reason


@pytest.mark.parametrize("longer", [25, 26, 28, 60])
def test_longer_block_is_the_specified_revision_with_a_tail(longer):
    encoded = REQUEST.encode() + b"\x99" * (longer - 24)
    assert sbe.decode(patched(encoded, 0, "H", longer)) == REQUEST


@pytest.mark.parametrize("shorter", [0, 8, 23])
def test_shorter_block_is_malformed(shorter):
    error = refused(patched(REQUEST.encode(), 0, "H", shorter))
    assert (error.message_name, error.field, error.offset) == ("ShmAttachRequest", "block_length", 0)


def test_tails_of_longer_group_entries_are_skipped():
    encoded = bytearray(ANNOUNCE.encode())
    group = 8 + 35
    struct.pack_into("<H", encoded, group, 13)
    first = group + 4 + 10
    encoded[first:first] = b"\x99" * 3
    second = first + 3 + 4 + len("shm:file?path=/a") + 10
    encoded[second:second] = b"\x99" * 3
    assert sbe.decode(encoded) == ANNOUNCE
    error = refused(patched(ANNOUNCE.encode(), group, "H", 9))
    assert (error.field, error.offset) == ("payload_pools", group)


def test_tag_group_block_may_include_the_length_prefix():
    encoded = FIND.encode()
    group = 8 + 32
    assert struct.unpack_from("<HH", encoded, group) == (0, 2)
    assert sbe.decode(patched(encoded, group, "H", 4)) == FIND
    nested = sbe.DiscoveryResponse(
        request_id=1,
        status=sbe.DiscoveryStatus.OK,
        results=(
            sbe.DiscoveryResult(
                stream_id=1,
                producer_id=2,
                epoch=3,
                layout_version=1,
                header_nslots=8,
                header_slot_bytes=256,
                max_dims=8,
                driver_control_stream_id=1000,
                driver_control_channel="aeron:ipc",
                tags=FIND.tags,
            ),
        ),
    )
    tags = 8 + 9 + 4 + 39 + 4
    assert struct.unpack_from("<HH", nested.encode(), tags) == (0, 2)
    assert sbe.decode(patched(nested.encode(), tags, "H", 4)) == nested


@pytest.mark.requirement("discovery-4.2-1", "discovery-10-4", "service-5-2")
@pytest.mark.parametrize(
    ("offset", "value", "field", "expected_text"),
    [
        (4, 899, "schema_id", "unknown schema id 899"),
        (4, 0, "schema_id", "unknown schema id 0"),
        (2, 99, "template_id", "no message with template id 99"),
        (2, 50, "template_id", "no message with template id 50"),
    ],
)
def test_foreign_schema_or_template_is_refused(offset, value, field, expected_text):
    encoded = patched(ANNOUNCE.encode(), offset, "H", value)
    error = refused(encoded)
    assert (error.message_name, error.field, error.offset) == ("MessageHeader", field, offset)
    assert expected_text in error.reason
    assert refused(encoded, sbe.ShmPoolAnnounce.decode).field == field


@pytest.mark.requirement("discovery-10-1", "discovery-10-2", "discovery-10-3", "discovery-10-4")
@pytest.mark.parametrize("message", [FIND, ANNOUNCE, REQUEST])
@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_schema_version_is_refused(message, version):
    error = refused(patched(message.encode(), 6, "H", version))
    assert (error.message_name, error.field, error.offset) == (type(message).__name__, "version", 6)


@pytest.mark.parametrize("count", [3, 100, 65534, 65535])
def test_bad_count_is_refused_before_allocation(count):
    encoded = patched(ANNOUNCE.encode(), 8 + 35 + 2, "H", count)
    refused(encoded)  # compiled and warm
    tracemalloc.start()
    error = refused(encoded)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.message_name == "ShmPoolAnnounce"
    assert str(error.field).startswith("payload_pools")
    assert peak < 20_000


@pytest.mark.parametrize("length", [17, 1 << 20, (1 << 30) + 1, 0xFFFFFFFF])
def test_bad_length_is_refused_before_allocation(length):
    at = len(ANNOUNCE.encode()) - 20
    encoded = patched(ANNOUNCE.encode(), at, "I", length)
    tracemalloc.start()
    error = refused(encoded)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (error.field, error.offset) == ("header_region_uri", at)
    assert peak < 20_000


def test_null_count_is_refused_even_with_enough_bytes():
    encoded = patched(
        sbe.TraceLinkSet(stream_id=1, epoch=2, seq=3, trace_id=4).encode(), 8 + 28 + 2, "H", 65535
    )
    assert refused(encoded + bytes(8 * 65535)).field == "parents"


@pytest.mark.requirement("bridge-5.2-2")
def test_values_above_the_schemas_maximum_are_refused():
    chunk = sbe.BridgeFrameChunk(
        stream_id=1,
        epoch=1,
        seq=1,
        chunk_index=0,
        chunk_count=65535,
        chunk_offset=0,
        chunk_length=0,
        payload_length=0,
        header_included=False,
    )
    at = 8 + chunk.layout().field("chunkCount").offset
    assert sbe.decode(chunk.encode()) == chunk
    error = refused(patched(chunk.encode(), at, "I", 65536))
    assert (error.field, error.offset) == ("chunk_count", at)
    header = 8 + 41
    longer = patched(chunk.encode() + bytes(300), header, "I", 257)
    assert "maximum of 256" in refused(longer).reason


def test_text_that_is_not_ascii_is_refused_at_the_byte():
    encoded = bytearray(ANNOUNCE.encode())
    encoded[-3] = 0xE9
    error = refused(encoded)
    assert (error.field, error.offset) == ("header_region_uri", len(encoded) - 3)
    assert "0xe9" in error.reason


def test_bytes_after_a_message_are_ignored():
    encoded = REQUEST.encode()
    assert sbe.decode_prefix(encoded + b"more") == (REQUEST, len(encoded))
    assert sbe.ShmAttachRequest.decode_prefix(encoded + b"more") == (REQUEST, len(encoded))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind):
    assert sbe.decode(kind(ANNOUNCE.encode())) == ANNOUNCE


def test_correlation_id_is_read_from_undecodable_messages():
    encoded = REQUEST.encode()
    assert sbe.read_correlation_id(encoded) == 77
    assert sbe.read_correlation_id(patched(encoded, 6, "H", 9)) == 77  # a version of the future
    assert sbe.read_correlation_id(patched(encoded, 8 + 16, "B", 9)) == 77  # an unknown role
    assert sbe.read_correlation_id(patched(encoded, 0, "H", 8)[:16]) == 77  # truncated
    assert sbe.read_correlation_id(replace(REQUEST, correlation_id=-1).encode()) == -1
    event = sbe.EventMessage(timestamp_ns=1, correlation_id=5, format=sbe.Format.NOTHING)
    assert sbe.read_correlation_id(event.encode()) == 5
    assert sbe.read_correlation_id(encoded[:15]) is None
    assert sbe.read_correlation_id(patched(encoded, 0, "H", 7)) is None
    assert sbe.read_correlation_id(patched(encoded, 4, "H", 1)) is None
    assert sbe.read_correlation_id(ANNOUNCE.encode()) is None
    assert sbe.read_correlation_id(b"") is None


def test_codec_error_text_is_a_sentence():
    error = refused(ANNOUNCE.encode()[:70])
    assert str(error).startswith("ShmPoolAnnounce.payload_pools")
    assert " at byte " in str(error)
    assert str(refused(b"")).startswith("MessageHeader")
