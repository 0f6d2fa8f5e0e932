"""TensorPool: tensors between processes through shared memory, words about them over Aeron."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import service
from ._native import Frame, Offered, Progress, Slot
from .client import Consumer, ConsumerLedger, Latency, Metadata, Outcome, Phase, Producer, ProducerLedger
from .context import Context, Event, discover, discover_async, open
from .discovery import StreamFound
from .errors import (
    AmbiguousStream,
    AttachError,
    ClaimRefused,
    ClosedError,
    CodecError,
    CommandFailed,
    ConfigError,
    DiscoveryError,
    DriverHeld,
    ForkedError,
    FrameOverwritten,
    InvalidConfig,
    LockHeld,
    MediaDriverBusy,
    MediaDriverError,
    MediaDriverUnavailable,
    NoProvider,
    NoSuchService,
    ReceiveTimeout,
    RegionCreateError,
    RegionRejected,
    Rejected,
    RoleFailed,
    ServiceError,
    ServiceTimeout,
    StreamBusy,
    StreamElsewhere,
    StreamNotFound,
    TensorPoolError,
    UnsupportedDtype,
)
from .service import Property, Service, command
from .transport import MediaDriver, StreamIds

if _TYPE_CHECKING:
    from .recorder import record
    from .replayer import replay

__version__ = "0.1.0"

# Recordings need pyarrow, which is large: imported when they are used.
_LATER = {"record": "recorder", "replay": "replayer"}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f".{_LATER[name]}", __name__), name)


__all__ = [
    "AmbiguousStream",
    "AttachError",
    "ClaimRefused",
    "ClosedError",
    "CodecError",
    "CommandFailed",
    "ConfigError",
    "Consumer",
    "ConsumerLedger",
    "Context",
    "DiscoveryError",
    "DriverHeld",
    "Event",
    "ForkedError",
    "Frame",
    "FrameOverwritten",
    "InvalidConfig",
    "Latency",
    "LockHeld",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "Metadata",
    "NoProvider",
    "NoSuchService",
    "Offered",
    "Outcome",
    "Phase",
    "Producer",
    "ProducerLedger",
    "Progress",
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
    "StreamElsewhere",
    "StreamFound",
    "StreamIds",
    "StreamNotFound",
    "TensorPoolError",
    "UnsupportedDtype",
    "__version__",
    "command",
    "discover",
    "discover_async",
    "open",
    "record",
    "replay",
    "service",
]
