"""`tensorpool replay`: a recording through producers again, at its own pace or any other.

How a replay looks on a screen: its line while it runs, its account at the end, a frame at a time.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click
from rich.text import Text

from .output import DIM, WARN, console, format_bytes, format_duration, format_shape
from .params import Duration, Offset, Speed, StreamRemap, TimeOrOffset

if TYPE_CHECKING:
    from ..recording import RecordedFrame, Recording
    from ..replayer import Replay, ReplayStats, TimeBase


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
        f"played {stats.frames:,} frames, {format_bytes(stats.nbytes)}, "
        f"in {format_duration(stats.elapsed_s)} "
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


_EPILOG = """
\b
Examples:
  tensorpool replay DIR
  tensorpool replay DIR --speed max --wait 10
  tensorpool replay DIR --stream 20000 --map 20000=20050 --loop
  tensorpool replay DIR --from +10s --to +20s --speed 0.5
  tensorpool replay DIR --step
"""
_REPORT_S = 1.0


@click.command(epilog=_EPILOG)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--speed", default="1", show_default=True, type=Speed(), help="How many times as fast, or max.")
@click.option("--rate", "rate_hz", type=click.FloatRange(0, min_open=True), help="Frames a second instead.")
@click.option("--from", "start", type=TimeOrOffset(), help="From this time of receipt on (UTC), or +10s.")
@click.option(
    "--to", "end", type=TimeOrOffset(), help="Until this time, or +20s: so long after the first frame."
)
@click.option("--first-seq", type=click.IntRange(0), help="The first sequence to play.")
@click.option("--last-seq", type=click.IntRange(0), help="The last sequence to play.")
@click.option("--stream", "streams", multiple=True, type=int, help="Only this stream; may be repeated.")
@click.option("--epoch", type=click.IntRange(0), help="Only this recorded epoch.")
@click.option(
    "--map", "pairs", multiple=True, type=StreamRemap(), help="20000=20050: play a stream as another."
)
@click.option("--loop", is_flag=True, help="Begin again at the end, until Ctrl-C.")
@click.option("--step", is_flag=True, help="A frame at each key press or line of input.")
@click.option(
    "--clock", type=click.Choice(["receive", "publish", "source"]), default="receive", show_default=True,
    help="The times that the spacing is kept of.",
)  # fmt: skip
@click.option("--max-pause", type=Duration(), help="Shorten silence that is longer than this, as in 2s.")
@click.option("--wait", type=Duration(), default=0.0, help="Wait so long for a consumer of each stream.")
@click.option(
    "--linger", type=Duration(), default=1.0, show_default=True, help="How long the last frames stay."
)
@click.option("--nslots", type=int, help="Length of the rings. [as the sources had it]")
@click.option("--check/--no-check", default=None, help="Compare with checksums first. [unless at max]")
@click.option("--skip-damage", is_flag=True, help="Leave out what is damaged, and count it.")
@click.option("--metadata/--no-metadata", default=True, help="Say what the sources said. [yes]")
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file. [TENSORPOOL_CONFIG]")
@click.option("--aeron-dir", help="Where the media driver is. [AERON_DIR, else Aeron's default]")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def replay(
    directory: str, start: int | None, end: int | None, first_seq: int | None, last_seq: int | None,
    streams: tuple[int, ...], pairs: tuple[tuple[int, int], ...], step: bool, clock: str,
    config: str | None, aeron_dir: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Play the recording DIR through producers, as if its sources were there again.

    Frames go out with the spacing they had, in the driver's pools, with their timestamps, metadata and
    traces; sequences and epochs are new. Streams keep their ids unless --map says otherwise, so the
    sources themselves must not be running. Ctrl-C ends it.
    """
    from .. import context
    from ..recording import Recording
    from ..replayer import replay as play

    recording = Recording(directory)
    begin, until = (_moment(one, recording, streams) for one in (start, end))
    with (
        suppress(KeyboardInterrupt),
        _told_to_end(),
        context.open(aeron_dir=aeron_dir, config=config) as ctx,
        play(
            directory, context=ctx, start=begin, end=until, seq=(first_seq, last_seq),
            streams=streams or None, mapping=dict(pairs), paused=step,
            time_base=cast("TimeBase", clock), **options,
        ) as playing,
    ):  # fmt: skip
        _play(playing, step, as_json)


def _play(playing: Replay, step: bool, as_json: bool) -> None:
    """Until it ends. Whatever ends it, and whenever that comes: how it went is told, and once."""
    told = False
    try:
        _step(playing, as_json) if step else _watch(playing, as_json)
        with _ignore_signals():
            _tell(playing, as_json)
            told = True
    except BaseException:
        if not told:
            with _ignore_signals():
                _tell(playing, as_json)
        raise


def _tell(playing: Replay, as_json: bool) -> None:
    """How it went."""
    stats = playing.stats()
    if as_json:
        click.echo(json.dumps(stats.as_json()))
    else:
        click.echo(summary(stats), err=True)


@contextmanager
def _ignore_signals() -> Iterator[None]:
    """No signal to end comes through: a Ctrl-C in the instant of the report would leave none."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _moment(given: int | None, recording: Recording, streams: tuple[int, ...]) -> int | None:
    """An offset as the time it stands for."""
    if not isinstance(given, Offset):
        return given
    firsts = [
        frame.receive_time_ns
        for stream in streams or recording.streams
        for frame in recording.frames(stream)[:1]
    ]  # fmt: skip
    return min(firsts, default=0) + given


def _watch(playing: Replay, as_json: bool) -> None:
    if as_json:
        while not playing.wait(_REPORT_S):
            click.echo(json.dumps(playing.stats().as_json()))
            sys.stdout.flush()
        return
    screen = console(err=True)
    if not screen.is_terminal:
        playing.wait()
        return
    from rich.live import Live

    with Live(line(playing.stats()), console=screen, transient=True) as live:
        for stats in playing:
            live.update(line(stats))


def _step(playing: Replay, as_json: bool) -> None:
    """A frame for each key or line, until the end of the recording, of the input, or q."""
    if sys.stdin.isatty():
        click.echo("space or Enter: the next frame; q: quit", err=True)
    for _ in _keys():
        frame = playing.step()
        if frame is None:
            if playing.stats().state != "ended":
                click.echo("nothing can go out at the moment; try again", err=True)
                continue
            return
        click.echo(json.dumps(frame_line(frame)) if as_json else frame_text(frame))
        sys.stdout.flush()


def _keys() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    while (key := click.getchar()) not in ("q", "Q", "\x04"):
        yield key
