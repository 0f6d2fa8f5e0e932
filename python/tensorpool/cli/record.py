"""`tensorpool record`: records streams until a signal, a time or a number of frames ends it."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast

import click

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..driver import DriverSettings
from ..recorder.config import RecorderSettings
from ..runtime.config import Config
from ..runtime.logs import Logging
from ..runtime.role import LogSettings, RuntimeSettings
from ..runtime.runner import Readiness, Signals
from ..service.config import ServiceSettings
from .options import role_options
from .output import format_bytes, format_duration

if TYPE_CHECKING:
    from ..recorder.recorder import Recorder
    from ..recorder.state import RecorderStats
    from ..recording import RecordingLedger

_EPILOG = """
\b
Examples:
  tensorpool record --stream 20000 --out recording
  tensorpool record --all --out recording --seconds 60
  tensorpool record --stream 20000 --out recording --pre-trigger 10s
  tensorpool service call recorder trigger
  tensorpool record --all --out DIR --retain-bytes 100GiB --retain-age 7d
  tensorpool record --all --out DIR --archive s3://bucket/recording
  tensorpool record --services --out commands
  tensorpool recording verify recording
"""

_POLL_S: Final = 0.1
_TERMINAL_LINE_S: Final = 0.25
_LOG_LINE_S: Final = 10.0


@click.command(epilog=_EPILOG)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this time.")
@click.option("--frames", type=click.IntRange(1), help="Stop after this number of frames, over all streams.")
@click.option("--json", "json_output", is_flag=True, help="Print the ledger as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress line.")
@role_options(RecorderSettings, ContextSettings, AeronSettings, ShmSettings, ServiceSettings, DriverSettings)
def record(config: Config, seconds: float | None, frames: int | None, json_output: bool, quiet: bool) -> None:
    """Record streams into a directory until Ctrl-C, SIGTERM, --seconds or --frames.

    An existing recording is continued in new segments; segments that an earlier recorder left open are
    sealed first. At the end the ledger is printed: the span of each epoch is its rows plus its gaps. Exit
    status 1 if a sequence is unaccounted for.

    With --services the accepted commands of all services are recorded too; `tensorpool recording events`
    prints them.

    A running recorder is controlled as `service:recorder`: start, stop, rotate, mark, trigger.
    """
    settings = config[RecorderSettings]
    if settings.out is None:
        raise click.UsageError("no directory; use --out DIR")
    if not settings.streams and not settings.all and not settings.services:
        raise click.UsageError("no streams; use --stream ID (repeatable) or --all, or --services")
    from ..recorder.recorder import Recorder

    runtime, log = config[RuntimeSettings], config[LogSettings]
    stop: list[bool] = []
    progress = ProgressLine(quiet)
    with (
        Logging(
            "recorder",
            runtime.instance,
            form=log.format,
            level=log.level,
            repeats=log.repeats,
            stream=cast(TextIO, progress),
        ),
        Signals(stop=lambda: stop.append(True)),
        context.open(config=config) as ctx,
        Recorder(ctx, settings, frames=frames, readiness=Readiness(runtime.ready_file)) as recorder,
    ):
        _wait(recorder, stop, seconds, progress)
    ledgers = recorder.ledger()
    expects_frames = settings.all or bool(settings.streams)
    _print_result(settings.out, recorder.stats(), ledgers, json_output, expects_frames=expects_frames)
    if not all(ledger.balanced for ledger in ledgers):
        raise SystemExit(1)


class ProgressLine(io.TextIOBase):
    """The progress line: replaced in place on a terminal, printed now and then elsewhere.

    Log lines written through it appear above it. Thread-safe.
    """

    def __init__(self, quiet: bool) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._next = 0.0
        self._shown = ""
        self._lock = threading.Lock()

    def show(self, stats: RecorderStats) -> None:
        """Print the line if it is due."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_TERMINAL_LINE_S if self._is_terminal else _LOG_LINE_S)
        if not self._is_terminal:
            click.echo(format_progress(stats), err=True)
            return
        with self._lock:
            # One column less than the terminal: a line that wraps cannot be replaced.
            columns = _columns() - 1
            text = format_progress(stats, columns)
            click.echo("\r" + text.ljust(min(len(self._shown), columns)), nl=False, err=True)
            self._shown = text

    def write(self, text: str) -> int:
        """Print log text above the line."""
        with self._lock:
            blank = "\r" + " " * len(self._shown) + "\r" if self._shown else ""
            sys.stderr.write(blank + text + ("\r" + self._shown if text.endswith("\n") else ""))
            sys.stderr.flush()
        return len(text)

    def isatty(self) -> bool:
        """Whether stderr is a terminal."""
        return self._is_terminal

    def end(self) -> None:
        """Leave the line as it is and start a new one."""
        with self._lock:
            if self._shown:
                click.echo(err=True)
                self._shown = ""


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def format_progress(stats: RecorderStats, columns: int | None = None) -> str:
    """`recording 12s  900 frames  75 frames/s  45 MiB/s  backlog 8 MiB of 256 MiB  disk left 120 GiB  gaps 0`

    Shortened to `columns`; the number of gaps stays longest.
    """
    state = f"{stats.state.replace('_', ' ')} {format_duration(stats.seconds)}"
    frames, hz, rate = f"{stats.rows:,} frames", f"{stats.rows_per_s:,.0f}", format_bytes(stats.bytes_per_s)
    backlog = f"backlog {format_bytes(stats.backlog_bytes)} of {format_bytes(stats.buffer_bytes)}"
    backlog_share = f"backlog {stats.backlog_bytes / max(stats.buffer_bytes, 1):.0%}"
    left, lost = f"disk left {format_bytes(stats.disk_free_bytes)}", f"gaps {stats.lost:,}"
    gaps = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stats.gaps.items())) or "0"
    forms = (
        (state, frames, f"{hz} frames/s", f"{rate}/s", backlog, left, f"gaps {gaps}"),
        (state, frames, f"{hz}/s", f"{rate}/s", backlog_share, left, f"gaps {gaps}"),
        (state, f"{hz}/s", f"{rate}/s", backlog_share, left, lost),
        (f"{hz}/s", backlog_share, left, lost),
        (lost,),
    )
    texts = ["  ".join(parts) for parts in forms]
    return next((text for text in texts if columns is None or len(text) <= columns), texts[-1][:columns])


def _wait(recorder: Recorder, stop: list[bool], seconds: float | None, progress: ProgressLine) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    while not stop and not recorder.is_finished:
        left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
        if left <= 0:
            break
        progress.show(recorder.stats())
        time.sleep(left)
    progress.end()


def _print_result(
    root: Path,
    stats: RecorderStats,
    ledgers: list[RecordingLedger],
    json_output: bool,
    *,
    expects_frames: bool = True,
) -> None:

    if json_output:
        result = {
            "root": str(root),
            **stats.to_json(),
            "ledger": [ledger.to_json() for ledger in ledgers],
            "balanced": all(ledger.balanced for ledger in ledgers),
        }
        click.echo(json.dumps(result, indent=2))
        return
    for ledger in ledgers:
        fault = "" if ledger.balanced else "  UNACCOUNTED"
        click.echo(f"stream {ledger.stream_id}  epoch {ledger.epoch}  {ledger}{fault}")
    if not ledgers and expects_frames:
        click.echo("no frames were received; tensorpool stream ls lists the announced streams", err=True)
    if stats.strays:
        click.echo(
            f"{stats.strays} frames were announced twice or out of order and are not recorded", err=True
        )
    if stats.lost_messages:
        click.echo(f"{stats.lost_messages} messages about streams are lost: the disk was full", err=True)
