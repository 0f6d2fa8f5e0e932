"""All errors of the package. A message says what failed, why, and what to do.

TensorPoolError
├── CodecError (ValueError)          bytes that do not decode to a message, or a message that does not encode
├── ConfigError (ValueError)         an invalid setting; the message names a valid form
│   └── InvalidConfig                a configuration with problems; `problems` lists all of them
├── RoleFailed                       a fault that ends a role, with exit status 1
├── UnsupportedDtype (TypeError)     an element type that the wire does not define
├── ClaimRefused                     no slot can be claimed; `outcome` says why
├── OfferRefused                     an offer with strict=True got no slot; `outcome` says why
├── ClosedError (ValueError)         the handle is closed, or the slot was committed or abandoned
├── ForkedError (RuntimeError)       a handle of the parent process used in a forked child
├── FrameOverwritten                 the producer overwrote the frame while it was in use
├── ReceiveTimeout (TimeoutError)    no frame arrived in time
├── JoinRejected                     streams that cannot be joined; see `reason`, `input` and `stream_id`
├── LockHeld                         another process holds the lock; `holder` names it
│   └── DriverAlreadyRunning         another driver is running; the message names its process
├── AttachError                      the driver granted no lease; see `code` and `remedy`
├── StreamBusy                       the stream has a producer already
├── RegionRejected                   an announced region is invalid; it was not mapped
├── RegionCreateError (OSError)      regions could not be created; no files remain
├── ServiceError                     a call to a service failed
│   ├── NoSuchService (LookupError)  no service has that name
│   ├── RequestRejected              the service rejected the command; the message is its reason
│   ├── CommandFailed                the service accepted the command, and running it failed
│   └── ServiceTimeout (TimeoutError)    the service is running, but did not reply in time
├── DiscoveryError                   a search for streams failed
│   ├── NoProvider (TimeoutError)    no driver or registry responded
│   ├── StreamNotFound (LookupError)     no stream with that name appeared in time
│   ├── AmbiguousStream (LookupError)    several streams match
│   └── StreamNotLocal               the stream is on another machine; only a bridge can reach it
├── MissingPackage (ImportError)     a required optional package is not installed
├── DeviceError (RuntimeError)       a CUDA device refused or failed; `code` is CUDA's name of the error
├── RecordingError                   an operation on a recording failed; `path` is the file or directory
│   ├── NotARecording (ValueError)   the directory has no recording, or its format is too new
│   ├── CorruptRecording (ValueError)    bytes differ from those written; `offset` is their position
│   ├── FrameNotRecorded (LookupError)   the recording never had the frame, or retention removed it
│   ├── InvalidFrames (ValueError)   frames that cannot be recorded: out of order, or with a wrong tensor
│   ├── MergeConflict (ValueError)   two recordings have different frames with the same sequence
│   ├── StorageFailed (OSError)      an object store does not answer, or refuses a request
│   └── WriteFailed (OSError)        a write to disk failed
│       └── DiskFull                 the disk is full; earlier writes are kept
├── PipelineError                    a pipeline cannot start or continue; the message says what to do
└── MediaDriverError                 Aeron's media driver failed
    ├── MediaDriverBusy              a media driver is running in that directory already
    └── MediaDriverUnavailable (TimeoutError)    no media driver responded in time

Two are warnings (UserWarning): `OfferWarning`, the first frame of a producer that is lost by a mistake, and
`FrameChangedWarning`, a frame that was changed after its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike


class TensorPoolError(Exception):
    """Base class of all errors of the package."""


class CodecError(TensorPoolError, ValueError):
    """A message could not be decoded or encoded.

    `message_name` and `field` (a path such as `payload_pools[2].region_uri`) name the part of the message,
    `offset` its position in the buffer. Each is None where it is unknown: bytes shorter than a header have no
    message name, and a failed encode has no offset.
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
        path = ".".join(part for part in (self.message_name, self.field) if part)
        position = f" at byte {self.offset}" if self.offset is not None else ""
        return f"{path}{position}: {self.reason}" if path or position else self.reason


class ConfigError(TensorPoolError, ValueError):
    """A setting is invalid. The message names a valid form."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem of a configuration."""

    reason: str
    key: str | None = None
    """The key path, for example `driver.streams[1].nslots`."""
    value: str | None = None
    """The value as TOML; None for a secret."""
    source: str | None = None
    """The file, environment variable or flag that has the value."""
    line: int | None = None
    """The line in the file."""
    suggestion: str | None = None
    """The most similar valid name."""

    def __str__(self) -> str:
        source = None
        if self.source is not None:
            source = self.source if self.line is None else f"{self.source}:{self.line}"
        setting = self.key if self.value is None else f"{self.key} = {self.value}"
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        return ": ".join(part for part in (source, setting, self.reason) if part) + hint


class InvalidConfig(ConfigError):
    """A configuration has problems. `problems` lists all of them."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = (f"\n  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems in the configuration:{''.join(lines)}"


class RoleFailed(TensorPoolError):
    """A fault that ends a role. Raised in a duty cycle; the runner then closes the agent and stops."""

    def __init__(self, message: str, *, role: str | None = None) -> None:
        super().__init__(message)
        self.role = role


class UnsupportedDtype(TensorPoolError, TypeError):
    """The wire does not define this element type."""

    def __init__(self, message: str, *, dtype: str) -> None:
        super().__init__(message)
        self.dtype = dtype


class ClaimRefused(TensorPoolError):
    """No slot can be claimed. `outcome` is the result that an offer would have."""

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class OfferRefused(TensorPoolError):
    """An offer with `strict=True` got no slot, so its frame is lost. `outcome` is the result of the offer."""

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class OfferWarning(UserWarning):
    """An offered frame is lost: it fits no pool, or the producer is closed. Once a producer and reason."""


class FrameChangedWarning(UserWarning):
    """A frame was changed after its commit, through a view of `slot.array`. Only under `python -X dev`."""


class ClosedError(TensorPoolError, ValueError):
    """The handle is closed, or the slot was committed or abandoned."""


class ForkedError(TensorPoolError, RuntimeError):
    """A handle was used in a forked child of the process that created it."""


class FrameOverwritten(TensorPoolError):
    """The producer overwrote the frame while it was in use: the values read may be inconsistent."""

    def __init__(self, message: str, *, stream_id: int, epoch: int, seq: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.epoch = epoch
        self.seq = seq


class ReceiveTimeout(TensorPoolError, TimeoutError):
    """No frame arrived in the given time."""

    def __init__(self, message: str, *, stream_id: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id


class JoinRejected(TensorPoolError):
    """Streams cannot be joined: timestamps ran backwards, clocks differ, or a merge map is invalid.

    `reason` is "backwards", "clock_domain" or "merge_map"; `input` and `stream_id` name the stream.
    """

    def __init__(self, message: str, *, reason: str, stream_id: int, input: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.input = input
        self.stream_id = stream_id


class LockHeld(TensorPoolError):
    """Another process holds the lock. `holder` names it."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class DriverAlreadyRunning(LockHeld):
    """Another driver is running. `pid` is its process; `embedded`: it is part of a program."""

    def __init__(self, message: str, *, holder: str, pid: int, embedded: bool) -> None:
        super().__init__(message, holder=holder)
        self.pid = pid
        self.embedded = embedded


class AttachError(TensorPoolError):
    """The driver granted no lease.

    `code` is the driver's code (`REJECTED`, `INVALID_PARAMS`, `UNSUPPORTED`, `INTERNAL_ERROR`), `NO_ANSWER`
    without a response, `PROTOCOL` for an invalid response, `REGIONS` for invalid regions, or `CLOCK_DOMAIN`
    for a driver with another clock. `remedy` says what to do.
    """

    def __init__(self, message: str, *, code: str, remedy: str, stream_id: int) -> None:
        super().__init__(f"stream {stream_id}: {code}: {message}; {remedy}")
        self.code = code
        self.reason = message
        self.remedy = remedy
        self.stream_id = stream_id


class StreamBusy(TensorPoolError):
    """The stream has a producer already. `holder` names it."""

    def __init__(self, message: str, *, stream_id: int, holder: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.holder = holder


class RegionRejected(TensorPoolError):
    """A region is invalid; it was not mapped. `reason` is a stable identifier, `uri` the region."""

    def __init__(self, message: str, *, reason: str, uri: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.uri = uri


class RegionCreateError(TensorPoolError, OSError):
    """The files of an epoch could not be created. `reason` is a stable identifier."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class MediaDriverError(TensorPoolError):
    """Aeron's media driver failed. `aeron_dir` is its directory."""

    def __init__(self, message: str, *, aeron_dir: str) -> None:
        super().__init__(message)
        self.aeron_dir = aeron_dir


class MediaDriverBusy(MediaDriverError):
    """A media driver is running in that directory already."""


class MediaDriverUnavailable(MediaDriverError, TimeoutError):
    """No media driver responded in time."""


class ServiceError(TensorPoolError):
    """A call to a service failed."""


class NoSuchService(ServiceError, LookupError):
    """No service has that name."""


class RequestRejected(ServiceError):
    """The service rejected the command; the message is its reason."""


class CommandFailed(ServiceError):
    """The service accepted the command, and running it failed."""


class ServiceTimeout(ServiceError, TimeoutError):
    """The service is running, but did not reply in time."""


class DiscoveryError(TensorPoolError):
    """A discovery request failed; the message is the provider's."""


class NoProvider(DiscoveryError, TimeoutError):
    """No driver or registry responded to the discovery request."""


class StreamNotFound(DiscoveryError, LookupError):
    """No matching stream appeared in time."""


class AmbiguousStream(DiscoveryError, LookupError):
    """Several streams match where a single stream is needed."""


class StreamNotLocal(DiscoveryError):
    """The stream exists, but its regions are on another machine."""

    def __init__(self, message: str, *, stream_id: int, driver_instance_id: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.driver_instance_id = driver_instance_id


class MissingPackage(TensorPoolError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class DeviceError(TensorPoolError, RuntimeError):
    """A CUDA device refused a call, or failed. `code` is CUDA's name of the error."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class RecordingError(TensorPoolError):
    """An operation on a recording failed. `path` is the file or directory."""

    def __init__(self, message: str, *, path: str | PathLike[str] | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotARecording(RecordingError, ValueError):
    """The directory has no recording, or a recording of a newer version."""


class CorruptRecording(RecordingError, ValueError):
    """Bytes of a recording differ from those written. `offset` is their position; None: unknown."""

    def __init__(self, message: str, *, path: str | PathLike[str], offset: int | None = None) -> None:
        super().__init__(message, path=path)
        self.offset = offset


class FrameNotRecorded(RecordingError, LookupError):
    """The recording never had the frame, or retention removed it."""


class InvalidFrames(RecordingError, ValueError):
    """Frames that cannot be recorded: their sequences do not grow, or a tensor does not fit its payload."""


class MergeConflict(RecordingError, ValueError):
    """Two recordings have different frames with the same stream, epoch and sequence."""


class StorageFailed(RecordingError, OSError):
    """An object store or another remote filesystem does not answer, or refuses a request."""


class WriteFailed(RecordingError, OSError):
    """A write to disk failed. `code` is the operating system's errno."""

    def __init__(self, message: str, *, path: str | PathLike[str], code: int | None = None) -> None:
        super().__init__(message, path=path)
        self.code = code


class DiskFull(WriteFailed):
    """The disk is full. Earlier writes are kept; writing can continue when there is room."""


class PipelineError(TensorPoolError):
    """A pipeline cannot start or continue. Its tables are unchanged."""
