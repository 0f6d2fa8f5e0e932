"""`tensorpool stream hz`: the rate of one stream, and how evenly its frames come."""

from __future__ import annotations

import json
import sys
import time

import click

from ..client import Consumer, Latency, LatencySummary
from ..context import Context
from ..errors import ReceiveTimeout
from ..monitor import Intervals, Rate, SampledRate
from .connection import Connection
from .screen import format_duration

_SLICE_S = 0.2
# At the highest rates every frame would be too many to remember.
_EVERY = 100


def measure(
    ctx: Context, stream_id: int, *, window: int, period: float, count: int | None, clock: str, to: Connection
) -> None:
    """Reports each period until Ctrl-C or `count`. Raises ReceiveTimeout if no frame ever came."""
    with ctx.consumer(stream_id) as consumer:
        meter = _Meter(consumer, window, by_frame=clock == "frame")
        try:
            _run(meter, period, count, to)
        except KeyboardInterrupt:
            return


class _Meter:
    """The frames of one stream as they come."""

    def __init__(self, consumer: Consumer, window: int, *, by_frame: bool) -> None:
        self.consumer = consumer
        self.seen = 0
        self._told = 0
        self._by_frame = by_frame
        self._intervals = Intervals(window)
        self._made = SampledRate()
        self._epoch: int | None = None

    def take(self, timeout: float) -> None:
        frame = self.consumer.receive_or_none(timeout)
        if frame is None:
            return
        now_ns = time.monotonic_ns()
        if frame.epoch != self._epoch:
            self._epoch, self._made = frame.epoch, SampledRate()
        self.seen += 1
        self._intervals.add(frame.timestamp_ns if self._by_frame else now_ns)
        if self.seen % _EVERY == 0 or self.seen < _EVERY:
            self._made.add(now_ns, frame.seq)

    def report(self) -> tuple[int, Rate | None, float | None, dict[str, int]]:
        """New frames, their rate, the rate at which they are made, and what was dropped so far."""
        fresh, self._told = self.seen - self._told, self.seen
        if not fresh:
            # The window would go on telling of a stream that has stopped.
            self._intervals.clear()
        dropped = {reason: n for reason, n in self.consumer.ledger().dropped.items() if n}
        return fresh, self._intervals.rate(), self._made.per_second(time.monotonic_ns()), dropped


def _run(meter: _Meter, period: float, count: int | None, to: Connection) -> None:
    deadline = time.monotonic() + to.timeout
    next_report = None
    reports = 0
    while count is None or reports < count:
        now = time.monotonic()
        meter.take(_SLICE_S if next_report is None else min(_SLICE_S, max(0.0, next_report - now)))
        now = time.monotonic()
        if next_report is None:
            if meter.seen:
                next_report = now + period
            elif now > deadline:
                raise silent(meter.consumer.stream_id, to.timeout)
        elif now >= next_report:
            next_report = max(next_report + period, now)
            reports += 1
            _print(meter, to.as_json)


def _print(meter: _Meter, as_json: bool) -> None:
    fresh, rate, made_hz, dropped = meter.report()
    if as_json:
        line = {
            "stream_id": meter.consumer.stream_id,
            "new": fresh,
            "rate": None if rate is None else rate.as_json(),
            "made_hz": made_hz,
            "dropped": dropped,
            "latency": meter.consumer.latency().as_json(),
        }
        click.echo(json.dumps(line))
    elif not fresh:
        click.echo("no new frames")
    elif rate is None:
        click.echo("one frame; a rate needs two")
    else:
        words = f"{rate.hz:,.2f} Hz  min {format_duration(rate.min_s)}  max {format_duration(rate.max_s)}  "
        words += f"std dev {format_duration(rate.std_dev_s)}  window {rate.frames}"
        words += _latency_words(meter.consumer.latency())
        if dropped:
            words += f"  dropped {sum(dropped.values())} ({_words(dropped)})"
            # Who cannot keep up must not take its own pace for the producer's.
            words += "" if made_hz is None else f"  made at {made_hz:,.0f} Hz"
        click.echo(words)
    sys.stdout.flush()


def _latency_words(latency: Latency) -> str:
    # Before the first interval is over, all that there is.
    spread: LatencySummary = latency.last if latency.last.count else latency.life
    if not spread.count:
        return ""
    return f"  latency p50 {format_duration(spread.p50_ns / 1e9)} p99 {format_duration(spread.p99_ns / 1e9)}"


def _words(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in dropped.items())


def silent(stream_id: int, timeout: float) -> ReceiveTimeout:
    return ReceiveTimeout(
        f"no frame within {timeout:g} s: stream {stream_id} is announced, and silent", stream_id=stream_id
    )
