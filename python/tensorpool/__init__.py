"""TensorPool: tensors between processes through shared memory, words about them over Aeron."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .errors import (
    AmbiguousStream,
    AttachError,
    ClaimRefused,
    ClosedError,
    CodecError,
    CommandFailed,
    ConfigError,
    DiscoveryError,
    DriverAlreadyRunning,
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
    RequestRejected,
    RoleFailed,
    ServiceError,
    ServiceTimeout,
    StreamBusy,
    StreamNotFound,
    StreamNotLocal,
    TensorPoolError,
    UnsupportedDtype,
)

if _TYPE_CHECKING:
    from . import service
    from ._native import Frame, Offered, Progress, Slot
    from .client import Consumer, ConsumerLedger, Latency, Metadata, Outcome, Phase, Producer, ProducerLedger
    from .context import Context, Event, discover, discover_async, open
    from .discovery import DiscoveredStream
    from .recorder import record
    from .replayer import replay
    from .service import Property, Service, command
    from .transport import MediaDriver, StreamIds

__version__ = "0.1.0"

# Imported when they are used. Whoever reads a recording needs no driver, and whoever films no pyarrow; and
# Spark starts a new Python for each query, which would import all of it.
_LATER = {
    name: module
    for module, names in {
        "_native": "Frame Offered Progress Slot",
        "client": "Consumer ConsumerLedger Latency Metadata Outcome Phase Producer ProducerLedger",
        "context": "Context Event discover discover_async open",
        "discovery": "DiscoveredStream",
        "recorder": "record",
        "replayer": "replay",
        "service": "Property Service command",
        "transport": "MediaDriver StreamIds",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> _Any:
    if name == "service":
        return _import_module(".service", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept: the next look finds it at once.
    found = globals()[name] = getattr(_import_module(f".{_LATER[name]}", __name__), name)
    return found


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
    "DiscoveredStream",
    "DiscoveryError",
    "DriverAlreadyRunning",
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
    "RequestRejected",
    "RoleFailed",
    "Service",
    "ServiceError",
    "ServiceTimeout",
    "Slot",
    "StreamBusy",
    "StreamIds",
    "StreamNotFound",
    "StreamNotLocal",
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
