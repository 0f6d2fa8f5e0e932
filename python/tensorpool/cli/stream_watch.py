"""`tensorpool stream watch`: all streams, live.

One reader a stream that skips to the newest frame a few dozen times a second: what runs fast costs no more
than what runs slowly, and nobody is held up.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..client import Consumer
from ..context import Context
from ..driver.client import driver_streams
from ..errors import RegionRejected
from ..monitor import AnnounceEar, LatencyEar, SampledRate, StreamHeard
from .output import DIM, WARN, columns, console, format_bytes, format_duration, format_shape

# A descriptor stream of 16 MiB holds a tenth of a second of the fastest producers.
_LOOK_S = 0.02
_SHORTEST_WINDOW_S = 2.0
# A driver that is slow to answer must not stop the show.
_NAMES_S = 1.0
# Those are this reader's own doing, which looks only now and then: no fault of the stream.
_OUR_OWN = frozenset({"skipped", "late", "resync", "rested", "joining", "stale", "not_committed"})


@dataclass
class _Watched:
    """One stream and what was seen of it."""

    consumer: Consumer
    heard: StreamHeard
    window_ns: int
    rate: SampledRate = field(init=False)
    seq: int | None = None
    epoch: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    frame_bytes: int = 0
    refused: str = ""

    def __post_init__(self) -> None:
        self.rate = SampledRate(self.window_ns)

    def look(self) -> None:
        try:
            frame = self.consumer.latest()
        except RegionRejected as error:
            self.refused = str(error)
            return
        if frame is None:
            return
        self.refused = ""
        if frame.epoch != self.epoch:
            self.epoch, self.rate = frame.epoch, SampledRate(self.window_ns)
        self.seq, self.shape, self.dtype = frame.seq, frame.shape, frame.element_type
        self.frame_bytes = frame.nbytes
        self.rate.add(time.monotonic_ns(), frame.seq)

    def report(self) -> dict[str, Any]:
        hz = self.rate.per_second(time.monotonic_ns())
        drops = self.consumer.ledger().dropped
        return {
            "stream_id": self.heard.stream_id,
            "name": self.heard.name or None,
            "producer_id": self.heard.producer_id or None,
            "epoch": str(self.heard.epoch),
            "seq": None if self.seq is None else str(self.seq),
            "hz": hz,
            "bytes_per_second": None if hz is None else hz * self.frame_bytes,
            "shape": self.shape,
            "dtype": self.dtype or None,
            "dropped": {reason: n for reason, n in drops.items() if n and reason not in _OUR_OWN},
            "refused": self.refused or None,
        }


class _Watch:
    """All streams that are announced; each gets a reader when it is first heard."""

    def __init__(self, ctx: Context, ear: AnnounceEar, period: float) -> None:
        self._ctx = ctx
        self._window_ns = int(max(_SHORTEST_WINDOW_S, 2 * period) * 1e9)
        self._ear = ear
        self._latencies = LatencyEar(ctx)
        self._watched: dict[int, _Watched] = {}
        self._names: dict[int, str] = {}

    def look(self, until: float) -> None:
        """Keeps up until the time has come."""
        while True:
            self._ear.poll()
            self._latencies.poll()
            self._take_in()
            for one in self._watched.values():
                one.look()
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(_LOOK_S, remaining))

    def _take_in(self) -> None:
        there = {one.stream_id: one for one in self._ear.book.streams(time.monotonic_ns())}
        for stream_id in self._watched.keys() - there.keys():
            self._watched.pop(stream_id).consumer.close()
        if there.keys() - self._watched.keys():
            told = driver_streams(self._ctx, timeout=_NAMES_S)
            self._names = {stream_id: one["name"] for stream_id, one in told.items() if one["name"]}
        for stream_id, announced in there.items():
            heard = replace(announced, name=announced.name or self._names.get(stream_id, ""))
            known = self._watched.get(stream_id)
            if known is None:
                consumer = self._ctx.consumer(stream_id, policy="latest")
                self._watched[stream_id] = _Watched(consumer, heard, self._window_ns)
            else:
                known.heard = heard

    def reports(self) -> list[dict[str, Any]]:
        return [self._report(stream_id) for stream_id in sorted(self._watched)]

    def _report(self, stream_id: int) -> dict[str, Any]:
        told = self._latencies.book.of(stream_id, time.monotonic_ns())
        return {**self._watched[stream_id].report(), "latency": None if told is None else told.as_json()}

    def close(self) -> None:
        self._latencies.close()
        for one in self._watched.values():
            one.consumer.close()


def watch_streams(ctx: Context, *, period: float, count: int | None, timeout: float, as_json: bool) -> bool:
    """Until Ctrl-C or `count` reports. False if nothing was announced within the timeout."""
    screen = console()
    with AnnounceEar(ctx) as ear:
        watch = _Watch(ctx, ear, period)
        try:
            if not _wait_for_one(ear, timeout):
                return False
            if as_json or not screen.is_terminal:
                _lines(watch, period, count, as_json)
            else:
                _live(screen, watch, period, count)
        except KeyboardInterrupt:
            pass
        finally:
            watch.close()
    return True


def _wait_for_one(ear: AnnounceEar, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not ear.listen(_LOOK_S):
        if time.monotonic() >= deadline:
            return False
    return True


def _lines(watch: _Watch, period: float, count: int | None, as_json: bool) -> None:
    reports = 0
    next_report = time.monotonic()
    while count is None or reports < count:
        next_report = max(next_report + period, time.monotonic())
        watch.look(next_report)
        at = time.time_ns()
        for one in watch.reports():
            click.echo(json.dumps({"time_ns": str(at), **one}) if as_json else _line(one))
        sys.stdout.flush()
        reports += 1


def _live(screen: Console, watch: _Watch, period: float, count: int | None) -> None:
    reports = 0
    next_report = time.monotonic()
    with Live(_table([]), console=screen, auto_refresh=False) as live:
        while count is None or reports < count:
            next_report = max(next_report + period, time.monotonic())
            watch.look(next_report)
            live.update(_table(watch.reports()), refresh=True)
            reports += 1


def _table(reports: list[dict[str, Any]]) -> Table | Text:
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
    for one in reports:
        state = _state(one)
        if state:
            table.add_row(
                str(one["stream_id"]),
                one["name"] or "",
                "",
                "",
                Text(state, style=WARN),
                "",
                one["seq"] or "",
                "",
                "",
            )
            continue
        table.add_row(
            str(one["stream_id"]),
            one["name"] or "",
            _hz(one["hz"]),
            "" if one["bytes_per_second"] is None else format_bytes(one["bytes_per_second"]),
            format_shape(one["shape"]),
            one["dtype"],
            one["seq"],
            _p99(one["latency"]),
            _dropped(one["dropped"]),
        )
    return table


def _line(one: dict[str, Any]) -> str:
    words = [str(one["stream_id"]), *([one["name"]] if one["name"] else [])]
    if state := _state(one):
        return " ".join([*words, state])
    words += [f"{_hz(one['hz']) or '?'} Hz", f"{format_bytes(one['bytes_per_second'] or 0)}/s"]
    words += [
        format_shape(one["shape"]),
        one["dtype"],
        f"seq {one['seq']}",
        f"dropped {_dropped(one['dropped']) or '0'}",
        *([f"latency p99 {_p99(one['latency'])}"] if one["latency"] else []),
    ]
    return "  ".join(words)


def _state(one: dict[str, Any]) -> str:
    """Why there are no figures."""
    if one["refused"]:
        return str(one["refused"])
    if one["producer_id"] is None:
        return "no producer"
    return "" if one["seq"] is not None else "no frame seen yet"


def _hz(hz: float | None) -> str:
    return "" if hz is None else f"{hz:,.1f}"


def _p99(latency: dict[str, int] | None) -> str:
    return "" if latency is None else format_duration(latency["p99_ns"] / 1e9)


def _dropped(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in dropped.items())
