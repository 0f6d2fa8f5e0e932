"""`tensorpool record`: streams to disk, until told to stop."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..driver import DriverSettings
from ..recorder.config import RecorderSettings
from ..runtime.config import Config
from ..runtime.logs import Logging
from ..runtime.process import Readiness, Signals
from ..runtime.role import LogSettings, RuntimeSettings
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
  tensorpool recording verify recording
"""

_LOOK_S = 0.1
_LINE_S = 0.25
_QUIET_LINE_S = 10.0


@click.command(epilog=_EPILOG)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so long.")
@click.option("--frames", type=click.IntRange(1), help="Stop after so many frames, of all streams together.")
@click.option("--json", "as_json", is_flag=True, help="Print the ledger as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@role_options(RecorderSettings, ContextSettings, AeronSettings, ShmSettings, ServiceSettings, DriverSettings)
def record(config: Config, seconds: float | None, frames: int | None, as_json: bool, quiet: bool) -> None:
    """Record streams into a directory until Ctrl-C, SIGTERM, --seconds or --frames.

    A recording that is there already is gone on with, in new segments; what an earlier recorder left
    unfinished is sealed first. At the end the ledger is printed: of each epoch, the span of sequences is rows
    plus gaps. Exit status 1 if anything is unaccounted for.

    While it runs it is `service:recorder`: start, stop, rotate, mark, trigger.
    """
    settings = config[RecorderSettings]
    if settings.out is None:
        raise click.UsageError("say where: --out DIR")
    if not settings.streams and not settings.all:
        raise click.UsageError("say what: --stream ID (as often as you like), or --all")
    from ..recorder.recorder import Recorder

    runtime, log = config[RuntimeSettings], config[LogSettings]
    stop: list[bool] = []
    progress = ProgressLine(quiet)
    said = cast(TextIO, progress)
    with (
        Logging(
            "recorder", runtime.instance, form=log.format, level=log.level, repeats=log.repeats, stream=said
        ),
        Signals(stop=lambda: stop.append(True)),
        context.open(config=config) as ctx,
        Recorder(ctx, settings, frames=frames, readiness=Readiness(runtime.ready_file)) as recorder,
    ):
        _watch(recorder, stop, seconds, progress)
    ended = recorder.stats()
    ledgers = recorder.ledger()
    _show(settings.out, ended, ledgers, as_json)
    if not all(one.balanced for one in ledgers):
        raise SystemExit(1)


class ProgressLine(io.TextIOBase):
    """The progress line: written over on a terminal, now and then elsewhere. What is logged through it stands
    above it, and not in it. For several threads.
    """

    def __init__(self, quiet: bool) -> None:
        self._is_live = sys.stderr.isatty()
        self._quiet = quiet
        self._next = 0.0
        self._shown = ""
        self._lock = threading.Lock()

    def show(self, stats: RecorderStats) -> None:
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_LINE_S if self._is_live else _QUIET_LINE_S)
        if not self._is_live:
            click.echo(line(stats), err=True)
            return
        with self._lock:
            # Less than a line: one that is broken cannot be written over.
            columns = _columns() - 1
            text = line(stats, columns)
            click.echo("\r" + text.ljust(min(len(self._shown), columns)), nl=False, err=True)
            self._shown = text

    def write(self, text: str) -> int:
        with self._lock:
            blank = "\r" + " " * len(self._shown) + "\r" if self._shown else ""
            sys.stderr.write(blank + text + ("\r" + self._shown if text.endswith("\n") else ""))
            sys.stderr.flush()
        return len(text)

    def isatty(self) -> bool:
        return self._is_live

    def end(self) -> None:
        with self._lock:
            if self._shown:
                click.echo(err=True)
                self._shown = ""


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def line(stats: RecorderStats, columns: int | None = None) -> str:
    """`recording 12s  900 frames  75 frames/s  45 MiB/s  backlog 8 MiB of 256 MiB  disk left 120 GiB  gaps 0`

    Where that is too long it says less. What matters most stays: whether anything is lost.
    """
    state = f"{stats.state.replace('_', ' ')} {format_duration(stats.seconds)}"
    frames, hz, speed = f"{stats.rows:,} frames", f"{stats.rows_per_s:,.0f}", format_bytes(stats.bytes_per_s)
    backlog = f"backlog {format_bytes(stats.backlog_bytes)} of {format_bytes(stats.buffer_bytes)}"
    full = f"backlog {stats.backlog_bytes / max(stats.buffer_bytes, 1):.0%}"
    left, lost = f"disk left {format_bytes(stats.disk_free_bytes)}", f"gaps {stats.lost:,}"
    gaps = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stats.gaps.items())) or "0"
    forms = (
        (state, frames, f"{hz} frames/s", f"{speed}/s", backlog, left, f"gaps {gaps}"),
        (state, frames, f"{hz}/s", f"{speed}/s", full, left, f"gaps {gaps}"),
        (state, f"{hz}/s", f"{speed}/s", full, left, lost),
        (f"{hz}/s", full, left, lost),
        (lost,),
    )
    texts = ["  ".join(parts) for parts in forms]
    return next((text for text in texts if columns is None or len(text) <= columns), texts[-1][:columns])


def _watch(recorder: Recorder, stop: list[bool], seconds: float | None, progress: ProgressLine) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    while not stop and not recorder.is_finished:
        left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
        if left <= 0:
            break
        progress.show(recorder.stats())
        time.sleep(left)
    progress.end()


def _show(root: Path, stats: RecorderStats, ledgers: list[RecordingLedger], as_json: bool) -> None:
    from ..recorder.service import ledger_json

    if as_json:
        found: dict[str, Any] = {"root": str(root), **stats.as_json(), "ledger": [*map(ledger_json, ledgers)]}
        found["balanced"] = all(one.balanced for one in ledgers)
        click.echo(json.dumps(found, indent=2))
        return
    for one in ledgers:
        verdict = "" if one.balanced else "  UNACCOUNTED"
        click.echo(f"stream {one.stream_id}  epoch {one.epoch}  {one}{verdict}")
    if not ledgers:
        click.echo(
            "nothing came, so nothing was recorded; tensorpool stream ls shows what there is", err=True
        )
    if stats.strays:
        click.echo(f"{stats.strays} frames were told twice or out of turn, and left out", err=True)
