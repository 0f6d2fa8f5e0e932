"""Every error that the package raises.

TensorPoolError
├── CodecError (ValueError)          bytes that are no valid message, or a message that has no valid bytes
├── ConfigError (ValueError)         a setting that cannot be used; names it and what would do
├── UnsupportedDtype (TypeError)     an element type that has no place on the wire
├── ClaimRefused                     no slot to write into; `outcome` says why
├── ClosedError (ValueError)         the handle was closed, or the slot settled
├── ForkedError (RuntimeError)       a handle of the parent process used in a forked child
├── FrameOverwritten                 the frame was lost while it was being used
├── ReceiveTimeout (TimeoutError)    no frame came in time
├── LockHeld                         another process holds the lock; `holder` says who
├── StreamBusy                       the stream has a producer already
├── RegionRejected                   an announced region broke a rule; nothing of it was mapped
├── RegionCreateError (OSError)      regions could not be made; nothing was left behind
└── MediaDriverError                 Aeron's media driver
    ├── MediaDriverBusy              there is one in that directory already
    └── MediaDriverUnavailable (TimeoutError)    none answered in time
"""

from __future__ import annotations


class TensorPoolError(Exception):
    """The root of everything the package raises on its own account."""


class CodecError(TensorPoolError, ValueError):
    """A message could not be decoded or encoded.

    `message_name` and `field` say where in the protocol (`field` is a path such as
    `payload_pools[2].region_uri`), `offset` where in the buffer that was handed over. Each is None where
    it is not known: bytes too short for a header name no message, a failed encode has no offset.
    """

    def __init__(
        self,
        reason: str,
        *,
        message_name: str | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        self.reason = reason
        self.message_name = message_name
        self.field = field
        self.offset = offset
        super().__init__(reason, message_name, field, offset)

    def __str__(self) -> str:
        where = ".".join(part for part in (self.message_name, self.field) if part)
        at = f" at byte {self.offset}" if self.offset is not None else ""
        return f"{where}{at}: {self.reason}" if where or at else self.reason


class ConfigError(TensorPoolError, ValueError):
    """A setting cannot be used."""


class UnsupportedDtype(TensorPoolError, TypeError):
    """The element type is not in the registry of the wire."""

    def __init__(self, message: str, *, dtype: str) -> None:
        super().__init__(message)
        self.dtype = dtype


class ClaimRefused(TensorPoolError):
    """There is no slot to write into; `outcome` is what an offer would have returned."""

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class ClosedError(TensorPoolError, ValueError):
    """The handle was closed before."""


class ForkedError(TensorPoolError, RuntimeError):
    """A handle was used in a forked child of the process that made it."""


class FrameOverwritten(TensorPoolError):
    """The producer came around the ring while the frame was in use: what was read may be torn."""

    def __init__(self, message: str, *, stream_id: int, epoch: int, seq: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.epoch = epoch
        self.seq = seq


class ReceiveTimeout(TensorPoolError, TimeoutError):
    """No frame came in the given time."""

    def __init__(self, message: str, *, stream_id: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id


class LockHeld(TensorPoolError):
    """Another process holds the lock."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class StreamBusy(TensorPoolError):
    """A stream has one producer at a time."""

    def __init__(self, message: str, *, stream_id: int, holder: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.holder = holder


class RegionRejected(TensorPoolError):
    """A region was refused before any of it was mapped. `reason` is a stable word, `uri` the region."""

    def __init__(self, message: str, *, reason: str, uri: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.uri = uri


class RegionCreateError(TensorPoolError, OSError):
    """The files of an epoch could not be made. `reason` is a stable word."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class MediaDriverError(TensorPoolError):
    """Something is wrong with Aeron's media driver."""

    def __init__(self, message: str, *, aeron_dir: str) -> None:
        super().__init__(message)
        self.aeron_dir = aeron_dir


class MediaDriverBusy(MediaDriverError):
    """A media driver runs in that directory already."""


class MediaDriverUnavailable(MediaDriverError, TimeoutError):
    """No media driver answered in time."""
