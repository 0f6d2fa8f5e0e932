"""Arrow IPC messages, as bytes in a file.

Arrow encodes a batch's metadata (a flatbuffer) once, for a sample. For each batch to be written only the
numbers in it are changed, in place. That gives what Arrow's own writer does not: buffers at multiples of
64 bytes, payload bytes that nobody copies, and a checksum in each message. Any Arrow reader reads them.

The columns of a frame's row, and those of the tables beside them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import pyarrow as pa

from .. import _native
from . import layout

CONTINUATION: Final = b"\xff\xff\xff\xff"
END_OF_STREAM: Final = CONTINUATION + b"\0\0\0\0"
_PREFIX: Final = struct.Struct("<II")
_I64: Final = struct.Struct("<q")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")
_RECORD_BATCH: Final = 3

# The value under CHECK_KEY: the checksum, and how many bytes of the body it covers beside the metadata.
# Its own eight digits count as zeros. Fixed width, so that it can be changed in place.
_NO_CHECK: Final = b"00000000:000000000000"
_CRC_DIGITS: Final = 8
_ZEROS: Final = b"0" * _CRC_DIGITS


class BadMessage(Exception):
    """Bytes that are no message of ours, or a changed one."""


class MessageOffsets(NamedTuple):
    """Where in a record batch's metadata its numbers stand, and what they are now."""

    body_bytes: int
    body_bytes_at: int
    rows: int
    rows_at: int
    nodes_at: int
    node_count: int
    buffers_at: int
    buffer_count: int
    check_at: int


def find_offsets(metadata: memoryview | bytes | bytearray) -> MessageOffsets:
    """Walks the flatbuffer of a record batch message. Whatever does not fit is a BadMessage."""
    try:
        root = _U32.unpack_from(metadata, 0)[0]
        message = _fields(metadata, root, 5)
        if 0 in message[1:] or metadata[message[1]] != _RECORD_BATCH:
            raise BadMessage("is no record batch with a checksum")
        batch = _fields(metadata, _follow(metadata, message[2]), 4)
        if batch[3]:
            raise BadMessage("is compressed")
        nodes = _follow(metadata, batch[1])
        buffers = _follow(metadata, batch[2])
        body_bytes = _I64.unpack_from(metadata, message[3])[0]
        rows = _I64.unpack_from(metadata, batch[0])[0] if batch[0] else 0
        if body_bytes < 0 or rows < 0:
            raise BadMessage("has a negative size")
        return MessageOffsets(
            body_bytes=body_bytes,
            body_bytes_at=message[3],
            rows=rows,
            rows_at=batch[0],
            nodes_at=nodes + 4,
            node_count=_U32.unpack_from(metadata, nodes)[0],
            buffers_at=buffers + 4,
            buffer_count=_U32.unpack_from(metadata, buffers)[0],
            check_at=_find_check(metadata, _follow(metadata, message[4])),
        )
    except (struct.error, IndexError) as error:
        raise BadMessage("has metadata that cannot be read") from error


def _follow(data: memoryview | bytes | bytearray, at: int) -> int:
    if at == 0:
        raise BadMessage("lacks a part")
    return at + int(_U32.unpack_from(data, at)[0])


def _fields(data: memoryview | bytes | bytearray, table: int, count: int) -> list[int]:
    """Positions of a table's first fields; 0 for those that are not there."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise BadMessage("has metadata that cannot be read")
    known = (_U16.unpack_from(data, vtable)[0] - 4) // 2
    offsets = [_U16.unpack_from(data, vtable + 4 + 2 * i)[0] if i < known else 0 for i in range(count)]
    return [table + offset if offset else 0 for offset in offsets]


def _find_check(data: memoryview | bytes | bytearray, vector: int) -> int:
    for i in range(min(_U32.unpack_from(data, vector)[0], 64)):
        key, value = _fields(data, _follow(data, vector + 4 + 4 * i), 2)
        key, value = _follow(data, key), _follow(data, value)
        size = _U32.unpack_from(data, key)[0]
        if bytes(data[key + 4 : key + 4 + size]) == layout.CHECK_KEY:
            if _U32.unpack_from(data, value)[0] != len(_NO_CHECK):
                raise BadMessage("has a checksum of another form")
            return value + 4
    raise BadMessage("has no checksum")


def schema_message(schema: pa.Schema) -> bytes:
    """The first message of a stream, padded so that the next begins at a multiple of 64."""
    return _framed(schema.serialize().to_pybytes()[_PREFIX.size :])


def _framed(metadata: bytes) -> bytes:
    size = layout.aligned(_PREFIX.size + len(metadata)) - _PREFIX.size
    return CONTINUATION + _U32.pack(size) + metadata.ljust(size, b"\0")


def sample_message(batch: pa.RecordBatch) -> bytes:
    """Prefix and metadata of a batch as Arrow encodes it, with room for a checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={layout.CHECK_KEY: _NO_CHECK})
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)
    return _framed(pa.ipc.read_message(reader).metadata.to_pybytes())


def seal_check(message: bytearray, check_at: int, body: memoryview, covered: int) -> None:
    """Puts the checksum over metadata and the first `covered` bytes of the body where it belongs."""
    at = _PREFIX.size + check_at
    message[at : at + len(_NO_CHECK)] = b"%s:%012x" % (_ZEROS, covered)
    crc = _native.crc32c(body[:covered], _native.crc32c(memoryview(message)[_PREFIX.size :]))
    message[at : at + _CRC_DIGITS] = b"%08x" % crc


def check(metadata: memoryview, check_at: int, body: memoryview) -> None:
    """Raises BadMessage unless metadata and body are what was written."""
    value = bytes(metadata[check_at : check_at + len(_NO_CHECK)])
    try:
        crc, covered = int(value[:_CRC_DIGITS], 16), int(value[_CRC_DIGITS + 1 :], 16)
    except ValueError as error:
        raise BadMessage("has a checksum that is no number") from error
    got = _native.crc32c(metadata[:check_at])
    got = _native.crc32c(_ZEROS, got)
    got = _native.crc32c(metadata[check_at + _CRC_DIGITS :], got)
    got = _native.crc32c(body[:covered], got)
    if covered > len(body) or got != crc:
        raise BadMessage("was changed: its checksum does not fit")


def read_prefix(data: memoryview, at: int) -> int | None:
    """Bytes of the metadata that follow; 0 at the end of the stream, None where there is no message."""
    if at + _PREFIX.size > len(data):
        return None
    mark, size = _PREFIX.unpack_from(data, at)
    return int(size) if mark == 0xFFFF_FFFF else None


PREFIX_BYTES: Final = _PREFIX.size


def whole_message(batch: pa.RecordBatch) -> bytes:
    """A small batch as one message with a checksum over all of it. Copies; for the tables."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={layout.CHECK_KEY: _NO_CHECK})
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)
    message = pa.ipc.read_message(reader)
    places = find_offsets(memoryview(message.metadata))
    body = bytearray(memoryview(message.body))
    body += bytes(layout.aligned(len(body)) - len(body))
    framed = bytearray(_framed(message.metadata.to_pybytes()))
    _I64.pack_into(framed, PREFIX_BYTES + places.body_bytes_at, len(body))
    seal_check(framed, places.check_at, memoryview(body), len(body))
    return bytes(framed + body)


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


# Unsigned numbers are stored as signed ones, since Spark has no others: 64-bit ones with the same bits,
# smaller ones with the same value. The payload comes last: what is before it is small and has one checksum.
FRAMES: Final = pa.schema(
    [
        _column("stream_id", pa.int64()),
        _column("epoch", pa.int64()),
        _column("seq", pa.int64()),
        _column("timestamp_ns", pa.int64()),
        _column("publish_timestamp_ns", pa.int64(), nullable=True),
        _column("receive_time_ns", pa.int64()),
        _column("meta_version", pa.int64()),
        _column("trace_id", pa.int64(), nullable=True),
        _column("dtype", pa.utf8()),
        _column("shape", _list(pa.int32())),
        _column("strides", _list(pa.int64())),
        _column("major_order", pa.utf8()),
        _column("payload_bytes", pa.int64()),
        _column("crc32c", pa.int64()),
        _column("payload", pa.binary()),
    ]
)

_MESSAGES: Final = pa.schema(
    [
        _column("receive_time_ns", pa.int64()),
        _column("stream_id", pa.int64()),
        _column("epoch", pa.int64(), nullable=True),
        _column("meta_version", pa.int64(), nullable=True),
        _column("kind", pa.utf8()),
        _column("message", pa.binary()),
        _column("json", pa.utf8(), nullable=True),
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "gaps": pa.schema(
        [
            _column("time_ns", pa.int64()),
            _column("stream_id", pa.int64()),
            _column("epoch", pa.int64()),
            _column("first_seq", pa.int64()),
            _column("count", pa.int64()),
            _column("reason", pa.utf8()),
        ]
    ),
    "anchors": pa.schema(
        [
            _column("wall_ns", pa.int64()),
            _column("monotonic_ns", pa.int64()),
            _column("host", pa.utf8()),
            _column("boot_id", pa.utf8()),
        ]
    ),
    "marks": pa.schema(
        [
            _column("time_ns", pa.int64()),
            _column("stream_id", pa.int64(), nullable=True),
            _column("label", pa.utf8()),
        ]
    ),
    "metadata": _MESSAGES,
    "qos": _MESSAGES,
    "announces": _MESSAGES,
}


def versioned(schema: pa.Schema, **more: int) -> pa.Schema:
    """The schema with the format's version, and other numbers, among its metadata."""
    metadata = {layout.VERSION_KEY: str(layout.VERSION), layout.MINOR_KEY: str(layout.MINOR)}
    metadata |= {f"tensorpool.recording.{key}".encode(): str(value) for key, value in more.items()}
    return schema.with_metadata(metadata)


def places_of(schema: pa.Schema) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Column → its first node and its first buffer in a batch, and how many of both there are."""
    found, nodes, buffers = {}, 0, 0
    for field in schema:
        found[field.name] = nodes, buffers
        more_nodes, more_buffers = _counts(field.type)
        nodes, buffers = nodes + more_nodes, buffers + more_buffers
    return found, nodes, buffers


def _counts(kind: pa.DataType) -> tuple[int, int]:
    if kind.num_fields:
        children = [_counts(kind.field(number).type) for number in range(kind.num_fields)]
        own = 1 if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind) else 2
        return 1 + sum(one[0] for one in children), own + sum(one[1] for one in children)
    is_variable = kind in (pa.binary(), pa.utf8(), pa.large_binary(), pa.large_utf8())
    return 1, 3 if is_variable else 2
