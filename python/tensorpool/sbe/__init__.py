"""SBE codecs: typed classes of all messages, compiled from the schema files in `schemas/`.

    from tensorpool import sbe

    request = sbe.ShmAttachRequest(correlation_id=1, stream_id=10000, client_id=7, role=sbe.Role.PRODUCER)
    assert sbe.decode(request.encode()) == request

`decode` accepts any message; `ShmAttachRequest.decode` accepts only its own. `ShmRegionSuperblock` and
`SlotHeader` have no message header, so only their own `decode` reads them. A malformed message raises
`tensorpool.errors.CodecError`. An absent optional field is None; absent var-data is empty.
"""

from __future__ import annotations

from . import json_form, layout
from .bridge import BridgeFrameChunk, BridgeFrameChunkR2
from .discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryResult, DiscoveryStatus, Tag
from .dispatch import decode, decode_prefix, read_correlation_id, read_header
from .driver import (
    HugepagesPolicy,
    LeaseRevokeReason,
    PublishMode,
    Role,
    ShmAttachRequest,
    ShmAttachRequestR2,
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from .message import Message, MessageHeader
from .service import EventMessage, Format
from .status import STATUS_KEY, ConsumerStatus, ProducerStatus, ReasonCount, SourceStream, TimeOrigin
from .trace import TraceLinkSet, TraceParent
from .wire import (
    MAGIC,
    Attribute,
    ClockDomain,
    ConsumerConfig,
    ConsumerConfigR2,
    ConsumerHello,
    ControlResponse,
    DataSourceAnnounce,
    DataSourceMeta,
    Dtype,
    FrameDescriptor,
    FrameProgress,
    FrameProgressState,
    MajorOrder,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
    Mode,
    PayloadPool,
    ProgressUnit,
    QosConsumer,
    QosProducer,
    RegionType,
    ResponseCode,
    ShmPoolAnnounce,
    ShmRegionSuperblock,
    SlotHeader,
    TensorHeader,
)

__all__ = [
    "MAGIC",
    "STATUS_KEY",
    "Attribute",
    "BridgeFrameChunk",
    "BridgeFrameChunkR2",
    "ClockDomain",
    "ConsumerConfig",
    "ConsumerConfigR2",
    "ConsumerHello",
    "ConsumerStatus",
    "ControlResponse",
    "DataSourceAnnounce",
    "DataSourceMeta",
    "DiscoveryRequest",
    "DiscoveryResponse",
    "DiscoveryResult",
    "DiscoveryStatus",
    "Dtype",
    "EventMessage",
    "Format",
    "FrameDescriptor",
    "FrameProgress",
    "FrameProgressState",
    "HugepagesPolicy",
    "LeaseRevokeReason",
    "MajorOrder",
    "Message",
    "MessageHeader",
    "MetaBlobAnnounce",
    "MetaBlobChunk",
    "MetaBlobComplete",
    "Mode",
    "PayloadPool",
    "ProducerStatus",
    "ProgressUnit",
    "PublishMode",
    "QosConsumer",
    "QosProducer",
    "ReasonCount",
    "RegionType",
    "ResponseCode",
    "Role",
    "ShmAttachRequest",
    "ShmAttachRequestR2",
    "ShmAttachResponse",
    "ShmAttachResponseR2",
    "ShmDetachRequest",
    "ShmDetachResponse",
    "ShmDriverShutdown",
    "ShmDriverShutdownRequest",
    "ShmLeaseKeepalive",
    "ShmLeaseRevoked",
    "ShmPoolAnnounce",
    "ShmRegionSuperblock",
    "ShutdownReason",
    "SlotHeader",
    "SourceStream",
    "Tag",
    "TensorHeader",
    "TimeOrigin",
    "TraceLinkSet",
    "TraceParent",
    "decode",
    "decode_prefix",
    "json_form",
    "layout",
    "read_correlation_id",
    "read_header",
]
