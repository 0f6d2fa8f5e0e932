"""Messages of the discovery service, schema 910 (discovery §5).

Names and tags are compared byte for byte, so they survive whatever bytes a peer sent: what is not ASCII
is carried as surrogate escapes and written back as it came.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from .message import Message, entry, message
from .wire import PayloadPool


class DiscoveryStatus(IntEnum):
    OK = 1
    NOT_FOUND = 2
    ERROR = 3


@entry
class Tag:
    tag: str = ""


@message("discovery-910")
class DiscoveryRequest(Message):
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
    request_id: int
    status: DiscoveryStatus
    discovery_schema_version: ClassVar[int] = 1
    results: tuple[DiscoveryResult, ...] = ()
    error_message: str = ""
