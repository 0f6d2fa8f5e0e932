"""TensorPool: tensors between processes through shared memory, words about them over Aeron."""

from ._native import Frame, Offered, Slot
from .client import Consumer, ConsumerLedger, Outcome, Producer, ProducerLedger
from .context import Context, Event, open
from .errors import (
    ClaimRefused,
    ClosedError,
    CodecError,
    ConfigError,
    ForkedError,
    FrameOverwritten,
    LockHeld,
    MediaDriverBusy,
    MediaDriverError,
    MediaDriverUnavailable,
    ReceiveTimeout,
    RegionCreateError,
    RegionRejected,
    StreamBusy,
    TensorPoolError,
    UnsupportedDtype,
)
from .transport import MediaDriver, StreamIds

__version__ = "0.1.0"

__all__ = [
    "ClaimRefused",
    "ClosedError",
    "CodecError",
    "ConfigError",
    "Consumer",
    "ConsumerLedger",
    "Context",
    "Event",
    "ForkedError",
    "Frame",
    "FrameOverwritten",
    "LockHeld",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "Offered",
    "Outcome",
    "Producer",
    "ProducerLedger",
    "ReceiveTimeout",
    "RegionCreateError",
    "RegionRejected",
    "Slot",
    "StreamBusy",
    "StreamIds",
    "TensorPoolError",
    "UnsupportedDtype",
    "__version__",
    "open",
]
