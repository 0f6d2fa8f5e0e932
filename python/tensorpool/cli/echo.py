"""`tensorpool stream echo`: what is in the frames, and a frame as a picture."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy.typing as npt

from .. import _native
from ..context import Context
from ..errors import FrameOverwritten
from ..monitor import encode_png, summarize, to_pixels
from .connection import Connection
from .hz import silent

_SLICE_S = 0.2
_DESCRIBED_S = 1.5


def echo_frames(
    ctx: Context, stream_id: int, *, count: int | None, latest: bool, image: Path | None, to: Connection
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
            **summary.as_json(),
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
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise click.FileError(str(path), error.strerror or str(error)) from None
    return path
