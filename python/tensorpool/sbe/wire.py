"""Messages of the wire protocol, schema 900 (wire §7, §8, §10).

`ShmRegionSuperblock` and `SlotHeader` are in shared memory and have no message header. `TensorHeader`,
embedded in a slot header, has one.
"""

from __future__ import annotations

import builtins
from enum import IntEnum
from typing import ClassVar

from .message import Message, entry, message

MAGIC = 0x544F504C53484D31
"""The first eight bytes of every region (wire §7.1)."""


class Mode(IntEnum):
    """How frames are delivered (wire §11)."""

    STREAM = 1
    RATE_LIMITED = 2


class FrameProgressState(IntEnum):
    """How far the writing of a frame is."""

    UNKNOWN = 0
    STARTED = 1
    PROGRESS = 2
    COMPLETE = 3


class ProgressUnit(IntEnum):
    """The unit in which progress is counted."""

    NONE = 0
    ROWS = 1
    COLUMNS = 2


class ResponseCode(IntEnum):
    """The result of a request."""

    OK = 0
    UNSUPPORTED = 1
    INVALID_PARAMS = 2
    REJECTED = 3
    INTERNAL_ERROR = 4


class ClockDomain(IntEnum):
    """The clock of the timestamps."""

    MONOTONIC = 1
    REALTIME_SYNCED = 2


class RegionType(IntEnum):
    """The kind of a region."""

    HEADER_RING = 1
    PAYLOAD_POOL = 2


class Dtype(IntEnum):
    """The element types of the wire."""

    UNKNOWN = 0
    UINT8 = 1
    INT8 = 2
    UINT16 = 3
    INT16 = 4
    UINT32 = 5
    INT32 = 6
    UINT64 = 7
    INT64 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    BOOLEAN = 11
    BYTES = 13
    BIT = 14


class MajorOrder(IntEnum):
    """The order of a tensor's elements."""

    UNKNOWN = 0
    ROW = 1
    COLUMN = 2


@entry
class PayloadPool:
    """One payload pool in announces, attach responses and discovery results."""

    pool_id: int
    pool_nslots: int
    stride_bytes: int
    region_uri: str = ""


@message("wire-900")
class ShmPoolAnnounce(Message):
    """The regions and the epoch of a stream, repeated every announce period."""

    stream_id: int
    producer_id: int
    epoch: int
    announce_timestamp_ns: int
    announce_clock_domain: ClockDomain
    layout_version: int
    header_nslots: int
    header_slot_bytes: int
    payload_pools: tuple[PayloadPool, ...] = ()
    header_region_uri: str = ""


@message("wire-900")
class ConsumerHello(Message):
    """The request of a consumer: its abilities, mode and streams."""

    stream_id: int
    consumer_id: int
    supports_shm: bool
    supports_progress: bool
    mode: Mode
    max_rate_hz: int = 0
    expected_layout_version: int
    progress_interval_us: int | None = None
    progress_bytes_delta: int | None = None
    progress_major_delta_units: int | None = None
    descriptor_stream_id: int = 0
    control_stream_id: int = 0
    descriptor_channel: str = ""
    control_channel: str = ""


@message("wire-900")
class ConsumerConfig(Message):
    """The mode and streams that a consumer was granted."""

    stream_id: int
    consumer_id: int
    use_shm: bool
    mode: Mode
    descriptor_stream_id: int = 0
    control_stream_id: int = 0
    payload_fallback_uri: str = ""
    descriptor_channel: str = ""
    control_channel: str = ""


@message("wire-900-r2", "ConsumerConfig")
class ConsumerConfigR2(Message):
    """A supervisor's order for a consumer. Peers of the first revision skip its rate."""

    stream_id: int
    consumer_id: int
    use_shm: bool
    mode: Mode
    descriptor_stream_id: int = 0
    control_stream_id: int = 0
    max_rate_hz: int | None = None
    payload_fallback_uri: str = ""
    descriptor_channel: str = ""
    control_channel: str = ""


@message("wire-900")
class FrameDescriptor(Message):
    """The message that a frame is committed in the ring."""

    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int | None = None
    meta_version: int | None = None
    trace_id: int | None = None


@message("wire-900")
class QosConsumer(Message):
    """A consumer's QoS report: frames received and dropped."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq_seen: int
    drops_gap: int
    drops_late: int
    mode: Mode


@message("wire-900")
class QosProducer(Message):
    """A producer's QoS report: its current sequence."""

    stream_id: int
    producer_id: int
    epoch: int
    current_seq: int
    watermark: int | None = None


@message("wire-900")
class DataSourceAnnounce(Message):
    """The name of a stream's source."""

    stream_id: int
    producer_id: int
    epoch: int
    meta_version: int
    name: str = ""
    summary: str = ""


@entry
class Attribute:
    """One attribute of a metadata version."""

    key: str = ""
    format: str = ""
    value: bytes = b""


@message("wire-900")
class DataSourceMeta(Message):
    """The attributes of a metadata version."""

    stream_id: int
    meta_version: int
    timestamp_ns: int
    attributes: tuple[Attribute, ...] = ()


@message("wire-900")
class ControlResponse(Message):
    """The response to a control request."""

    correlation_id: int
    code: ResponseCode
    error_message: str = ""


@message("wire-900")
class MetaBlobAnnounce(Message):
    """The start of a metadata blob: its type, size and checksum."""

    stream_id: int
    meta_version: int
    blob_type: int
    total_len: int
    checksum: int = 0


@message("wire-900")
class FrameProgress(Message):
    """The part of a frame that is already written."""

    stream_id: int
    epoch: int
    seq: int
    payload_bytes_filled: int
    state: FrameProgressState


@message("wire-900")
class MetaBlobChunk(Message):
    """A chunk of a metadata blob."""

    stream_id: int
    meta_version: int
    chunk_offset: int
    bytes: builtins.bytes = b""


@message("wire-900")
class MetaBlobComplete(Message):
    """The end of a metadata blob: all its chunks were sent."""

    stream_id: int
    meta_version: int
    checksum: int = 0


@message("wire-900")
class ShmRegionSuperblock(Message):
    """The first 64 bytes of every region."""

    magic: int = MAGIC
    layout_version: int
    epoch: int
    stream_id: int
    region_type: RegionType
    pool_id: int
    nslots: int
    slot_bytes: int
    stride_bytes: int
    pid: int
    start_timestamp_ns: int
    activity_timestamp_ns: int


@message("wire-900")
class SlotHeader(Message):
    """One slot of the header ring: 60 bytes, then an embedded TensorHeader."""

    seq_commit: int
    values_len_bytes: int
    payload_slot: int
    pool_id: int
    payload_offset: int = 0
    timestamp_ns: int
    meta_version: int
    pad: bytes = bytes(26)
    header_bytes: bytes = b""


@message("wire-900")
class TensorHeader(Message):
    """Shape and element type of a frame. Shorter `dims` and `strides` are encoded with zeros up to 8."""

    dtype: Dtype
    major_order: MajorOrder
    ndims: int
    max_dims: ClassVar[int] = 8
    pad_align: int = 0
    progress_unit: ProgressUnit = ProgressUnit.NONE
    progress_stride_bytes: int = 0
    dims: tuple[int, ...]
    strides: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 0, 0)
    pad: bytes = bytes(109)
