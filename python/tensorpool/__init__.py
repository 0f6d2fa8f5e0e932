"""TensorPool: tensors between processes through shared memory, coordinated over Aeron."""

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
    DeviceError,
    DiscoveryError,
    DriverAlreadyRunning,
    ForkedError,
    FrameChangedWarning,
    FrameOverwritten,
    InvalidConfig,
    JoinRejected,
    LockHeld,
    MediaDriverBusy,
    MediaDriverError,
    MediaDriverUnavailable,
    NoProvider,
    NoSuchService,
    OfferRefused,
    OfferWarning,
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
    from . import notebook as notebook
    from . import service
    from ._native import (
        Frame,
        FrameBatch,
        JoinedBatch,
        JoinedFrames,
        OfferManyResult,
        OfferResult,
        Progress,
        Slot,
        __version__,
    )
    from .client import (
        Consumer,
        ConsumerLedger,
        Join,
        JoinLedger,
        Latency,
        MergeMap,
        MergeMapJoin,
        Metadata,
        Outcome,
        Phase,
        Producer,
        ProducerLedger,
        WholeFrame,
    )
    from .context import Context, Event, discover, discover_async, open
    from .discovery import DiscoveredStream
    from .limiter import Limiter
    from .recorder import record
    from .replayer import replay
    from .service import Property, Service, command
    from .stages import Stage, stage
    from .transport import MediaDriver, StreamIds

# Modules of public names, imported at first use: a program that reads recordings needs no driver, a producer
# needs no pyarrow, and Spark starts a new interpreter for each query, which would import all of it.
_LAZY_MODULES = {
    name: module
    for module, names in {
        "_native": (
            "Frame FrameBatch JoinedBatch JoinedFrames OfferManyResult OfferResult Progress Slot __version__"
        ),
        "client": (
            "Consumer ConsumerLedger Join JoinLedger Latency MergeMapJoin MergeMap Metadata Outcome Phase "
            "Producer ProducerLedger WholeFrame"
        ),
        "context": "Context Event discover discover_async open",
        "discovery": "DiscoveredStream",
        "limiter": "Limiter",
        "recorder": "record",
        "replayer": "replay",
        "service": "Property Service command",
        "stages": "Stage stage",
        "transport": "MediaDriver StreamIds",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> _Any:
    if name in ("notebook", "service"):
        return _import_module(f".{name}", __name__)
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Stored as a global, so that Python does not call this function for the name again.
    value = globals()[name] = getattr(_import_module(f".{_LAZY_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    # A shell completes names from here, those that are not imported yet too.
    return sorted({*__all__, *(name for name in globals() if not name.startswith("_"))})


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
    "DeviceError",
    "DiscoveredStream",
    "DiscoveryError",
    "DriverAlreadyRunning",
    "Event",
    "ForkedError",
    "Frame",
    "FrameBatch",
    "FrameChangedWarning",
    "FrameOverwritten",
    "InvalidConfig",
    "Join",
    "JoinLedger",
    "JoinRejected",
    "JoinedBatch",
    "JoinedFrames",
    "Latency",
    "Limiter",
    "LockHeld",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "MergeMap",
    "MergeMapJoin",
    "Metadata",
    "NoProvider",
    "NoSuchService",
    "OfferManyResult",
    "OfferRefused",
    "OfferResult",
    "OfferWarning",
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
    "Stage",
    "StreamBusy",
    "StreamIds",
    "StreamNotFound",
    "StreamNotLocal",
    "TensorPoolError",
    "UnsupportedDtype",
    "WholeFrame",
    "__version__",
    "command",
    "discover",
    "discover_async",
    "open",
    "record",
    "replay",
    "service",
    "stage",
]
