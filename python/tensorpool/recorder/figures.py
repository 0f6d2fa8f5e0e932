"""What a recorder shows of itself, and how fast it is. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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


class Speed:
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
