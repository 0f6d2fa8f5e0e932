"""How a replay stands, as numbers for programs and for the progress line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..recording import Cursor, Recording
from ..recording.manifest import RecordKind
from .agent import ReplayAgent
from .stream import ReplayStream

State = Literal["waiting", "playing", "paused", "away", "ended", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream of a replay."""

    recorded: int
    """Its stream id in the recording."""
    stream_id: int
    """The one that it is played as."""
    epoch: int | None
    frames: int
    outcomes: dict[str, int]
    """Frames of this replay by what became of them: `published` ones were told to somebody."""
    last: Cursor | None
    """The recorded frame that was played last."""
    reopened: int
    """How often it began anew because a frame was larger than its pools."""
    timestamp_shift_ns: int
    """What is added to recorded timestamps, after a loop or a jump back."""

    def as_json(self) -> dict[str, Any]:
        last = None if self.last is None else {"epoch": str(self.last.epoch), "seq": str(self.last.seq)}
        return {
            "recorded": self.recorded, "stream_id": self.stream_id,
            "epoch": None if self.epoch is None else str(self.epoch),
            "frames": self.frames, "outcomes": self.outcomes, "last": last, "reopened": self.reopened,
            "timestamp_shift_ns": str(self.timestamp_shift_ns),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """A moment of a replay. Times are the recorder's, in nanoseconds since 1970."""

    state: State
    speed: float | None
    """How many times as fast as recorded; None for as fast as it goes."""
    position_ns: int | None
    first_ns: int | None
    last_ns: int | None
    passes: int
    elapsed_s: float
    """Since the first frame, without pauses."""
    frames: int
    nbytes: int
    gaps: int
    """Holes in the recording that were passed over."""
    missing: int
    """Frames that are missing there."""
    unfit: int
    """Recorded tensors that no reader would take: left out."""
    damaged: int
    """Frames whose payload is not what was written: left out, if that was asked for."""
    late: int
    """Frames that went out more than 1 ms after their time."""
    late_max_s: float
    stalls: int
    """How often everything was put off, because this machine could not keep up."""
    streams: tuple[StreamStats, ...]

    @property
    def rate_hz(self) -> float:
        return self.frames / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def done(self) -> float | None:
        """Which part of the recording's time lies behind; None where that is not known."""
        if self.position_ns is None or self.first_ns is None or self.last_ns is None:
            return None
        span = self.last_ns - self.first_ns
        return 1.0 if span <= 0 else min(1.0, max(0.0, (self.position_ns - self.first_ns) / span))

    @property
    def left_s(self) -> float | None:
        """How long the rest of this pass will take."""
        if self.state == "ended" or self.position_ns is None or self.last_ns is None:
            return 0.0 if self.state == "ended" else None
        if self.speed is not None:
            return max(0, self.last_ns - self.position_ns) / 1e9 / self.speed
        done = self.done
        return None if not done or self.passes > 1 else self.elapsed_s * (1 - done) / done

    def as_json(self) -> dict[str, Any]:
        """With 64-bit numbers as text."""
        return {
            "state": self.state, "speed": self.speed,
            **{name: _text(getattr(self, name)) for name in ("position_ns", "first_ns", "last_ns")},
            **{
                name: getattr(self, name)
                for name in (
                    "passes", "elapsed_s", "frames", "nbytes", "rate_hz", "bytes_per_s", "done", "left_s",
                    "gaps", "missing", "unfit", "damaged", "late", "late_max_s", "stalls",
                )
            },
            "streams": [one.as_json() for one in self.streams],
        }  # fmt: skip


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def stream_stats(lane: ReplayStream) -> StreamStats:
    return StreamStats(
        lane.source.stream_id, lane.target, lane.producer.epoch, lane.frames,
        lane.outcomes(), lane.last, lane.reopened, lane.shift_ns,
    )  # fmt: skip


def bounds_of(recording: Recording, agent: ReplayAgent) -> tuple[int | None, int | None]:
    """When the first and the last frame of the streams that are played were received."""
    played = [lane.source.stream_id for lane in agent.lanes]
    records = recording.segments[np.isin(recording.segments["stream_id"], played)]
    sealed = records[(records["kind"] == RecordKind.SEALED) & (records["rows"] > 0)]
    firsts, lasts = sealed["first_time_ns"].tolist(), sealed["last_time_ns"].tolist()
    return min(firsts, default=None), max(lasts, default=None)
