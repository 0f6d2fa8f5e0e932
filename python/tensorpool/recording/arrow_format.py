"""Arrow schemas of frames and tables, and the bytes of Arrow IPC messages. Pure.

pyarrow encodes the metadata of a record batch (a flatbuffer) once, as a template. Each batch is a copy of the
template with its own numbers, which are changed in place. The messages have three properties that pyarrow's
IPC writer does not offer together: buffers at multiples of 64 bytes in the file, payload bytes that are never
copied, and a checksum in each message. Any Arrow reader reads them. `docs/decisions/dependencies.md` has the
measurements behind this choice.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias, TypedDict

import pyarrow as pa

from .. import _native
from . import layout

CONTINUATION: Final = b"\xff\xff\xff\xff"
"""The first four bytes of a message in an Arrow stream."""
CONTINUATION_NUMBER: Final = int.from_bytes(CONTINUATION, "little")
END_OF_STREAM: Final = CONTINUATION + b"\0\0\0\0"
_PREFIX: Final = struct.Struct("<II")
PREFIX_BYTES: Final = _PREFIX.size
_I64: Final = struct.Struct("<q")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")
_RECORD_BATCH: Final = 3
"""The kind of a message, in Arrow's Message.fbs."""
# Fields of the tables that are read, in the order of Arrow's schemas: version, kind, header, size of the body
# and custom metadata of a message; rows, nodes, buffers and compression of a record batch; key and value.
_MESSAGE_FIELDS: Final = 5
_BATCH_FIELDS: Final = 4
_KEY_VALUE_FIELDS: Final = 2
# A vtable begins with two sizes. Vectors and texts begin with their length, and offsets have 32 bits.
_VTABLE_HEAD_BYTES: Final = 4

# The value under CHECK_KEY: the checksum, a colon, and the number of body bytes that it covers beside the
# metadata. The checksum's own eight digits count as zeros. The width is fixed: the value changes in place.
_EMPTY_CHECK: Final = b"00000000:000000000000"
_CRC_DIGITS: Final = 8
_ZEROS: Final = b"0" * _CRC_DIGITS
_MAX_METADATA_KEYS: Final = 64


class InvalidMessage(Exception):
    """Bytes that are not a record batch message of a recording, or were changed."""


class MessageOffsets(NamedTuple):
    """Positions of the numbers in a record batch's metadata, with the present size and row count."""

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
    """Positions of the numbers in a record batch's flatbuffer. Raises InvalidMessage."""
    try:
        root = _U32.unpack_from(metadata, 0)[0]
        _, kind_at, header_at, body_bytes_at, custom_at = _fields(metadata, root, _MESSAGE_FIELDS)
        if 0 in (kind_at, header_at, body_bytes_at, custom_at) or metadata[kind_at] != _RECORD_BATCH:
            raise InvalidMessage("is not a record batch with a checksum")
        batch = _follow(metadata, header_at)
        rows_at, nodes_at, buffers_at, compression_at = _fields(metadata, batch, _BATCH_FIELDS)
        if compression_at:
            raise InvalidMessage("is compressed")
        nodes = _follow(metadata, nodes_at)
        buffers = _follow(metadata, buffers_at)
        body_bytes = _I64.unpack_from(metadata, body_bytes_at)[0]
        rows = _I64.unpack_from(metadata, rows_at)[0] if rows_at else 0
        if body_bytes < 0 or rows < 0:
            raise InvalidMessage("has a negative size")
        return MessageOffsets(
            body_bytes=body_bytes,
            body_bytes_at=body_bytes_at,
            rows=rows,
            rows_at=rows_at,
            nodes_at=nodes + _U32.size,
            node_count=_U32.unpack_from(metadata, nodes)[0],
            buffers_at=buffers + _U32.size,
            buffer_count=_U32.unpack_from(metadata, buffers)[0],
            check_at=_find_checksum(metadata, _follow(metadata, custom_at)),
        )
    except (struct.error, IndexError) as error:
        raise InvalidMessage("has unreadable metadata") from error


def _follow(data: memoryview | bytes | bytearray, at: int) -> int:
    if at == 0:
        raise InvalidMessage("has incomplete metadata")
    return at + int(_U32.unpack_from(data, at)[0])


def _fields(data: memoryview | bytes | bytearray, table: int, count: int) -> list[int]:
    """Positions of a flatbuffer table's first fields; 0 for absent fields."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise InvalidMessage("has unreadable metadata")
    known = (_U16.unpack_from(data, vtable)[0] - _VTABLE_HEAD_BYTES) // _U16.size
    first = vtable + _VTABLE_HEAD_BYTES
    offsets = [_U16.unpack_from(data, first + _U16.size * i)[0] if i < known else 0 for i in range(count)]
    return [table + offset if offset else 0 for offset in offsets]


def _find_checksum(data: memoryview | bytes | bytearray, vector: int) -> int:
    for i in range(min(_U32.unpack_from(data, vector)[0], _MAX_METADATA_KEYS)):
        key, value = _fields(data, _follow(data, vector + _U32.size * (1 + i)), _KEY_VALUE_FIELDS)
        key, value = _follow(data, key), _follow(data, value)
        size = _U32.unpack_from(data, key)[0]
        text = key + _U32.size
        if bytes(data[text : text + size]) == layout.CHECK_KEY:
            if _U32.unpack_from(data, value)[0] != len(_EMPTY_CHECK):
                raise InvalidMessage("has a checksum of unknown format")
            return value + _U32.size
    raise InvalidMessage("has no checksum")


def schema_message(schema: pa.Schema) -> bytes:
    """The first message of a file, padded so that the next one begins at a multiple of 64 bytes."""
    return _framed(schema.serialize().to_pybytes()[PREFIX_BYTES:])


def _framed(metadata: bytes) -> bytes:
    size = layout.aligned(PREFIX_BYTES + len(metadata)) - PREFIX_BYTES
    return CONTINUATION + _U32.pack(size) + metadata.ljust(size, b"\0")


def template_message(batch: pa.RecordBatch) -> bytes:
    """Prefix and metadata of a batch as pyarrow encodes it, with an empty checksum."""
    return _framed(_ipc_message(batch).metadata.to_pybytes())


def batch_message(batch: pa.RecordBatch) -> bytes:
    """A small batch as one message with a checksum over all of it. Copies the batch; used for tables."""
    message = _ipc_message(batch)
    offsets = find_offsets(memoryview(message.metadata))
    body = bytearray(memoryview(message.body))
    body += bytes(layout.aligned(len(body)) - len(body))
    framed = bytearray(_framed(message.metadata.to_pybytes()))
    _I64.pack_into(framed, PREFIX_BYTES + offsets.body_bytes_at, len(body))
    write_checksum(framed, offsets.check_at, memoryview(body), len(body))
    return bytes(framed + body)


def _ipc_message(batch: pa.RecordBatch) -> pa.Message:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={layout.CHECK_KEY: _EMPTY_CHECK})
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)  # The schema.
    return pa.ipc.read_message(reader)


def write_checksum(message: bytearray, check_at: int, body: memoryview, covered: int) -> None:
    """Stores the checksum over the metadata and the first `covered` bytes of the body in the message."""
    at = PREFIX_BYTES + check_at
    message[at : at + len(_EMPTY_CHECK)] = b"%s:%012x" % (_ZEROS, covered)
    crc = _native.crc32c(body[:covered], _native.crc32c(memoryview(message)[PREFIX_BYTES:]))
    message[at : at + _CRC_DIGITS] = b"%08x" % crc


def verify_checksum(metadata: memoryview, check_at: int, body: memoryview) -> None:
    """Raises InvalidMessage if the metadata or the covered part of the body were changed."""
    value = bytes(metadata[check_at : check_at + len(_EMPTY_CHECK)])
    try:
        crc, covered = int(value[:_CRC_DIGITS], 16), int(value[_CRC_DIGITS + 1 :], 16)
    except ValueError as error:
        raise InvalidMessage("has a checksum that is not a number") from error
    actual = _native.crc32c(metadata[:check_at])
    actual = _native.crc32c(_ZEROS, actual)
    actual = _native.crc32c(metadata[check_at + _CRC_DIGITS :], actual)
    actual = _native.crc32c(body[:covered], actual)
    if covered > len(body) or actual != crc:
        raise InvalidMessage("was changed: its checksum does not match")


def read_prefix(data: memoryview, at: int) -> int | None:
    """Size of the metadata that follows the prefix; 0 at the end of the stream, None without a prefix."""
    if at + PREFIX_BYTES > len(data):
        return None
    mark, size = _PREFIX.unpack_from(data, at)
    return int(size) if mark == CONTINUATION_NUMBER else None


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


# Spark has no unsigned types. So unsigned 64-bit numbers are stored as the signed numbers with the same bits,
# smaller ones with the same value. The payload comes last: one checksum covers the small columns before it.
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
    "events": pa.schema(
        [
            _column("receive_time_ns", pa.int64()),
            _column("time_ns", pa.int64()),
            _column("tag", pa.utf8()),
            _column("key", pa.utf8()),
            _column("kind", pa.utf8()),
            _column("correlation_id", pa.int64()),
            _column("trace_id", pa.int64(), nullable=True),
            _column("message", pa.binary()),
            _column("json", pa.utf8(), nullable=True),
        ]
    ),
}


class GapTableRow(TypedDict):
    """A row of `gaps`."""

    time_ns: int
    stream_id: int
    epoch: int
    first_seq: int
    count: int
    reason: str


class AnchorTableRow(TypedDict):
    """A row of `anchors`."""

    wall_ns: int
    monotonic_ns: int
    host: str
    boot_id: str


class MarkTableRow(TypedDict):
    """A row of `marks`."""

    time_ns: int
    stream_id: int | None
    label: str


class MessageTableRow(TypedDict):
    """A row of `metadata`, `qos` or `announces`."""

    receive_time_ns: int
    stream_id: int
    epoch: int | None
    meta_version: int | None
    kind: str
    message: bytes
    json: str | None


class EventTableRow(TypedDict):
    """A row of `events`."""

    receive_time_ns: int
    time_ns: int
    tag: str
    key: str
    kind: str
    correlation_id: int
    trace_id: int | None
    message: bytes
    json: str | None


TableRow: TypeAlias = GapTableRow | AnchorTableRow | MarkTableRow | MessageTableRow | EventTableRow
"""A row of any table. Each class above has the columns of its schema in `TABLES`; 64-bit ids are signed."""


def with_version(schema: pa.Schema, **more: int | str) -> pa.Schema:
    """The schema with the format version, and other values, in its metadata."""
    metadata = {layout.VERSION_KEY: str(layout.VERSION), layout.MINOR_KEY: str(layout.MINOR)}
    metadata |= {f"tensorpool.recording.{key}".encode(): str(value) for key, value in more.items()}
    return schema.with_metadata(metadata)


class ColumnIndex(NamedTuple):
    """Numbers of a column's first node and first buffer in a record batch."""

    node: int
    buffer: int


class ColumnIndexes(NamedTuple):
    """The column indexes of a schema by name, and how many nodes and buffers a batch has."""

    columns: dict[str, ColumnIndex]
    nodes: int
    buffers: int


def column_indexes(schema: pa.Schema) -> ColumnIndexes:
    """Which nodes and buffers of a record batch belong to which column."""
    columns, nodes, buffers = {}, 0, 0
    for field in schema:
        columns[field.name] = ColumnIndex(nodes, buffers)
        more_nodes, more_buffers = _node_and_buffer_counts(field.type)
        nodes, buffers = nodes + more_nodes, buffers + more_buffers
    return ColumnIndexes(columns, nodes, buffers)


def _node_and_buffer_counts(kind: pa.DataType) -> tuple[int, int]:
    if kind.num_fields:
        children = [_node_and_buffer_counts(kind.field(number).type) for number in range(kind.num_fields)]
        own = 1 if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind) else 2
        return 1 + sum(nodes for nodes, _ in children), own + sum(buffers for _, buffers in children)
    is_variable = kind in (pa.binary(), pa.utf8(), pa.large_binary(), pa.large_utf8())
    return 1, 3 if is_variable else 2
