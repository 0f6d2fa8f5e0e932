"""How a replay looks on a screen: its line while it runs, its account at the end, a frame at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .screen import DIM, WARN, format_bytes, format_duration, format_shape

if TYPE_CHECKING:
    from ..recording import RecordedFrame
    from ..replayer import ReplayStats


def line(stats: ReplayStats) -> Text:
    """Position, speed, rate, bandwidth, time left."""
    found = Text()
    found.append(stats.state, style="bold" if stats.state == "playing" else WARN)
    if stats.position_ns is not None:
        found.append(f"  {_clock_text(stats.position_ns)}")
    if stats.done is not None:
        found.append(f"  {stats.done:.0%}")
    found.append("  max" if stats.speed is None else f"  {stats.speed:g}x", style=DIM)
    found.append(f"  {stats.frames:,} frames  {stats.rate_hz:,.0f} Hz  {format_bytes(stats.bytes_per_s)}/s")
    if stats.passes > 1:
        found.append(f"  pass {stats.passes:,}")
    if stats.left_s is not None:
        found.append(f"  {format_duration(stats.left_s)} left", style=DIM)
    if stats.missing:
        found.append(f"  {stats.missing:,} missing", style=WARN)
    return found


def summary(stats: ReplayStats) -> str:
    """What was played, and what became of it."""
    words = [
        f"played {stats.frames:,} frames, {format_bytes(stats.nbytes)}, in {format_duration(stats.elapsed_s)} "
        f"({stats.rate_hz:,.0f} Hz, {format_bytes(stats.bytes_per_s)}/s)"
    ]
    for one in stats.streams:
        became = ", ".join(f"{name} {count:,}" for name, count in one.outcomes.items()) or "nothing played"
        mapped = "" if one.recorded == one.stream_id else f" as {one.stream_id}"
        words.append(f"stream {one.recorded}{mapped}: {became}")
    for count, what in (
        (stats.missing, f"frames are missing in {stats.gaps:,} gaps of the recording"),
        (stats.damaged, "frames are damaged and were left out"),
        (stats.unfit, "tensors fit no reader and were left out"),
        (
            stats.late,
            f"frames were late by more than 1 ms, the latest by {format_duration(stats.late_max_s)}",
        ),
        (stats.stalls, "times this machine could not keep up"),
    ):
        if count:
            words.append(f"{count:,} {what}")
    return "\n".join(words)


def frame_text(frame: RecordedFrame) -> str:
    trace = "" if frame.trace_id is None else f"  trace {frame.trace_id:x}"
    return (
        f"{_clock_text(frame.receive_time_ns)}  stream {frame.stream_id}  seq {frame.seq}  "
        f"{frame.element_type} {format_shape(frame.shape)}{trace}"
    )


def frame_line(frame: RecordedFrame) -> dict[str, Any]:
    return {
        "stream_id": frame.stream_id, "epoch": str(frame.epoch), "seq": str(frame.seq),
        "receive_time_ns": str(frame.receive_time_ns), "timestamp_ns": str(frame.timestamp_ns),
        "dtype": frame.element_type, "shape": list(frame.shape), "nbytes": frame.nbytes,
        "crc32c": f"{frame.crc32c:08x}",
        "trace_id": None if frame.trace_id is None else str(frame.trace_id),
    }  # fmt: skip


def _clock_text(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 10**6:03}Z"
