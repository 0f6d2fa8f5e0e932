"""`tensorpool stream watch`: rates of all streams, live.

One consumer a stream skips to the newest frame a few dozen times a second: a fast stream costs no more than a
slow one, and no producer is delayed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypedDict

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..client import Consumer
from ..context import Context
from ..driver.client import driver_streams
from ..errors import RegionRejected
from ..monitor.listener import StreamKind, SystemMonitor
from ..monitor.rates import SampledRate
from ..monitor.snapshot import StreamView
from ..monitor.streams import ModelLimits
from ..text import safe_text
from .output import DIM, WARN, columns, console, format_bytes, format_duration, format_shape

_POLL_S: Final = 0.02
"""A descriptor stream of 16 MiB holds a tenth of a second of the fastest producers."""
_UPDATE_S: Final = 0.2
"""Period in which streams are added and removed: a snapshot of a large system takes a while."""
_MIN_WINDOW_S: Final = 2.0
_DRIVER_TIMEOUT_S: Final = 1.0
"""A driver that is slow to answer must not delay the reports."""
_OWN_DROPS: Final = frozenset(
    {"skipped", "late", "resync", "rested", "joining", "ended", "stale", "not_committed"}
)
"""Drops of a consumer that polls rarely: they say nothing about the stream."""


class StreamLatency(TypedDict):
    """The highest latencies of the consumers of a stream."""

    consumers: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class StreamReport(TypedDict):
    """A line of `stream watch --json`."""

    stream_id: int
    name: str | None
    producer_id: int | None
    epoch: str
    seq: str | None
    hz: float | None
    bytes_per_second: float | None
    shape: tuple[int, ...] | None
    dtype: str | None
    dropped: dict[str, int]
    refused: str | None
    latency: StreamLatency | None


class _NewestFrame(NamedTuple):
    seq: int
    epoch: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass
class _WatchedStream:
    """A stream and the consumer that samples it."""

    consumer: Consumer
    view: StreamView
    window_ns: int
    rate: SampledRate = field(init=False)
    newest: _NewestFrame | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        self.rate = SampledRate(self.window_ns)

    def sample(self) -> None:
        """Reads the newest frame."""
        try:
            frame = self.consumer.latest()
        except RegionRejected as error:
            self.refused = str(error)
            return
        if frame is None:
            return
        self.refused = ""
        if self.newest is None or frame.epoch != self.newest.epoch:
            self.rate = SampledRate(self.window_ns)
        self.newest = _NewestFrame(frame.seq, frame.epoch, frame.shape, frame.element_type, frame.nbytes)
        self.rate.add(time.monotonic_ns(), frame.seq)

    def report(self) -> StreamReport:
        """The state of the stream now."""
        hz = self.rate.per_second(time.monotonic_ns())
        newest, dropped = self.newest, self.consumer.ledger().dropped
        return {
            "stream_id": self.view.stream_id,
            "name": self.view.name or None,
            "producer_id": self.view.producer_id or None,
            "epoch": str(self.view.epoch),
            "seq": None if newest is None else str(newest.seq),
            "hz": hz,
            "bytes_per_second": None if hz is None or newest is None else hz * newest.nbytes,
            "shape": None if newest is None else newest.shape,
            "dtype": (newest.dtype or None) if newest is not None else None,
            "dropped": {reason: n for reason, n in dropped.items() if n and reason not in _OWN_DROPS},
            "refused": self.refused or None,
            "latency": highest_latency(self.view),
        }


def highest_latency(view: StreamView) -> StreamLatency | None:
    """The latency of the slowest consumer; None if no consumer reports one."""
    latencies = [consumer.latency for consumer in view.consumers if consumer.latency is not None]
    if not latencies:
        return None
    return {
        "consumers": len(latencies),
        "p50_ns": max(latency.p50_ns for latency in latencies),
        "p99_ns": max(latency.p99_ns for latency in latencies),
        "max_ns": max(latency.max_ns for latency in latencies),
    }


def announced_streams(monitor: SystemMonitor) -> list[StreamView]:
    """The streams that were announced within three periods, by id."""
    limits = monitor.limits
    return [stream for stream in monitor.snapshot().streams if _is_announced(stream, limits)]


def _is_announced(stream: StreamView, limits: ModelLimits) -> bool:
    return stream.is_announced and announce_age_ns(stream) <= limits.stale_ns


def announce_age_ns(stream: StreamView) -> int:
    """Time since the announce was received or, if that is longer, since it was sent."""
    return max(stream.announce_age_ns, stream.announce_sent_age_ns or 0)


class _Watch:
    """All announced streams; each gets a consumer when it is first announced."""

    def __init__(self, ctx: Context, monitor: SystemMonitor, period: float) -> None:
        self._ctx = ctx
        self._window_ns = int(max(_MIN_WINDOW_S, 2 * period) * 1e9)
        self._monitor = monitor
        self._watched: dict[int, _WatchedStream] = {}
        self._driver_names: dict[int, str] = {}
        self._next_update = 0.0

    def sample(self, until: float) -> None:
        """Samples all streams until that time."""
        while True:
            self._monitor.poll()
            if time.monotonic() >= self._next_update:
                self._update_streams()
                self._next_update = time.monotonic() + _UPDATE_S
            for watched in self._watched.values():
                watched.sample()
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(_POLL_S, remaining))

    def _update_streams(self) -> None:
        announced = {stream.stream_id: stream for stream in announced_streams(self._monitor)}
        for stream_id in self._watched.keys() - announced.keys():
            self._watched.pop(stream_id).consumer.close()
        if announced.keys() - self._watched.keys():
            planned = driver_streams(self._ctx, timeout=_DRIVER_TIMEOUT_S)
            self._driver_names = {
                stream_id: stream["name"] for stream_id, stream in planned.items() if stream["name"]
            }
        for stream_id, stream in announced.items():
            view = replace(stream, name=stream.name or self._driver_names.get(stream_id, ""))
            watched = self._watched.get(stream_id)
            if watched is None:
                consumer = self._ctx.consumer(stream_id, policy="latest")
                self._watched[stream_id] = _WatchedStream(consumer, view, self._window_ns)
            else:
                watched.view = view

    def reports(self) -> list[StreamReport]:
        """The reports of all streams, by id."""
        return [self._watched[stream_id].report() for stream_id in sorted(self._watched)]

    def close(self) -> None:
        """Closes all consumers."""
        for watched in self._watched.values():
            watched.consumer.close()


def watch_streams(
    ctx: Context, *, period: float, count: int | None, timeout: float, json_output: bool
) -> bool:
    """Prints until Ctrl-C or `count` reports. False if no stream was announced within the timeout."""
    screen = console()
    kinds = (StreamKind.ANNOUNCE, StreamKind.METADATA, StreamKind.QOS, StreamKind.STATUS)
    with SystemMonitor(ctx.connection, streams=kinds, polls_services=False) as monitor:
        watch = _Watch(ctx, monitor, period)
        try:
            if not monitor.watch(timeout, until=lambda: bool(announced_streams(monitor))):
                return False
            if json_output or not screen.is_terminal:
                _print_lines(watch, period, count, json_output)
            else:
                _print_live(screen, watch, period, count)
        except KeyboardInterrupt:
            pass
        finally:
            watch.close()
    return True


def _print_lines(watch: _Watch, period: float, count: int | None, json_output: bool) -> None:
    printed = 0
    next_report = time.monotonic()
    while count is None or printed < count:
        next_report = max(next_report + period, time.monotonic())
        watch.sample(next_report)
        time_ns = str(time.time_ns())
        for report in watch.reports():
            click.echo(json.dumps({"time_ns": time_ns, **report}) if json_output else _line(report))
        sys.stdout.flush()
        printed += 1


def _print_live(screen: Console, watch: _Watch, period: float, count: int | None) -> None:
    printed = 0
    next_report = time.monotonic()
    with Live(_table([]), console=screen, auto_refresh=False) as live:
        while count is None or printed < count:
            next_report = max(next_report + period, time.monotonic())
            watch.sample(next_report)
            live.update(_table(watch.reports()), refresh=True)
            printed += 1


def _table(reports: list[StreamReport]) -> Table | Text:
    if not reports:
        return Text("no stream is announced at the moment", style=DIM)
    table = columns(
        "stream",
        "name",
        "Hz",
        "per second",
        "shape",
        "dtype",
        "seq",
        "p99",
        "dropped",
        right=("stream", "Hz", "per second", "seq", "p99"),
    )
    for report in reports:
        state = _state(report)
        if state:
            table.add_row(
                str(report["stream_id"]),
                report["name"] or "",
                "",
                "",
                Text(state, style=WARN),
                "",
                report["seq"] or "",
                "",
                "",
            )
            continue
        bytes_per_second = report["bytes_per_second"]
        table.add_row(
            str(report["stream_id"]),
            report["name"] or "",
            _hz(report["hz"]),
            "" if bytes_per_second is None else format_bytes(bytes_per_second),
            format_shape(report["shape"]),
            report["dtype"],
            report["seq"],
            _p99(report["latency"]),
            _dropped(report["dropped"]),
        )
    return table


def _line(report: StreamReport) -> str:
    parts = [str(report["stream_id"]), *([safe_text(report["name"])] if report["name"] else [])]
    if state := _state(report):
        return " ".join([*parts, state])
    parts += [
        f"{_hz(report['hz']) or '?'} Hz",
        f"{format_bytes(report['bytes_per_second'] or 0)}/s",
        format_shape(report["shape"]),
        report["dtype"] or "",
        f"seq {report['seq']}",
        f"dropped {_dropped(report['dropped']) or '0'}",
        *([f"latency p99 {_p99(report['latency'])}"] if report["latency"] else []),
    ]
    return "  ".join(parts)


def _state(report: StreamReport) -> str:
    """Why the report has no rates."""
    if report["refused"]:
        return report["refused"]
    if report["producer_id"] is None:
        return "no producer"
    return "" if report["seq"] is not None else "no frame seen yet"


def _hz(hz: float | None) -> str:
    return "" if hz is None else f"{hz:,.1f}"


def _p99(latency: StreamLatency | None) -> str:
    return "" if latency is None else format_duration(latency["p99_ns"] / 1e9)


def _dropped(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in dropped.items())
