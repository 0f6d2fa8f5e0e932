"""What the state machine wants done, and what comes back of it.

Plain values: the agent does the actions, and the results are events of the state machine.
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
    """A message for the control stream."""

    message: Message
    is_repeat: bool = field(default=False, compare=False)
    """An answer that was given before, to a request that came again."""


@dataclass(frozen=True, slots=True)
class MakeFiles:
    """Make files under a new epoch. Comes back as `FilesReady` or `FilesFailed`."""

    plan: StreamPlan


@dataclass(frozen=True, slots=True)
class AssignFiles:
    """Give clean files a further epoch. Comes back as `FilesReady` or `FilesFailed`; then they are gone."""

    plan: StreamPlan
    files: EpochFiles


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove a directory. Comes back as `FilesRemoved`."""

    stream_id: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce these from now on, with fresh activity. Answered at once: `on_announced`."""

    stream_id: int
    files: EpochFiles
    producer_id: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """No more announces and no more activity for this stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class SaveProvisions:
    """Keep what is provisioned now for the next start."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Come to an orderly end."""

    reason: ShutdownReason
    words: str


Action: TypeAlias = Send | MakeFiles | AssignFiles | RemoveFiles | Announce | Withdraw | SaveProvisions | Stop


@dataclass(frozen=True, slots=True)
class FilesReady:
    """Made or assigned; nobody has been told of them yet."""

    stream_id: int
    files: EpochFiles


@dataclass(frozen=True, slots=True)
class FilesFailed:
    """Not made, or lost while they were assigned. Nothing is left of them."""

    stream_id: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class FilesRemoved:
    """The directory is gone."""

    stream_id: int
    directory: Path


FileResult: TypeAlias = FilesReady | FilesFailed | FilesRemoved
