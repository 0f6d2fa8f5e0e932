"""TensorPool: tensors between processes through shared memory, words about them over Aeron."""

from . import service
from ._native import Frame, Offered, Slot
from .client import Consumer, ConsumerLedger, Outcome, Producer, ProducerLedger
from .context import Context, Event, open
from .errors import (
    ClaimRefused,
    ClosedError,
    CodecError,
    CommandFailed,
    ConfigError,
    ForkedError,
    FrameOverwritten,
    InvalidConfig,
    LockHeld,
    MediaDriverBusy,
    MediaDriverError,
    MediaDriverUnavailable,
    NoSuchService,
    ReceiveTimeout,
    RegionCreateError,
    RegionRejected,
    Rejected,
    RoleFailed,
    ServiceError,
    ServiceTimeout,
    StreamBusy,
    TensorPoolError,
    UnsupportedDtype,
)
from .service import Property, Service, command
from .transport import MediaDriver, StreamIds

__version__ = "0.1.0"

__all__ = [
    "ClaimRefused",
    "ClosedError",
    "CodecError",
    "CommandFailed",
    "ConfigError",
    "Consumer",
    "ConsumerLedger",
    "Context",
    "Event",
    "ForkedError",
    "Frame",
    "FrameOverwritten",
    "InvalidConfig",
    "LockHeld",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "NoSuchService",
    "Offered",
    "Outcome",
    "Producer",
    "ProducerLedger",
    "Property",
    "ReceiveTimeout",
    "RegionCreateError",
    "RegionRejected",
    "Rejected",
    "RoleFailed",
    "Service",
    "ServiceError",
    "ServiceTimeout",
    "Slot",
    "StreamBusy",
    "StreamIds",
    "TensorPoolError",
    "UnsupportedDtype",
    "__version__",
    "command",
    "open",
    "service",
]
