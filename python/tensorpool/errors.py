"""Every error that the package raises.

TensorPoolError
├── CodecError (ValueError)          bytes that are no valid message, or a message that has no valid bytes
├── ConfigError (ValueError)         a setting that cannot be used; names it and what would do
│   └── InvalidConfig                everything that is wrong with a configuration; `problems` lists it
├── RoleFailed                       a fault that makes a role useless: it stops, with exit status 1
├── UnsupportedDtype (TypeError)     an element type that has no place on the wire
├── ClaimRefused                     no slot to write into; `outcome` says why
├── ClosedError (ValueError)         the handle was closed, or the slot settled
├── ForkedError (RuntimeError)       a handle of the parent process used in a forked child
├── FrameOverwritten                 the frame was lost while it was being used
├── ReceiveTimeout (TimeoutError)    no frame came in time
├── LockHeld                         another process holds the lock; `holder` says who
│   └── DriverAlreadyRunning         there is a driver already; the message says whose
├── AttachError                      the driver gave no lease; `code`, `remedy` and the message say why
├── StreamBusy                       the stream has a producer already
├── RegionRejected                   an announced region broke a rule; nothing of it was mapped
├── RegionCreateError (OSError)      regions could not be made; nothing was left behind
├── ServiceError                     a service that was asked for something
│   ├── NoSuchService (LookupError)  nobody answers to that name
│   ├── RequestRejected              it refused, and says why
│   ├── CommandFailed                it accepted, and then something went wrong there
│   └── ServiceTimeout (TimeoutError)    it is there, and did not answer in time
├── DiscoveryError                   streams that were looked for
│   ├── NoProvider (TimeoutError)    nobody answered
│   ├── StreamNotFound (LookupError)     no stream of that name was there in time
│   ├── AmbiguousStream (LookupError)    several streams have it
│   └── StreamNotLocal               its driver is on another machine: only a bridge reaches it
├── MissingPackage (ImportError)     what was asked for needs a package that is not installed
├── RecordingError                   a recording on disk; `path` says where
│   ├── NotARecording (ValueError)   there is none, or one of a format that is too new
│   ├── CorruptRecording (ValueError)    bytes that are not what was written; `offset` says where
│   ├── FrameNotRecorded (LookupError)   no such frame, or retention has removed it
│   ├── InvalidFrames (ValueError)   frames that cannot be recorded: out of order, or not as they say
│   ├── MergeConflict (ValueError)   two recordings have different frames under one sequence
│   └── WriteFailed (OSError)        the disk did not take it
│       └── DiskFull                 there is no room; what was written before is kept
├── PipelineError                    a pipeline cannot begin, or go on; the message says what to do
└── MediaDriverError                 Aeron's media driver
    ├── MediaDriverBusy              there is one in that directory already
    └── MediaDriverUnavailable (TimeoutError)    none answered in time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike


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


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong with a configuration."""

    reason: str
    key: str | None = None
    """Where in the configuration, as in `driver.streams[1].nslots`."""
    value: str | None = None
    """What stands there; None for a secret."""
    source: str | None = None
    """The file, environment variable or flag that it came by."""
    line: int | None = None
    """The line in that file."""
    suggestion: str | None = None
    """The nearest that would be right."""

    def __str__(self) -> str:
        source = None
        if self.source is not None:
            source = self.source if self.line is None else f"{self.source}:{self.line}"
        what = self.key if self.value is None else f"{self.key} = {self.value}"
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        return ": ".join(part for part in (source, what, self.reason) if part) + hint


class InvalidConfig(ConfigError):
    """A configuration cannot be used. `problems` has all that was found, not only the first."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = (f"\n  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems in the configuration:{''.join(lines)}"


class RoleFailed(TensorPoolError):
    """Raised in a duty cycle when going on makes no sense: the runner stops the role, in good order."""

    def __init__(self, message: str, *, role: str | None = None) -> None:
        super().__init__(message)
        self.role = role


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


class DriverAlreadyRunning(LockHeld):
    """Another driver is there already. `pid` is its process, `embedded` whether it is part of a program."""

    def __init__(self, message: str, *, holder: str, pid: int, embedded: bool) -> None:
        super().__init__(message, holder=holder)
        self.pid = pid
        self.embedded = embedded


class AttachError(TensorPoolError):
    """The driver gave no lease, or did not answer.

    `code` is the driver's (`REJECTED`, `INVALID_PARAMS`, `UNSUPPORTED`, `INTERNAL_ERROR`), or `NO_ANSWER`,
    or `PROTOCOL` for an answer that cannot be used, or `REGIONS` for memory that cannot. `remedy` says what
    can be done.
    """

    def __init__(self, message: str, *, code: str, remedy: str, stream_id: int) -> None:
        super().__init__(f"stream {stream_id}: {code}: {message}; {remedy}")
        self.code = code
        self.reason = message
        self.remedy = remedy
        self.stream_id = stream_id


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


class ServiceError(TensorPoolError):
    """A service did not do what it was asked."""


class NoSuchService(ServiceError, LookupError):
    """Nobody answers to that name."""


class RequestRejected(ServiceError):
    """The service refused; the message is its reason."""


class CommandFailed(ServiceError):
    """The service accepted the command, and then something went wrong there."""


class ServiceTimeout(ServiceError, TimeoutError):
    """The service is there, and did not answer in time."""


class DiscoveryError(TensorPoolError):
    """Whoever was asked for streams could not say; the message is theirs."""


class NoProvider(DiscoveryError, TimeoutError):
    """Nobody answered: no driver and no registry where they were asked for."""


class StreamNotFound(DiscoveryError, LookupError):
    """No such stream was there in time."""


class AmbiguousStream(DiscoveryError, LookupError):
    """Several streams fit, and one was wanted."""


class StreamNotLocal(DiscoveryError):
    """The stream was found, and its memory is another machine's."""

    def __init__(self, message: str, *, stream_id: int, driver_instance_id: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.driver_instance_id = driver_instance_id


class MissingPackage(TensorPoolError, ImportError):
    """An optional package is not installed; the message says how to get it."""


class RecordingError(TensorPoolError):
    """Something is wrong with a recording. `path` is the file or directory."""

    def __init__(self, message: str, *, path: str | PathLike[str] | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotARecording(RecordingError, ValueError):
    """The directory holds no recording, or one that a newer version wrote."""


class CorruptRecording(RecordingError, ValueError):
    """Bytes of a recording are not what was written. `offset` is where in the file, if that is known."""

    def __init__(self, message: str, *, path: str | PathLike[str], offset: int | None = None) -> None:
        super().__init__(message, path=path)
        self.offset = offset


class FrameNotRecorded(RecordingError, LookupError):
    """The frame was never recorded, or retention has removed it."""


class InvalidFrames(RecordingError, ValueError):
    """Frames that cannot be recorded: their sequences do not grow, or a tensor does not fit its payload."""


class MergeConflict(RecordingError, ValueError):
    """Two recordings have different frames under the same stream, epoch and sequence."""


class WriteFailed(RecordingError, OSError):
    """The disk did not take what was written. `code` is the operating system's errno."""

    def __init__(self, message: str, *, path: str | PathLike[str], code: int | None = None) -> None:
        super().__init__(message, path=path)
        self.code = code


class DiskFull(WriteFailed):
    """There is no room left. What was written before is kept, and writing can go on when there is room."""


class PipelineError(TensorPoolError):
    """A pipeline cannot begin, or go on. What its tables have stays as it is."""
