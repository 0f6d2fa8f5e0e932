"""When a recorder writes: at once, when told, and not while the disk is full. Pure: time is handed in.

What a recorder shows of itself, and how fast it is. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from .arena import ArenaRows

NOT_TRIGGERED: Final = "not_triggered"
"""Frames between two triggers: they were there, and nobody wanted them."""


class TriggerGate:
    """Open: what comes is written. Shut: the last `keep_ns` are kept until someone pulls the trigger."""

    def __init__(self, keep_ns: int | None) -> None:
        self.keep_ns = keep_ns
        self._is_open = keep_ns is None
        self._until_ns: int | None = None
        self.triggers = 0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def trigger(self, now_ns: int, for_ns: int | None = None) -> None:
        """Opens, for good or for a while. While open it only ever stays open longer."""
        was_open, self._is_open = self._is_open, True
        self.triggers += 1
        if for_ns is None or self.keep_ns is None:
            self._until_ns = None
        elif not was_open or self._until_ns is not None:
            self._until_ns = max(self._until_ns or 0, now_ns + for_ns)

    def shut_if_over(self, now_ns: int) -> bool:
        """Whether its time is over just now."""
        if not self._is_open or self._until_ns is None or now_ns < self._until_ns:
            return False
        self._is_open, self._until_ns = False, None
        return True


class PreTriggerBuffer:
    """The pieces of the last while, of all streams, in the order in which they came."""

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._pieces: deque[ArenaRows] = deque()

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: ArenaRows) -> None:
        self._pieces.append(piece)

    def forget(self, now_ns: int) -> int:
        """Lets go of what is too old; gives how many."""
        count = 0
        while self._pieces and self._pieces[0].newest_ns < now_ns - self._keep_ns:
            self._pieces.popleft()
            count += 1
        return count

    def forget_oldest(self) -> bool:
        """Lets go of one, young or not: its memory is needed."""
        if self._pieces:
            self._pieces.popleft()
            return True
        return False

    def drain(self, now_ns: int) -> Iterator[ArenaRows]:
        """Gives what is young enough, and keeps nothing."""
        while self._pieces:
            piece = self._pieces.popleft().since(now_ns - self._keep_ns)
            if piece is not None:
                yield piece


class DiskSpace:
    """Whether there is room, by what the last look or the last write said. Looks again after a while."""

    def __init__(self, *, keep_free_bytes: int, retry_ns: int = 1_000_000_000) -> None:
        self._keep_free_bytes = keep_free_bytes
        self._retry_ns = retry_ns
        self._next_look_ns: int | None = None
        self.problem: str | None = None
        """Why nothing is written at the moment."""

    @property
    def is_good(self) -> bool:
        return self.problem is None

    def wants_look(self, now_ns: int) -> bool:
        return self._next_look_ns is None or now_ns >= self._next_look_ns

    def looked(self, now_ns: int, free_bytes: int) -> bool:
        """What a look showed. True if that changes something.

        It takes twice the room to begin again: at the edge it would go on and off with every batch.
        """
        self._next_look_ns = now_ns + self._retry_ns
        needed = self._keep_free_bytes if self.is_good else 2 * self._keep_free_bytes
        was = self.is_good
        if free_bytes < needed or free_bytes == 0:
            if was:
                self.problem = f"{free_bytes >> 20} MiB are left, and {needed >> 20} MiB are kept free"
        else:
            self.problem = None
        return was != self.is_good

    def failed(self, now_ns: int, problem: str) -> bool:
        """A write came back with an error; True if that is news."""
        self._next_look_ns = now_ns + self._retry_ns
        was, self.problem = self.is_good, problem
        return was


State = Literal["recording", "armed", "stopped", "disk_full", "closed"]
"""armed: keeps the last while, and waits for its trigger."""


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """A recorder at one moment."""

    state: State
    problem: str | None
    """Why nothing is written, where something is wrong."""
    seconds: float
    streams: tuple[int, ...]
    rows: int
    payload_bytes: int
    gaps: dict[str, int] = field(default_factory=dict)
    """Sequences that are lost, by reason."""
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    backlog_bytes: int = 0
    """Memory in use for frames that are not on their way to the disk yet."""
    buffer_bytes: int = 0
    disk_free_bytes: int = 0
    strays: int = 0
    """Frames that were told twice, or out of turn: they belong to no account."""

    @property
    def lost(self) -> int:
        return sum(self.gaps.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "problem": self.problem,
            "seconds": round(self.seconds, 3),
            "streams": list(self.streams),
            "rows": self.rows,
            "payload_bytes": self.payload_bytes,
            "gaps": dict(sorted(self.gaps.items())),
            "rows_per_s": round(self.rows_per_s, 1),
            "bytes_per_s": round(self.bytes_per_s),
            "backlog_bytes": self.backlog_bytes,
            "buffer_bytes": self.buffer_bytes,
            "disk_free_bytes": self.disk_free_bytes,
            "strays": self.strays,
        }


class _Sample(NamedTuple):
    at_ns: int
    rows: int
    nbytes: int


class RateMeter:
    """Rows and bytes a second, over the last few seconds."""

    def __init__(self, window_ns: int = 3_000_000_000) -> None:
        self._window_ns = window_ns
        self._samples: deque[_Sample] = deque()

    def add(self, at_ns: int, rows: int, nbytes: int) -> None:
        self._samples.append(_Sample(at_ns, rows, nbytes))
        while len(self._samples) > 2 and at_ns - self._samples[1].at_ns >= self._window_ns:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last.at_ns - first.at_ns, 1) / 1e9
        return (last.rows - first.rows) / seconds, (last.nbytes - first.nbytes) / seconds
