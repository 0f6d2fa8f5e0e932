"""The stats of a replay, for programs and for the progress line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np

from ..recording import Cursor, Recording
from ..recording.manifest import RecordKind
from ..text import JsonMapping
from .stream import ReplayStream

State = Literal["waiting", "playing", "paused", "disconnected", "ended", "failed", "closed"]
"""waiting: for consumers. disconnected: the driver or the media driver is not running."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Counts of one stream of a replay."""

    recorded: int
    """Its stream id in the recording."""
    stream_id: int
    """The stream id under which it is published."""
    epoch: int | None
    """The epoch in which it is published; None before the first."""
    frames: int
    """Published frames."""
    outcomes: dict[str, int]
    """Frames by outcome of their publication: `published` means that a consumer was connected."""
    last: Cursor | None
    """The recorded frame that was published last."""
    reopened: int
    """Times the producer was reopened because a frame was larger than its pools."""
    timestamp_shift_ns: int
    """Added to recorded timestamps after a loop or a seek back."""

    @classmethod
    def from_stream(cls, stream: ReplayStream) -> Self:
        """The stats of a stream now."""
        return cls(
            stream.reader.stream_id, stream.target, stream.producer.epoch, stream.frames,
            stream.outcomes(), stream.last, stream.reopened, stream.shift_ns,
        )  # fmt: skip

    def to_json(self) -> JsonMapping:
        """The stats as JSON, with 64-bit numbers as text."""
        last = None if self.last is None else {"epoch": str(self.last.epoch), "seq": str(self.last.seq)}
        return {
            "recorded": self.recorded, "stream_id": self.stream_id, "epoch": _text(self.epoch),
            "frames": self.frames, "outcomes": self.outcomes, "last": last, "reopened": self.reopened,
            "timestamp_shift_ns": str(self.timestamp_shift_ns),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """State and counts of a replay at one moment. Times are the recorder's, in nanoseconds since 1970."""

    state: State
    """What the replay does."""
    speed: float | None
    """Factor to the recorded speed; None for "max"."""
    position_ns: int | None
    """Where the replay is; None before the first frame."""
    first_ns: int | None
    """Where its frames begin."""
    last_ns: int | None
    """Where they end."""
    passes: int
    """Times that all frames were played."""
    elapsed_s: float
    """Time since the first frame, without pauses."""
    frames: int
    """Published frames."""
    nbytes: int
    """Bytes of their tensors."""
    gaps: int
    """Gaps of the recording that were passed."""
    missing: int
    """Frames missing in these gaps."""
    unfit: int
    """Recorded tensors that are invalid for every consumer; they are not published."""
    damaged: int
    """Frames with a wrong checksum that were skipped because of `skip_damage`."""
    late: int
    """Frames published more than 1 ms after they were due."""
    late_max_s: float
    """The most that one of them was late."""
    stalls: int
    """Times all remaining frames were delayed because this machine could not keep up."""
    streams: tuple[StreamStats, ...]
    """The counts of each stream."""

    @property
    def rate_hz(self) -> float:
        """Published frames per second."""
        return self.frames / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Published payload bytes per second."""
        return self.nbytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def done(self) -> float | None:
        """The part of the recorded time that is published, 0 to 1; None if unknown."""
        if self.position_ns is None or self.first_ns is None or self.last_ns is None:
            return None
        span = self.last_ns - self.first_ns
        return 1.0 if span <= 0 else min(1.0, max(0.0, (self.position_ns - self.first_ns) / span))

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end of this pass; None if unknown."""
        if self.state == "ended" or self.position_ns is None or self.last_ns is None:
            return 0.0 if self.state == "ended" else None
        if self.speed is not None:
            return max(0, self.last_ns - self.position_ns) / 1e9 / self.speed
        done = self.done
        return None if not done or self.passes > 1 else self.elapsed_s * (1 - done) / done

    def to_json(self) -> JsonMapping:
        """The stats as JSON, with 64-bit numbers as text."""
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
            "streams": [stream.to_json() for stream in self.streams],
        }  # fmt: skip


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


class RecordedTimeRange(NamedTuple):
    """When the first and the last frame were received; None if no segment is sealed."""

    first_ns: int | None
    last_ns: int | None


def recorded_time_range(recording: Recording, stream_ids: Iterable[int]) -> RecordedTimeRange:
    """The time range of the sealed segments of these streams."""
    records = recording.segments[np.isin(recording.segments["stream_id"], list(stream_ids))]
    sealed = records[(records["kind"] == RecordKind.SEALED) & (records["rows"] > 0)]
    return RecordedTimeRange(
        min(sealed["first_time_ns"].tolist(), default=None),
        max(sealed["last_time_ns"].tolist(), default=None),
    )
