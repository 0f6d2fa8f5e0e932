"""What a recorder can be told by file, environment and flags: `[recorder]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..runtime.config import DurationNs, SizeBytes, parse_duration, setting, settings
from ..units import parse_size

MAX_STREAM_ID: Final = 0xFFFF_FFFE
_SMALLEST_BUFFER: Final = 1 << 20


def _streams_fault(streams: tuple[int, ...]) -> str | None:
    wrong = [one for one in streams if not 0 < one <= MAX_STREAM_ID]
    if wrong:
        return f"{wrong[0]} is no stream id; use 1 to {MAX_STREAM_ID}"
    if len(set(streams)) < len(streams):
        return "a stream is there twice"
    return None


@settings("recorder")
class RecorderSettings:
    """The recorder: streams to disk, every sequence accounted for."""

    out: Path | None = setting(
        "The directory of the recording; one that is there is gone on with.", default=None, flag="--out"
    )
    streams: tuple[int, ...] = setting(
        "Streams to record, by id.", default=(), flag="--stream", check=_streams_fault
    )
    all: bool = setting("Records every stream that is announced, now or later.", default=False, flag="--all")
    instance: str = setting(
        "What it is called as a service, where there are several: `service:recorder:<instance>`.",
        default="",
        flag="--instance",
    )
    buffer_bytes: SizeBytes = setting(
        "Memory for frames that wait for the disk, reserved at the start. When it is full, frames are lost, "
        "and counted.",
        default=parse_size("256MiB"),
        minimum=_SMALLEST_BUFFER,
        flag="--buffer",
    )
    rotate_bytes: SizeBytes = setting(
        "A segment of this size is ended.", default=parse_size("256MiB"), minimum=1, flag="--rotate-bytes"
    )
    rotate_time_ns: DurationNs = setting(
        "A segment of this age is ended.",
        default=parse_duration("60s"),
        minimum=parse_duration("10ms"),
        flag="--rotate-time",
    )
    sync_ns: DurationNs = setting(
        "What was received is on the disk within this time, unless the disk is slower.",
        default=parse_duration("200ms"),
        minimum=parse_duration("1ms"),
    )
    pre_trigger_ns: DurationNs | None = setting(
        "Keeps the last while in memory and writes it when triggered. None: writes all there is.",
        default=None,
        minimum=parse_duration("1ms"),
        flag="--pre-trigger",
    )
    retain_bytes: SizeBytes | None = setting(
        "The recording is kept at most this large: the oldest segments go. None: nothing goes.",
        default=None,
        flag="--retain-bytes",
    )
    retain_age_ns: DurationNs | None = setting(
        "Segments whose newest frame is older than this go. None: nothing goes.",
        default=None,
        flag="--retain-age",
    )
    keep_free_bytes: SizeBytes = setting(
        "Writing stops while the disk has less room than this, and goes on when there is twice as much.",
        default=parse_size("64MiB"),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if self.all and self.streams:
            yield "all", "records every stream, so there is no need to name some"
