"""Messages between clients and the SHM driver, schema 901 (driver §4).

The classes with the suffix R2 are the later revision, which deployed peers use under the same schema id and
version. The block length decides between the two.
"""

from __future__ import annotations

from enum import IntEnum

from .message import Message, message
from .wire import PayloadPool, ResponseCode


class Role(IntEnum):
    """The role of a lease."""

    PRODUCER = 1
    CONSUMER = 2


class PublishMode(IntEnum):
    """Whether an attach may create the stream."""

    REQUIRE_EXISTING = 1
    EXISTING_OR_CREATE = 2


class HugepagesPolicy(IntEnum):
    """Whether regions have to be on hugepages."""

    UNSPECIFIED = 0
    STANDARD = 1
    HUGEPAGES = 2


class LeaseRevokeReason(IntEnum):
    """Why a lease ended."""

    DETACHED = 1
    EXPIRED = 2
    REVOKED = 3


class ShutdownReason(IntEnum):
    """Why a driver shuts down."""

    NORMAL = 0
    ADMIN = 1
    ERROR = 2


@message("driver-901")
class ShmAttachRequest(Message):
    """A client's request for a lease on a stream."""

    correlation_id: int
    stream_id: int
    client_id: int
    role: Role
    expected_layout_version: int = 0
    max_dims: int = 0
    publish_mode: PublishMode | None = None
    require_hugepages: bool | None = None


@message("driver-901-r2", "ShmAttachRequest")
class ShmAttachRequestR2(Message):
    """A client's request for a lease on a stream. Later revision."""

    correlation_id: int
    stream_id: int
    client_id: int
    role: Role
    expected_layout_version: int = 0
    publish_mode: PublishMode | None = None
    hugepages_policy: HugepagesPolicy = HugepagesPolicy.UNSPECIFIED
    desired_node_id: int | None = None


@message("driver-901")
class ShmAttachResponse(Message):
    """The lease and its regions, or the reason for a refusal."""

    correlation_id: int
    code: ResponseCode
    lease_id: int | None = None
    lease_expiry_timestamp_ns: int | None = None
    stream_id: int | None = None
    epoch: int | None = None
    layout_version: int | None = None
    header_nslots: int | None = None
    header_slot_bytes: int | None = None
    max_dims: int | None = None
    payload_pools: tuple[PayloadPool, ...] = ()
    header_region_uri: str = ""
    error_message: str = ""


@message("driver-901-r2", "ShmAttachResponse")
class ShmAttachResponseR2(Message):
    """The lease and its regions, or the reason for a refusal. Later revision."""

    correlation_id: int
    code: ResponseCode
    lease_id: int | None = None
    lease_expiry_timestamp_ns: int | None = None
    stream_id: int | None = None
    epoch: int | None = None
    layout_version: int | None = None
    header_nslots: int | None = None
    header_slot_bytes: int | None = None
    node_id: int | None = None
    payload_pools: tuple[PayloadPool, ...] = ()
    header_region_uri: str = ""
    error_message: str = ""


@message("driver-901")
class ShmDetachRequest(Message):
    """A client's request to end its lease."""

    correlation_id: int
    lease_id: int
    stream_id: int
    client_id: int
    role: Role


@message("driver-901")
class ShmDetachResponse(Message):
    """The response to a detach request."""

    correlation_id: int
    code: ResponseCode
    error_message: str = ""


@message("driver-901")
class ShmLeaseKeepalive(Message):
    """A client's keepalive of its lease."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    client_timestamp_ns: int


@message("driver-901")
class ShmDriverShutdown(Message):
    """The driver shuts down; all leases end."""

    timestamp_ns: int
    reason: ShutdownReason
    error_message: str = ""


@message("driver-901")
class ShmLeaseRevoked(Message):
    """The end of a lease, with the reason."""

    timestamp_ns: int
    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    reason: LeaseRevokeReason
    error_message: str = ""


@message("driver-901-r2")
class ShmDriverShutdownRequest(Message):
    """A request to stop the driver. The token prevents accidents only: every subscriber can read it."""

    correlation_id: int
    reason: ShutdownReason
    token: str = ""
    error_message: str = ""
