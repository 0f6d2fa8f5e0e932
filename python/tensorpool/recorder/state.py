"""The recorder's state: trigger gate, pre-trigger buffer, stats and rates.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypedDict

from .arena_rows import ArenaRows

NOT_TRIGGERED: Final = "not_triggered"
"""Gap reason of frames that were received between two triggers and not written."""

State = Literal["recording", "armed", "stopped", "disk_full", "closed"]
"""armed: frames go to the pre-trigger buffer until a trigger."""


class TriggerGate:
    """Open: frames are written. Closed: the frames of the last `keep_ns` are kept until a trigger."""

    def __init__(self, keep_ns: int | None) -> None:
        """`keep_ns`: None for a gate that is always open."""
        self.keep_ns = keep_ns
        self._is_open = keep_ns is None
        self._until_ns: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames are written."""
        return self._is_open

    def trigger(self, now_ns: int, for_ns: int | None = None) -> None:
        """Open for `for_ns` or without end. A trigger never shortens the time of an earlier trigger."""
        was_open, self._is_open = self._is_open, True
        if for_ns is None or self.keep_ns is None:
            self._until_ns = None
        elif not was_open or self._until_ns is not None:
            self._until_ns = max(self._until_ns or 0, now_ns + for_ns)

    def close_if_expired(self, now_ns: int) -> bool:
        """Close if the time of the trigger is over; True if this call has closed the gate."""
        if not self._is_open or self._until_ns is None or now_ns < self._until_ns:
            return False
        self._is_open, self._until_ns = False, None
        return True


class PreTriggerBuffer:
    """Rows of all streams of the last `keep_ns`, in the order of receipt."""

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._rows: deque[ArenaRows] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, arena_rows: ArenaRows) -> None:
        """Append rows."""
        self._rows.append(arena_rows)

    def evict_expired(self, now_ns: int) -> int:
        """Remove arenas whose newest row is too old; returns their number."""
        count = 0
        while self._rows and self._rows[0].newest_ns < now_ns - self._keep_ns:
            self._rows.popleft()
            count += 1
        return count

    def evict_oldest(self) -> bool:
        """Remove the oldest arena because its memory is needed; False if there is none."""
        if self._rows:
            self._rows.popleft()
            return True
        return False

    def drain(self, now_ns: int) -> Iterator[ArenaRows]:
        """Remove everything; yields the rows of the last `keep_ns`."""
        while self._rows:
            recent = self._rows.popleft().since(now_ns - self._keep_ns)
            if recent is not None:
                yield recent


class RecorderStatsReply(TypedDict):
    """`RecorderStats` in JSON."""

    state: State
    problem: str | None
    seconds: float
    streams: list[int]
    rows: int
    payload_bytes: int
    gaps: dict[str, int]
    rows_per_s: float
    bytes_per_s: float
    backlog_bytes: int
    buffer_bytes: int
    disk_free_bytes: int
    strays: int
    lost_messages: int


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """State, counts and rates of a recorder at one moment."""

    state: State
    """What the recorder does."""
    problem: str | None
    """Why nothing is written; None if nothing is wrong."""
    seconds: float
    """Time since the start."""
    streams: tuple[int, ...]
    """Ids of the recorded streams."""
    rows: int
    """Recorded frames."""
    payload_bytes: int
    """Bytes of their tensors."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Missing sequences, by reason."""
    rows_per_s: float = 0.0
    """Frames recorded a second."""
    bytes_per_s: float = 0.0
    """Bytes of tensors recorded a second."""
    backlog_bytes: int = 0
    """Bytes of the buffer in use for frames that wait for the disk."""
    buffer_bytes: int = 0
    """Size of the buffer."""
    disk_free_bytes: int = 0
    """Free space on the disk of the recording."""
    strays: int = 0
    """Frames announced twice or out of order; no ledger counts them."""
    lost_messages: int = 0
    """Messages about streams and events that are missing in the tables, because the disk was full."""

    @property
    def lost(self) -> int:
        """Missing sequences of all reasons."""
        return sum(self.gaps.values())

    def to_json(self) -> RecorderStatsReply:
        """The stats as JSON."""
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
            "lost_messages": self.lost_messages,
        }


class _Sample(NamedTuple):
    time_ns: int
    rows: int
    nbytes: int


class ThroughputMeter:
    """Rows and bytes per second, over the last `window_ns`."""

    def __init__(self, window_ns: int = 3_000_000_000) -> None:
        self._window_ns = window_ns
        self._samples: deque[_Sample] = deque()

    def add(self, now_ns: int, rows: int, nbytes: int) -> None:
        """Add a sample of the two counts."""
        self._samples.append(_Sample(now_ns, rows, nbytes))
        while len(self._samples) > 2 and now_ns - self._samples[1].time_ns >= self._window_ns:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        """Rows per second and bytes per second; zero until there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last.time_ns - first.time_ns, 1) / 1e9
        return (last.rows - first.rows) / seconds, (last.nbytes - first.nbytes) / seconds
