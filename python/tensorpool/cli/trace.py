"""`tensorpool stream trace`: what frames were made from, as they come."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence

import click
from rich.tree import Tree

from .. import _native
from ..context import Context
from ..errors import ReceiveTimeout, TensorPoolError
from ..monitor.lineage import Lineage, LineageTracker, TracedFrame
from .connection import Connection
from .screen import console

_CHANNEL = "aeron:ipc?tether=false"
_LOOK_S = 0.005
# Links travel on another stream than descriptors: a frame is shown when they have had time to come.
_SETTLE_S = 0.25
_CONNECT_S = 1.0
_MOST_WAITING = 10_000
LAST_STREAM_ID = 0xFFFF_FFFE


class NoSuchTrace(TensorPoolError, LookupError):
    """Nobody told of the trace."""


def follow(
    ctx: Context, wanted: int, *, descriptor_streams: Sequence[int], count: int | None, to: Connection
) -> None:
    """Prints until Ctrl-C or `count`. Raises ReceiveTimeout if nothing of that lineage ever came."""
    ids = dict.fromkeys((ctx.stream_ids.control, ctx.stream_ids.descriptor, *descriptor_streams))
    ears = [_native.Subscription(ctx._conductor, _CHANNEL, stream) for stream in ids]
    try:
        _run(LineageTracker(), ears, wanted, count, to)
    except KeyboardInterrupt:
        return
    finally:
        for ear in ears:
            ear.close()


def _run(
    book: LineageTracker, ears: list[_native.Subscription], wanted: int, count: int | None, to: Connection
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
                _show(frame, lineage, to.as_json)
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


def _show(frame: TracedFrame, lineage: Lineage, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"frame": frame.as_json(), **lineage.as_json()}))
    else:
        tree = Tree(_words(lineage, frame))
        _branch(tree, lineage)
        console().print(tree)
    sys.stdout.flush()


def _branch(tree: Tree, lineage: Lineage) -> None:
    for parent in lineage.parents:
        _branch(tree.add(_words(parent, None)), parent)


def _words(lineage: Lineage, first: TracedFrame | None) -> str:
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
