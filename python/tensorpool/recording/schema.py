"""The columns of a frame's row, and those of the tables beside them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from . import layout


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
