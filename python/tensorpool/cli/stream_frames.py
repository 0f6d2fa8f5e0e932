"""`tensorpool stream hz`: the rate of one stream, and how evenly its frames come.

`tensorpool stream echo`: what is in the frames, and a frame as a picture.

`tensorpool stream trace`: what frames were made from, as they come.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy.typing as npt
from rich.tree import Tree

from .. import _native
from ..client import Consumer, Latency, LatencySummary
from ..context import Context
from ..durable import replace_file
from ..errors import FrameOverwritten, ReceiveTimeout, TensorPoolError
from ..monitor import Intervals, Rate, SampledRate, encode_png, summarize, to_pixels
from ..monitor.lineage import Lineage, LineageTracker, TracedFrame
from .options import ConnectOptions
from .output import console, format_duration

_SLICE_S = 0.2
# At the highest rates every frame would be too many to remember.
_EVERY = 100


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


def _run(meter: _Meter, period: float, count: int | None, to: ConnectOptions) -> None:
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
            "latency": meter.consumer.latency().to_json(),
        }
        click.echo(json.dumps(line))
    elif not fresh:
        click.echo("no new frames")
    elif rate is None:
        click.echo("one frame; a rate needs two")
    else:
        words = f"{rate.hz:,.2f} Hz  min {format_duration(rate.min_s)}  max {format_duration(rate.max_s)}  "
        words += f"std dev {format_duration(rate.std_dev_s)}  window {rate.frames}"
        words += _latency_text(meter.consumer.latency())
        if dropped:
            words += f"  dropped {sum(dropped.values())} ({_rate_text(dropped)})"
            # Who cannot keep up must not take its own pace for the producer's.
            words += "" if made_hz is None else f"  made at {made_hz:,.0f} Hz"
        click.echo(words)
    sys.stdout.flush()


def _latency_text(latency: Latency) -> str:
    # Before the first interval is over, all that there is.
    spread: LatencySummary = latency.last if latency.last.count else latency.total
    if not spread.count:
        return ""
    return f"  latency p50 {format_duration(spread.p50_ns / 1e9)} p99 {format_duration(spread.p99_ns / 1e9)}"


def _rate_text(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in dropped.items())


def silent(stream_id: int, timeout: float) -> ReceiveTimeout:
    return ReceiveTimeout(
        f"no frame within {timeout:g} s: stream {stream_id} is announced, and silent", stream_id=stream_id
    )


_DESCRIBED_S = 1.5


def echo_frames(
    ctx: Context, stream_id: int, *, count: int | None, latest: bool, image: Path | None, to: ConnectOptions
) -> None:
    """Prints until Ctrl-C or `count`. Raises ReceiveTimeout if no frame ever came."""
    shown, deadline = 0, time.monotonic() + to.timeout
    epoch: int | None = None
    is_described = False
    with ctx.consumer(stream_id, policy="latest" if latest else "stream") as consumer:
        try:
            while count is None or shown < count:
                frame = consumer.receive_or_none(_SLICE_S)
                if frame is not None:
                    if epoch not in (None, frame.epoch):
                        click.echo(f"the stream begins anew: epoch {frame.epoch}", err=True)
                    epoch = frame.epoch
                    if frame.meta_version and not is_described:
                        # Who has just come may have the frame before it hears what its elements are.
                        is_described = True
                        consumer.wait_for_metadata(min(_DESCRIBED_S, to.timeout))
                    shown += _show(frame, image, to.as_json)
                elif not shown and time.monotonic() > deadline:
                    raise silent(stream_id, to.timeout)
        except KeyboardInterrupt:
            return


def _show(frame: _native.Frame, image: Path | None, as_json: bool) -> bool:
    """False for a frame that was overwritten while it was read: what was seen of it may be torn."""
    try:
        array = frame.copy()
    except FrameOverwritten:
        return False
    summary = summarize(array, frame.element_type)
    path = None if image is None else _write(image, frame, array)
    if as_json:
        words: dict[str, Any] = {
            "stream_id": frame.stream_id,
            "epoch": str(frame.epoch),
            "seq": str(frame.seq),
            "timestamp_ns": str(frame.timestamp_ns),
            "meta_version": frame.meta_version,
            "trace_id": None if frame.trace_id is None else str(frame.trace_id),
            **summary.to_json(),
            **({} if path is None else {"image": str(path)}),
        }
        click.echo(json.dumps(words))
    else:
        click.echo(f"{frame.seq:>8}  {summary}")
        if path is not None:
            click.echo(f"written to {path}", err=True)
    sys.stdout.flush()
    return True


def _write(image: Path, frame: _native.Frame, array: npt.NDArray[Any]) -> Path:
    """Whoever looks at the file sees a whole picture, also while it is replaced again and again."""
    path = image.with_name(image.name.replace("{seq}", str(frame.seq)))
    content = encode_png(to_pixels(array))
    try:
        replace_file(path, content, sync=False, mode=0o666)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    return path


_CHANNEL = "aeron:ipc?tether=false"
_LOOK_S = 0.005
# Links travel on another stream than descriptors: a frame is shown when they have had time to come.
_SETTLE_S = 0.25
_CONNECT_S = 1.0
_MOST_WAITING = 10_000
LAST_STREAM_ID = 0xFFFF_FFFE


class NoSuchTrace(TensorPoolError, LookupError):
    """Nobody told of the trace."""


def print_lineage(
    ctx: Context, wanted: int, *, descriptor_streams: Sequence[int], count: int | None, to: ConnectOptions
) -> None:
    """Prints until Ctrl-C or `count`. Raises ReceiveTimeout if nothing of that lineage ever came."""
    ids = dict.fromkeys((ctx.stream_ids.control, ctx.stream_ids.descriptor, *descriptor_streams))
    ears = [_native.Subscription(ctx.connection.conductor, _CHANNEL, stream) for stream in ids]
    try:
        _collect_lineage(LineageTracker(), ears, wanted, count, to)
    except KeyboardInterrupt:
        return
    finally:
        for ear in ears:
            ear.close()


def _collect_lineage(
    book: LineageTracker, ears: list[_native.Subscription], wanted: int, count: int | None, to: ConnectOptions
) -> None:
    waiting: deque[tuple[float, TracedFrame]] = deque(maxlen=_MOST_WAITING)
    shown, is_stream = 0, wanted <= LAST_STREAM_ID
    _connect(book, ears)
    deadline = time.monotonic() + to.timeout
    while count is None or shown < count:
        for ear in ears:
            for message in ear.poll(1024):
                frame = book.hear(message)
                if frame is not None and (not is_stream or frame.stream_id == wanted):
                    waiting.append((time.monotonic() + _SETTLE_S, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now and (count is None or shown < count):
            _, frame = waiting.popleft()
            lineage = book.lineage(frame.trace_id)
            if is_stream or any(one.trace_id == wanted for one in lineage):
                _print_tree(frame, lineage, to.as_json)
                shown += 1
        if not shown and not (is_stream and waiting) and now > deadline:
            raise _nothing(book, wanted, to.timeout)
        time.sleep(_LOOK_S)


def _connect(book: LineageTracker, ears: list[_native.Subscription]) -> None:
    """Waits until all are heard, or are silent, and for a while more: the first frames that are shown would
    have no parents otherwise."""
    deadline = time.monotonic() + _CONNECT_S
    while not all(ear.is_connected for ear in ears) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    time.sleep(_SETTLE_S)
    for ear in ears:
        for message in ear.poll(_MOST_WAITING):
            book.hear(message)


def _print_tree(frame: TracedFrame, lineage: Lineage, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"frame": frame.as_json(), **lineage.as_json()}))
    else:
        tree = Tree(_frame_text(lineage, frame))
        _branch(tree, lineage)
        console().print(tree)
    sys.stdout.flush()


def _branch(tree: Tree, lineage: Lineage) -> None:
    for parent in lineage.parents:
        _branch(tree.add(_frame_text(parent, None)), parent)


def _frame_text(lineage: Lineage, first: TracedFrame | None) -> str:
    """The frames that carry a trace: a frame with one parent carries the parent's on. Who was before whom
    cannot be told, for each stream comes by its own way."""
    others = [frame for frame in lineage.frames if frame != first]
    frames = others if first is None else [first, *others]
    row = ", ".join(f"{frame.stream_id} seq {frame.seq}" for frame in frames) or "not seen"
    return f"{row}  trace {lineage.trace_id}"


def _nothing(book: LineageTracker, wanted: int, timeout: float) -> TensorPoolError:
    after = f"within {timeout:g} s"
    if wanted > LAST_STREAM_ID:
        return NoSuchTrace(f"no frame carried trace {wanted} or was made from it {after}")
    if book.untraced:
        why = f"no frame of stream {wanted} had a trace {after}; its producer needs traces=True"
    else:
        why = f"no frame of stream {wanted} came {after}"
    return ReceiveTimeout(why, stream_id=wanted)
