"""`tensorpool replay`: publishes a recording again; its progress line, summary and single steps."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

import click
from rich.text import Text

from ..text import JsonMapping
from .output import DIM, WARN, console, format_bytes, format_duration, format_shape
from .params import Duration, Offset, RecordingRef, Speed, StreamRef, StreamRemap, TimeOrOffset

if TYPE_CHECKING:
    from ..recording import RecordedFrame, Recording
    from ..replayer import Replay, ReplayStats, TimeBase


def format_progress(stats: ReplayStats) -> Text:
    """The progress line: position, speed, rate, bandwidth, time left."""
    text = Text()
    text.append(stats.state, style="bold" if stats.state == "playing" else WARN)
    if stats.position_ns is not None:
        text.append(f"  {_format_time(stats.position_ns)}")
    if stats.done is not None:
        text.append(f"  {stats.done:.0%}")
    text.append("  max" if stats.speed is None else f"  {stats.speed:g}x", style=DIM)
    text.append(f"  {stats.frames:,} frames  {stats.rate_hz:,.0f} Hz  {format_bytes(stats.bytes_per_s)}/s")
    if stats.passes > 1:
        text.append(f"  pass {stats.passes:,}")
    if stats.left_s is not None:
        text.append(f"  {format_duration(stats.left_s)} left", style=DIM)
    if stats.missing:
        text.append(f"  {stats.missing:,} missing", style=WARN)
    return text


def format_summary(stats: ReplayStats) -> str:
    """Published frames, their outcomes by stream, and everything unusual."""
    lines = [
        f"played {stats.frames:,} frames, {format_bytes(stats.nbytes)}, "
        f"in {format_duration(stats.elapsed_s)} "
        f"({stats.rate_hz:,.0f} Hz, {format_bytes(stats.bytes_per_s)}/s)"
    ]
    for stream in stats.streams:
        outcomes = ", ".join(f"{name} {count:,}" for name, count in stream.outcomes.items())
        target = "" if stream.recorded == stream.stream_id else f" as {stream.stream_id}"
        lines.append(f"stream {stream.recorded}{target}: {outcomes or 'no frames published'}")
    for count, text in (
        (stats.missing, f"frames are missing in {stats.gaps:,} gaps of the recording"),
        (stats.damaged, "damaged frames were skipped"),
        (stats.unfit, "invalid tensors were skipped"),
        (
            stats.late,
            f"frames were late by more than 1 ms, the latest by {format_duration(stats.late_max_s)}",
        ),
        (stats.stalls, "times this machine could not keep up"),
    ):
        if count:
            lines.append(f"{count:,} {text}")
    return "\n".join(lines)


def format_frame(frame: RecordedFrame) -> str:
    """One line about a frame."""
    trace = "" if frame.trace_id is None else f"  trace {frame.trace_id:x}"
    return (
        f"{_format_time(frame.receive_time_ns)}  stream {frame.stream_id}  seq {frame.seq}  "
        f"{frame.element_type} {format_shape(frame.shape)}{trace}"
    )


def frame_json(frame: RecordedFrame) -> JsonMapping:
    """A frame as JSON, with 64-bit numbers as text."""
    return {
        "stream_id": frame.stream_id, "epoch": str(frame.epoch), "seq": str(frame.seq),
        "receive_time_ns": str(frame.receive_time_ns), "timestamp_ns": str(frame.timestamp_ns),
        "dtype": frame.element_type, "shape": list(frame.shape), "nbytes": frame.nbytes,
        "crc32c": f"{frame.crc32c:08x}",
        "trace_id": None if frame.trace_id is None else str(frame.trace_id),
    }  # fmt: skip


def _format_time(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 10**6:03}Z"


_EPILOG = """
\b
Examples:
  tensorpool replay DIR
  tensorpool replay DIR --speed max --wait 10
  tensorpool replay DIR --stream 20000 --map 20000=20050 --loop
  tensorpool replay DIR --from +10s --to +20s --speed 0.5
  tensorpool replay DIR --step
  tensorpool replay s3://bucket/recording
"""
_STATS_PERIOD_S: Final = 1.0


@click.command(epilog=_EPILOG)
@click.argument("directory", metavar="DIR", type=RecordingRef())
@click.option(
    "--speed", default="1", show_default=True, type=Speed(), help="Factor to the recorded speed, or max."
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.FloatRange(0, min_open=True),
    help="Fixed rate in frames per second, instead of --speed.",
)
@click.option(
    "--from",
    "start",
    type=TimeOrOffset(),
    help="First time of receipt (UTC), or an offset from the first frame, as in +10s.",
)
@click.option(
    "--to",
    "end",
    type=TimeOrOffset(),
    help="Last time of receipt (UTC), or an offset from the first frame, as in +20s.",
)
@click.option("--first-seq", type=click.IntRange(0), help="First sequence to publish.")
@click.option("--last-seq", type=click.IntRange(0), help="Last sequence to publish.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    type=StreamRef(),
    help="Only this stream, by id or name; may be repeated.",
)
@click.option("--epoch", type=click.IntRange(0), help="Only this recorded epoch.")
@click.option(
    "--map",
    "pairs",
    multiple=True,
    type=StreamRemap(),
    help="20000=20050 or camera-1=20050: publish a stream under another id; may be repeated.",
)
@click.option("--loop", is_flag=True, help="Start over at the end, until Ctrl-C.")
@click.option("--step", is_flag=True, help="Publish one frame per key press or line of input.")
@click.option(
    "--time-base", type=click.Choice(["receive", "publish", "source"]), default="receive", show_default=True,
    help="Times whose spacing is kept: of receipt, of publication, or of the source.",
)  # fmt: skip
@click.option("--max-pause", type=Duration(), help="Shorten pauses that are longer than this, as in 2s.")
@click.option(
    "--wait", type=Duration(), default=0.0, help="Longest time to wait for a consumer of each stream."
)
@click.option(
    "--linger",
    type=Duration(),
    default=1.0,
    show_default=True,
    help="Time for which consumers can read the last frames.",
)
@click.option("--nslots", type=int, help="Slots of the header rings. [as recorded]")
@click.option(
    "--check/--no-check", default=None, help="Compare payloads with their checksums. [unless --speed max]"
)
@click.option("--skip-damage", is_flag=True, help="Skip damaged frames and count them.")
@click.option("--metadata/--no-metadata", default=True, help="Publish the recorded metadata. [yes]")
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file. [TENSORPOOL_CONFIG]")
@click.option("--aeron-dir", help="Directory of the media driver. [AERON_DIR, else Aeron's default]")
@click.option("--json", "json_output", is_flag=True, help="Print JSON lines on stdout.")
def replay(
    directory: str, start: int | None, end: int | None, first_seq: int | None, last_seq: int | None,
    streams: tuple[int | str, ...], pairs: tuple[tuple[int | str, int], ...], step: bool, time_base: str,
    config: str | None, aeron_dir: str | None, json_output: bool, **options: Any,
) -> None:  # fmt: skip
    """Publish the recording DIR again, through producers.

    Frames keep their spacing, timestamps, metadata and traces; sequences and epochs are new. Streams keep
    their ids without --map, so the recorded producers must not be running. Ctrl-C ends the replay.
    """
    from .. import context
    from ..recording import Recording
    from ..replayer import replay as start_replay

    recording = Recording(directory)
    ids = tuple(recording.find_stream(stream) for stream in streams)
    first_ns, last_ns = (_resolve_time(time, recording, ids) for time in (start, end))
    with (
        suppress(KeyboardInterrupt),
        _sigterm_as_interrupt(),
        context.open(aeron_dir=aeron_dir, config=config) as ctx,
        start_replay(
            directory, context=ctx, start=first_ns, end=last_ns, seq=(first_seq, last_seq),
            streams=streams or None, mapping=dict(pairs), paused=step,
            time_base=cast("TimeBase", time_base), **options,
        ) as running,
    ):  # fmt: skip
        show_replay(running, step, json_output)


def show_replay(running: Replay, step: bool, json_output: bool) -> None:
    """Run to the end, and print the final stats exactly once, whatever ends the replay."""
    is_printed = False
    try:
        _step(running, json_output) if step else _watch(running, json_output)
        with _ignore_signals():
            _print_stats(running, json_output)
            is_printed = True
    except BaseException:
        if not is_printed:
            with _ignore_signals():
                _print_stats(running, json_output)
        raise


def _print_stats(running: Replay, json_output: bool) -> None:
    stats = running.stats()
    if json_output:
        click.echo(json.dumps(stats.to_json()))
    else:
        click.echo(format_summary(stats), err=True)


@contextmanager
def _ignore_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM: a Ctrl-C while the stats are printed would lose them."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _resolve_time(time: int | None, recording: Recording, streams: tuple[int, ...]) -> int | None:
    """A time, or the time of an offset from the first frame."""
    if not isinstance(time, Offset):
        return time
    firsts = [
        frame.receive_time_ns
        for stream in streams or recording.streams
        for frame in recording.frames(stream)[:1]
    ]  # fmt: skip
    return min(firsts, default=0) + time


def _watch(running: Replay, json_output: bool) -> None:
    if json_output:
        while not running.wait(_STATS_PERIOD_S):
            click.echo(json.dumps(running.stats().to_json()))
            sys.stdout.flush()
        return
    screen = console(err=True)
    if not screen.is_terminal:
        running.wait()
        return
    from rich.live import Live

    with Live(format_progress(running.stats()), console=screen, transient=True) as live:
        for stats in running:
            live.update(format_progress(stats))


def _step(running: Replay, json_output: bool) -> None:
    """Publish a frame per key or line, until the end of the recording or the input, or the key q."""
    if sys.stdin.isatty():
        click.echo("space or Enter: publish the next frame; q: quit", err=True)
    for _ in _keys():
        frame = running.step()
        if frame is None:
            if running.stats().state != "ended":
                click.echo("no frame can be published now (no consumer or no driver); try again", err=True)
                continue
            return
        click.echo(json.dumps(frame_json(frame)) if json_output else format_frame(frame))
        sys.stdout.flush()


def _keys() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    while (key := click.getchar()) not in ("q", "Q", "\x04"):
        yield key
