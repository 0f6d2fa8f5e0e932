"""Actions of the driver's state machine, and the results of file work. Pure.

Plain values: the agent performs the actions; the results are events of the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..sbe.driver import ShutdownReason
from ..sbe.message import Message
from ..shm import EpochFiles
from .leases import Refusal
from .plan import StreamPlan


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on the control stream."""

    message: Message
    is_repeat: bool = field(default=False, compare=False)
    """The cached response to a repeated request."""
    client_id: int | None = field(default=None, compare=False)
    """Whose request it answers, for the log: responses carry no client id. None: it could not be read."""
    is_awaited: bool = field(default=False, compare=False)
    """A client is known to wait for it: it has asked more than once, or uses a lease. Sent before the
    others."""


@dataclass(frozen=True, slots=True)
class MakeFiles:
    """Create files under a new epoch. The result is `FilesReady` or `FilesFailed`."""

    plan: StreamPlan


@dataclass(frozen=True, slots=True)
class AssignFiles:
    """Give clean files a new epoch. The result is `FilesReady`, or `FilesFailed` without files."""

    plan: StreamPlan
    files: EpochFiles


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove a directory. The result is `FilesRemoved`."""

    stream_id: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce these files and refresh their activity timestamps. The result goes to `on_announced`."""

    stream_id: int
    files: EpochFiles
    producer_id: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop announces and activity timestamps of this stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class SaveProvisions:
    """Save the present provisions for the next start."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the driver cleanly."""

    reason: ShutdownReason
    message: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning."""

    text: str


Action: TypeAlias = (
    Send | MakeFiles | AssignFiles | RemoveFiles | Announce | Withdraw | SaveProvisions | Stop | Warn
)


@dataclass(frozen=True, slots=True)
class FilesReady:
    """Files were created or assigned, and are not announced yet."""

    stream_id: int
    files: EpochFiles


@dataclass(frozen=True, slots=True)
class FilesFailed:
    """Files were not created, or were lost during assignment. None remain."""

    stream_id: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class FilesRemoved:
    """The directory was removed."""

    stream_id: int
    directory: Path


FileResult: TypeAlias = FilesReady | FilesFailed | FilesRemoved
