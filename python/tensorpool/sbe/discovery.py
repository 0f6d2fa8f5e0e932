"""Messages of the discovery service, schema 910 (discovery §5).

Names and tags are compared byte for byte, so decoding keeps all bytes: bytes beyond ASCII become surrogate
escapes, and encoding restores them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from .message import Message, entry, message
from .wire import PayloadPool


class DiscoveryStatus(IntEnum):
    """The result of a discovery request."""

    OK = 1
    NOT_FOUND = 2
    ERROR = 3


@entry
class Tag:
    """One tag of a stream."""

    tag: str = ""


@message("discovery-910")
class DiscoveryRequest(Message):
    """A search for streams. All filters must match."""

    request_id: int
    client_id: int
    response_stream_id: int
    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None
    tags: tuple[Tag, ...] = ()
    response_channel: str
    data_source_name: str = ""


@entry
class DiscoveryResult:
    """One matching stream."""

    stream_id: int
    producer_id: int
    epoch: int
    layout_version: int
    header_nslots: int
    header_slot_bytes: int
    max_dims: int
    data_source_id: int | None = None
    driver_control_stream_id: int
    payload_pools: tuple[PayloadPool, ...] = ()
    tags: tuple[Tag, ...] = ()
    header_region_uri: str = ""
    data_source_name: str = ""
    driver_instance_id: str = ""
    driver_control_channel: str


@message("discovery-910")
class DiscoveryResponse(Message):
    """The matching streams at one time. It grants no lease."""

    request_id: int
    status: DiscoveryStatus
    discovery_schema_version: ClassVar[int] = 1
    results: tuple[DiscoveryResult, ...] = ()
    error_message: str = ""
