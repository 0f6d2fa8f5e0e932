"""`tensorpool stream hz`, `echo` and `trace`: the rate, the content and the lineage of a stream's frames."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy.typing as npt
from rich.tree import Tree

from .. import _native
from ..client import Consumer, Latency, LatencySummary
from ..context import Context
from ..durable import replace_file
from ..errors import FrameOverwritten, ReceiveTimeout, TensorPoolError
from ..monitor.lineage import Lineage, LineageTracker, TracedFrame
from ..monitor.rates import FrameIntervals, Rate, SampledRate
from ..preview import encode_png, summarize, to_pixels
from ..text import JsonMapping
from ..transport.connection import Stream
from ..units import MAX_STREAM_ID
from .options import ConnectOptions
from .output import console, echo, format_duration

_RECEIVE_S: Final = 0.2
_SAMPLE_EVERY: Final = 100
"""The producer's rate needs no sample of every frame."""
_METADATA_TIMEOUT_S: Final = 1.5
_POLL_S: Final = 0.005
_SETTLE_S: Final = 0.25
"""Trace links are on another stream than descriptors: a frame is printed after they had time to arrive."""
_CONNECT_TIMEOUT_S: Final = 1.0
_MAX_WAITING: Final = 10_000
_POLL_LIMIT: Final = 1024


def measure(
    ctx: Context,
    stream_id: int,
    *,
    window: int,
    period: float,
    count: int | None,
    clock: str,
    to: ConnectOptions,
) -> None:
    """Prints the rate each period until Ctrl-C or `count`. Raises ReceiveTimeout if there is no frame."""
    with ctx.consumer(stream_id) as consumer:
        meter = _FrameMeter(consumer, window, by_frame=clock == "frame")
        try:
            _run_meter(meter, period, count, to)
        except KeyboardInterrupt:
            return


@dataclass(frozen=True, slots=True)
class _RateReport:
    """The rate of one report period."""

    new_frames: int
    rate: Rate | None
    """Rate at which this consumer receives frames."""
    producer_hz: float | None
    """Rate of the producer, from its sequences."""
    dropped: dict[str, int]


class _FrameMeter:
    """The received frames of one stream."""

    def __init__(self, consumer: Consumer, window: int, *, by_frame: bool) -> None:
        self.consumer = consumer
        self.received = 0
        self._reported = 0
        self._by_frame = by_frame
        self._intervals = FrameIntervals(window)
        self._producer_rate = SampledRate()
        self._epoch: int | None = None

    def receive(self, timeout: float) -> None:
        """Receives a frame if there is one in time."""
        frame = self.consumer.receive_or_none(timeout)
        if frame is None:
            return
        now_ns = time.monotonic_ns()
        if frame.epoch != self._epoch:
            self._epoch, self._producer_rate = frame.epoch, SampledRate()
        self.received += 1
        self._intervals.add(frame.timestamp_ns if self._by_frame else now_ns)
        if self.received % _SAMPLE_EVERY == 0 or self.received < _SAMPLE_EVERY:
            self._producer_rate.add(now_ns, frame.seq)

    def report(self) -> _RateReport:
        """The frames since the last report, and the drops of the consumer's lifetime."""
        new_frames, self._reported = self.received - self._reported, self.received
        if not new_frames:
            # The window would still have the rate of a stream that has stopped.
            self._intervals.clear()
        dropped = {reason: n for reason, n in self.consumer.ledger().dropped.items() if n}
        producer_hz = self._producer_rate.per_second(time.monotonic_ns())
        return _RateReport(new_frames, self._intervals.rate(), producer_hz, dropped)


def _run_meter(meter: _FrameMeter, period: float, count: int | None, to: ConnectOptions) -> None:
    deadline = time.monotonic() + to.timeout
    next_report = None
    printed = 0
    while count is None or printed < count:
        now = time.monotonic()
        meter.receive(_RECEIVE_S if next_report is None else min(_RECEIVE_S, max(0.0, next_report - now)))
        now = time.monotonic()
        if next_report is None:
            if meter.received:
                next_report = now + period
            elif now > deadline:
                raise no_frame_error(meter.consumer.stream_id, to.timeout)
        elif now >= next_report:
            next_report = max(next_report + period, now)
            printed += 1
            _print_rate(meter, to.json_output)


def _print_rate(meter: _FrameMeter, json_output: bool) -> None:
    report = meter.report()
    rate, dropped = report.rate, report.dropped
    if json_output:
        line = {
            "stream_id": meter.consumer.stream_id,
            "new": report.new_frames,
            "rate": None if rate is None else rate.to_json(),
            "producer_hz": report.producer_hz,
            "dropped": dropped,
            "latency": meter.consumer.latency().to_json(),
        }
        click.echo(json.dumps(line))
    elif not report.new_frames:
        click.echo("no new frames")
    elif rate is None:
        click.echo("one frame; a rate needs two")
    else:
        text = f"{rate.hz:,.2f} Hz  min {format_duration(rate.min_s)}  max {format_duration(rate.max_s)}  "
        text += f"std dev {format_duration(rate.std_dev_s)}  window {rate.frames}"
        text += _latency_text(meter.consumer.latency())
        if dropped:
            reasons = ", ".join(f"{reason} {n}" for reason, n in dropped.items())
            text += f"  dropped {sum(dropped.values())} ({reasons})"
            # With drops the received rate is not the producer's.
            text += "" if report.producer_hz is None else f"  made at {report.producer_hz:,.0f} Hz"
        echo(text)
    sys.stdout.flush()


def _latency_text(latency: Latency) -> str:
    # The last interval is empty until the first one has ended.
    summary: LatencySummary = latency.last if latency.last.count else latency.total
    if not summary.count:
        return ""
    p50, p99 = format_duration(summary.p50_ns / 1e9), format_duration(summary.p99_ns / 1e9)
    return f"  latency p50 {p50} p99 {p99}"


def no_frame_error(stream_id: int, timeout: float) -> ReceiveTimeout:
    """The error for a stream that is announced and has no new frames."""
    return ReceiveTimeout(
        f"no frame within {timeout:g} s: stream {stream_id} is announced, but no frames are published",
        stream_id=stream_id,
    )


# --- echo


def echo_frames(
    ctx: Context, stream_id: int, *, count: int | None, latest: bool, image: Path | None, to: ConnectOptions
) -> None:
    """Prints frames until Ctrl-C or `count`. Raises ReceiveTimeout if there is no frame."""
    printed, deadline = 0, time.monotonic() + to.timeout
    epoch: int | None = None
    has_waited = False
    with ctx.consumer(stream_id, policy="latest" if latest else "stream") as consumer:
        try:
            while count is None or printed < count:
                frame = consumer.receive_or_none(_RECEIVE_S)
                if frame is not None:
                    if epoch not in (None, frame.epoch):
                        click.echo(f"the stream has a new epoch: {frame.epoch}", err=True)
                    epoch = frame.epoch
                    if frame.meta_version and not has_waited:
                        # A new consumer may get a frame before the metadata that describes its elements.
                        has_waited = True
                        consumer.wait_for_metadata(min(_METADATA_TIMEOUT_S, to.timeout))
                    printed += _print_frame(frame, image, to.json_output)
                elif not printed and time.monotonic() > deadline:
                    raise no_frame_error(stream_id, to.timeout)
        except KeyboardInterrupt:
            return


def _print_frame(frame: _native.Frame, image: Path | None, json_output: bool) -> bool:
    """False for a frame that was overwritten while it was copied."""
    try:
        array = frame.copy()
    except FrameOverwritten:
        return False
    summary = summarize(array, frame.element_type)
    path = None if image is None else _write_image(image, frame, array)
    if json_output:
        line: JsonMapping = {
            "stream_id": frame.stream_id,
            "epoch": str(frame.epoch),
            "seq": str(frame.seq),
            "timestamp_ns": str(frame.timestamp_ns),
            "meta_version": frame.meta_version,
            "trace_id": None if frame.trace_id is None else str(frame.trace_id),
            **summary.to_json(),
            **({} if path is None else {"image": str(path)}),
        }
        click.echo(json.dumps(line))
    else:
        echo(f"{frame.seq:>8}  {summary}")
        if path is not None:
            click.echo(f"written to {path}", err=True)
    sys.stdout.flush()
    return True


def _write_image(image: Path, frame: _native.Frame, array: npt.NDArray[Any]) -> Path:
    """Writes a PNG file. Readers of the file see a whole image, also while it is replaced."""
    path = image.with_name(image.name.replace("{seq}", str(frame.seq)))
    content = encode_png(to_pixels(array))
    try:
        replace_file(path, content, sync=False, mode=0o666)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    return path


# --- trace


class NoSuchTrace(TensorPoolError, LookupError):
    """No frame with the trace was published."""


def print_lineage(
    ctx: Context, wanted: int, *, descriptor_streams: Sequence[int], count: int | None, to: ConnectOptions
) -> None:
    """Prints lineages until Ctrl-C or `count`. Raises ReceiveTimeout or NoSuchTrace if there are none.

    `wanted` is a stream id, or a trace id, which is larger.
    """
    ids = ctx.stream_ids
    configured = (each.descriptor for each in ids.dedicated if each.descriptor is not None)
    streams: tuple[Stream, ...] = (
        *ids.control_addresses,
        ids.descriptor,
        *configured,
        *descriptor_streams,
    )
    subscriptions = [ctx.connection.subscription(stream) for stream in dict.fromkeys(streams)]
    try:
        _collect_lineage(LineageTracker(), subscriptions, wanted, count, to)
    except KeyboardInterrupt:
        return
    finally:
        for subscription in subscriptions:
            subscription.close()


class _WaitingFrame(NamedTuple):
    """A frame whose lineage is printed when messages about its parents have had time to arrive."""

    due_s: float
    frame: TracedFrame


def _collect_lineage(
    tracker: LineageTracker,
    subscriptions: list[_native.Subscription],
    wanted: int,
    count: int | None,
    to: ConnectOptions,
) -> None:
    waiting: deque[_WaitingFrame] = deque(maxlen=_MAX_WAITING)
    printed, is_stream = 0, wanted <= MAX_STREAM_ID
    _connect(tracker, subscriptions)
    deadline = time.monotonic() + to.timeout
    while count is None or printed < count:
        for subscription in subscriptions:
            for message in subscription.poll(_POLL_LIMIT):
                frame = tracker.on_message(message)
                if frame is not None and (not is_stream or frame.stream_id == wanted):
                    waiting.append(_WaitingFrame(time.monotonic() + _SETTLE_S, frame))
        now = time.monotonic()
        while waiting and waiting[0].due_s <= now and (count is None or printed < count):
            frame = waiting.popleft().frame
            lineage = tracker.lineage(frame.trace_id)
            if is_stream or any(ancestor.trace_id == wanted for ancestor in lineage):
                _print_tree(frame, lineage, to.json_output)
                printed += 1
        if not printed and not (is_stream and waiting) and now > deadline:
            raise _no_lineage_error(tracker, wanted, to.timeout)
        time.sleep(_POLL_S)


def _connect(tracker: LineageTracker, subscriptions: list[_native.Subscription]) -> None:
    """Waits until all streams are connected or have no publication, and then for trace links: without these
    the first frames would be printed without parents."""
    deadline = time.monotonic() + _CONNECT_TIMEOUT_S
    while not all(subscription.is_connected for subscription in subscriptions):
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    time.sleep(_SETTLE_S)
    for subscription in subscriptions:
        for message in subscription.poll(_MAX_WAITING):
            tracker.on_message(message)


def _print_tree(frame: TracedFrame, lineage: Lineage, json_output: bool) -> None:
    if json_output:
        click.echo(json.dumps({"frame": frame.to_json(), **lineage.to_json()}))
    else:
        tree = Tree(_lineage_text(lineage, frame))
        _add_parents(tree, lineage)
        console().print(tree)
    sys.stdout.flush()


def _add_parents(tree: Tree, lineage: Lineage) -> None:
    for parent in lineage.parents:
        _add_parents(tree.add(_lineage_text(parent, None)), parent)


def _lineage_text(lineage: Lineage, first: TracedFrame | None) -> str:
    """The frames of a trace, in the order of receipt: a frame with one parent has the trace of its parent.
    The order of frames of different streams is unknown, since their messages come on different streams."""
    others = [frame for frame in lineage.frames if frame != first]
    frames = others if first is None else [first, *others]
    row = ", ".join(f"{frame.stream_id} seq {frame.seq}" for frame in frames) or "not seen"
    return f"{row}  trace {lineage.trace_id}"


def _no_lineage_error(tracker: LineageTracker, wanted: int, timeout: float) -> TensorPoolError:
    within = f"within {timeout:g} s"
    if wanted > MAX_STREAM_ID:
        return NoSuchTrace(f"no frame carried trace {wanted} or was made from it {within}")
    if tracker.untraced:
        reason = f"no frame of stream {wanted} had a trace {within}; its producer needs traces=True"
    else:
        reason = f"no frame of stream {wanted} was published {within}"
    return ReceiveTimeout(reason, stream_id=wanted)
