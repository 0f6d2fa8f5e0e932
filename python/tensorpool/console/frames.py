"""Frames for a browser: views of arrays as compact bytes, and the thread that reads a watched stream.

A view is a rectangle of two axes of an array at a step; only its elements are read from shared memory.
Elements keep their type as far as a browser has it: 16-bit values stay 16-bit values, so that the value
under the pointer is the true one. Encoding is pure and runs on the thread of the `StreamReader`, never on
the event loop.

A `StreamReader` is a consumer of its own with a rate limit and policy `latest`. It reads a frame only when
a viewer has drawn the one before: a slow browser gets fewer frames, and the stream does not notice.
"""

from __future__ import annotations

import json
import logging
import math
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from .. import _native
from ..client import Consumer
from ..clock import age_ns
from ..context import Context
from ..errors import FrameOverwritten, RegionRejected, TensorPoolError
from ..preview import to_real
from ..text import JsonValue, safe_text

MAX_HZ: Final = 30.0
MAX_ELEMENTS: Final = 1 << 20
"""Elements of one view. A canvas shows hardly more, and a browser could not take them at a useful rate."""
MAX_POINTS: Final = 4096
"""Points of a line."""
MAX_AXES: Final = 16
MAX_SIDE: Final = 4096
_MAX_ROWS: Final = 1080
_MAX_COLUMNS: Final = 1920
"""A view has no more, unless the browser asks for it."""
_POLL_S: Final = 0.1
_RATE_WINDOW_S: Final = 2.0
_LOG = logging.getLogger(__name__)
_HEAD: Final = struct.Struct("<I")
_ALIGNMENT: Final = 8
_MAX_META: Final = 40
_MAX_META_TEXT: Final = 300

# Types that JavaScript has as typed arrays; all others are converted.
_TYPES: Final[dict[np.dtype[Any], str]] = {
    np.dtype(np.uint8): "u8",
    np.dtype(np.int8): "i8",
    np.dtype(np.uint16): "u16",
    np.dtype(np.int16): "i16",
    np.dtype(np.uint32): "u32",
    np.dtype(np.int32): "i32",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
_Array = npt.NDArray[Any]


class NotAView(TensorPoolError, ValueError):
    """The array has nothing that a browser could show, or the view does not fit it."""


@dataclass(frozen=True, slots=True)
class FrameView:
    """Which part of a frame a viewer wants, in elements of the frame. None: the default for its shape."""

    rows_axis: int | None = None
    columns_axis: int | None = None
    channels_axis: int | None = None
    """-1: no channels, although the shape looks like it."""
    index: tuple[int, ...] = ()
    """The plane: one index per axis; those of shown axes are ignored."""
    top: int = 0
    left: int = 0
    height: int | None = None
    width: int | None = None
    max_rows: int = _MAX_ROWS
    max_columns: int = _MAX_COLUMNS
    bayer: str = ""
    """`rggb`, `bggr`, `grbg` or `gbrg`: the mosaic becomes RGB of half the size."""

    @classmethod
    def from_json(cls, values: JsonValue) -> FrameView:
        """The view that a browser asks for. Raises NotAView for anything else."""
        if not isinstance(values, Mapping):
            raise NotAView("view is an object")

        def number(name: str, least: int = -1, limit: int = 1 << 31) -> int | None:
            return _integer(values.get(name), name, least, limit)

        index = values.get("index", [])
        if not isinstance(index, list) or len(index) > MAX_AXES:
            raise NotAView("index is a list of numbers, one per axis")
        bayer = values.get("bayer") or ""
        if not isinstance(bayer, str) or bayer not in ("", *_BAYER):
            raise NotAView(f"bayer is one of {', '.join(_BAYER)}")
        return cls(
            rows_axis=number("rows_axis"),
            columns_axis=number("columns_axis"),
            channels_axis=number("channels_axis"),
            index=tuple(_integer(item, "index", 0, 1 << 31) or 0 for item in index),
            top=number("top", 0) or 0,
            left=number("left", 0) or 0,
            height=number("height"),
            width=number("width"),
            max_rows=number("max_rows", 1, MAX_SIDE) or _MAX_ROWS,
            max_columns=number("max_columns", 1, MAX_SIDE) or _MAX_COLUMNS,
            bayer=bayer,
        )


def _integer(value: object, name: str, least: int, limit: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not least <= value <= limit:
        raise NotAView(f"{name} is a whole number from {least} to {limit}")
    return value


# Row and column of red, green, green, blue in a cell of 2 x 2.
_BAYER: Final = {
    "rggb": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "bggr": ((1, 1), (0, 1), (1, 0), (0, 0)),
    "grbg": ((0, 1), (0, 0), (1, 1), (1, 0)),
    "gbrg": ((1, 0), (0, 0), (1, 1), (0, 1)),
}


class FrameHeader(TypedDict, total=False):
    """The facts before the elements of a frame."""

    watch: int
    stream: int
    seq: str
    epoch: str
    timestamp_ns: str
    age_ms: float
    sent_ms: float
    type: str
    shape: list[int]
    nbytes: int
    rate_hz: float | None
    kind: str
    why: str
    elements: str
    rows: int
    columns: int
    channels: int
    top: int
    left: int
    height: int
    width: int
    step: int
    axes: list[int | None]
    index: list[int]
    envelope: bool
    rounded: bool
    bayer: str
    meta: dict[str, str]


@dataclass(frozen=True, slots=True)
class EncodedView:
    """The elements of a view, and what they are."""

    header: FrameHeader
    payload: bytes


def encode_view(array: _Array, view: FrameView) -> EncodedView:
    """The elements of an array that a view shows. Raises NotAView."""
    if array.size == 0:
        raise NotAView(f"the shape {_shape_text(array)} has no elements")
    if array.dtype.kind in "OSU":
        raise NotAView(f"elements of type {array.dtype} are not numbers")
    if array.ndim > MAX_AXES:
        raise NotAView(f"{array.ndim} axes are more than {MAX_AXES}")
    rows, columns, channels = shown_axes(array.shape, view)
    index = tuple(
        min(view.index[axis] if axis < len(view.index) else 0, array.shape[axis] - 1)
        for axis in range(array.ndim)
    )
    plane = _plane(array, (rows, columns, channels), index)
    common: FrameHeader = {"axes": [rows, columns, channels], "index": list(index)}
    encoded = _encode_line(plane, view) if rows is None else _encode_image(plane, view)
    return EncodedView({**common, **encoded.header}, encoded.payload)


def shown_axes(shape: tuple[int, ...], view: FrameView) -> tuple[int | None, int | None, int | None]:
    """The axes that are shown as rows, columns and channels; rows of None: a line."""
    ndim = len(shape)
    if ndim == 0:
        return None, None, None
    chosen = (view.rows_axis, view.columns_axis, view.channels_axis)
    if view.columns_axis is not None and view.columns_axis >= 0:
        rows = None if view.rows_axis is None or view.rows_axis < 0 else view.rows_axis
        channels = None if view.channels_axis is None or view.channels_axis < 0 else view.channels_axis
        axes = [axis for axis in (rows, view.columns_axis, channels) if axis is not None]
        is_distinct = max(axes) < ndim and len(set(axes)) == len(axes)
        if is_distinct and (channels is None or shape[channels] in (3, 4)):
            return rows, view.columns_axis, channels
        raise NotAView(f"the axes {chosen} do not fit the shape {'x'.join(map(str, shape))}")
    if ndim == 1 or sum(size > 1 for size in shape) <= 1:
        # A row or column of an image is a line too.
        return None, max(range(ndim), key=lambda axis: shape[axis]), None
    if ndim >= 3 and view.channels_axis != -1:
        if shape[-1] in (3, 4):
            return ndim - 3, ndim - 2, ndim - 1
        if ndim == 3 and shape[0] in (3, 4):
            return 1, 2, 0
    if ndim >= 3 and shape[-1] == 1:
        return ndim - 3, ndim - 2, None
    return ndim - 2, ndim - 1, None


def _plane(array: _Array, axes: tuple[int | None, int | None, int | None], index: tuple[int, ...]) -> _Array:
    """The array with the shown axes in order, the others at their index; no copy."""
    shown = [axis for axis in axes if axis is not None]
    picked = array[tuple(slice(None) if axis in shown else index[axis] for axis in range(array.ndim))]
    left = sorted(shown)
    return np.transpose(picked, [left.index(axis) for axis in shown])


def _encode_image(plane: _Array, view: FrameView) -> EncodedView:
    rows, columns = plane.shape[:2]
    top, left = min(view.top, rows - 1), min(view.left, columns - 1)
    height = min(view.height or rows, rows - top)
    width = min(view.width or columns, columns - left)
    bayer = view.bayer if plane.ndim == 2 and rows > 1 and columns > 1 else ""
    if bayer:
        top, left = top // 2 * 2, left // 2 * 2
        height, width = max(height // 2 * 2, 2), max(width // 2 * 2, 2)
        height, width = min(height, (rows - top) // 2 * 2), min(width, (columns - left) // 2 * 2)
    channels = 3 if bayer else (1 if plane.ndim == 2 else plane.shape[2])
    cell = 2 if bayer else 1
    step = _step(height // cell, width // cell, channels, view) * cell
    if bayer:
        shown = _demosaic(plane[top : top + height, left : left + width], bayer, step)
    else:
        shown = plane[top : top + height : step, left : left + width : step]
    elements, name, is_rounded = browser_elements(shown)
    header: FrameHeader = {
        "kind": "image",
        "elements": name,
        "rows": shown.shape[0],
        "columns": shown.shape[1],
        "channels": channels,
        "top": top,
        "left": left,
        "height": rows,
        "width": columns,
        "step": step,
        "rounded": is_rounded,
        "bayer": bayer,
    }
    return EncodedView(header, elements.tobytes())


def _step(height: int, width: int, channels: int, view: FrameView) -> int:
    """Every how many-th row and column is shown."""
    by_size = max(height / view.max_rows, width / view.max_columns, 1.0)
    by_count = math.sqrt(height * width * channels / MAX_ELEMENTS)
    return max(1, math.ceil(max(by_size, by_count)))


def _demosaic(mosaic: _Array, pattern: str, step: int) -> _Array:
    """Red, the mean of the two greens, and blue of each cell."""
    red, green, other, blue = (mosaic[row::step, column::step] for row, column in _BAYER[pattern])
    greens = green // 2 + other // 2 if mosaic.dtype.kind in "ui" else (green + other) / 2
    return np.stack([red, greens.astype(mosaic.dtype), blue], axis=-1)


def _encode_line(plane: _Array, view: FrameView) -> EncodedView:
    line = plane.reshape(-1)
    left = min(view.left, line.size - 1)
    width = min(view.width or line.size, line.size - left)
    part = line[left : left + width]
    step = max(1, math.ceil(width / MAX_POINTS))
    elements, name, is_rounded = browser_elements(part)
    if step > 1:
        # The least and the greatest of each group: a single peak stays visible.
        step = math.ceil(width / (MAX_POINTS // 2))
        edges = np.arange(0, width, step)
        low, high = np.fmin.reduceat(elements, edges), np.fmax.reduceat(elements, edges)
        elements = np.stack([low, high], axis=-1).reshape(-1).astype(elements.dtype)
    header: FrameHeader = {
        "kind": "line",
        "elements": name,
        "rows": 1,
        "columns": elements.size,
        "channels": 1,
        "top": 0,
        "left": left,
        "height": 1,
        "width": line.size,
        "step": step,
        "envelope": step > 1,
        "rounded": is_rounded,
    }
    return EncodedView(header, elements.tobytes())


def browser_elements(array: _Array) -> tuple[_Array, str, bool]:
    """The elements in a type that a browser has, its name, and whether a value had to be rounded."""
    dtype = array.dtype.newbyteorder("=")
    if dtype in _TYPES:
        return np.ascontiguousarray(array, dtype=dtype), _TYPES[dtype], False
    if dtype.kind == "b":
        return np.ascontiguousarray(array).astype(np.uint8), "u8", False
    try:
        real = to_real(np.asarray(array, dtype=dtype))
    except (TypeError, ValueError) as error:
        raise NotAView(f"elements of type {array.dtype} are not numbers: {error}") from None
    if real.dtype in _TYPES:
        return np.ascontiguousarray(real), _TYPES[real.dtype], False
    if real.dtype == np.float16:
        return real.astype(np.float32), "f32", False
    values = np.ascontiguousarray(real, dtype=np.float64)
    is_rounded = real.dtype.kind in "ui" and bool(np.any(np.abs(values) >= 2.0**53))
    return values, "f64", is_rounded or real.dtype.itemsize > 8


def pack_message(header: FrameHeader, payload: bytes) -> bytes:
    """A binary message: the length of the header, the header as JSON, and the elements at a multiple of 8."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + _HEAD.size) % _ALIGNMENT)
    return b"".join((_HEAD.pack(len(text)), text, payload))


def unpack_message(message: bytes) -> tuple[FrameHeader, bytes]:
    """Header and elements of a message."""
    (size,) = _HEAD.unpack_from(message)
    header: FrameHeader = json.loads(message[_HEAD.size : _HEAD.size + size])
    return header, message[_HEAD.size + size :]


def elements_of(header: FrameHeader, payload: bytes) -> _Array:
    """The elements of a message in the shape that is shown: a line, or rows, columns and channels."""
    dtype = next(known for known, name in _TYPES.items() if name == header["elements"])
    array: _Array = np.frombuffer(payload, dtype)
    if header["kind"] == "line":
        return array
    rows, columns, channels = header["rows"], header["columns"], header["channels"]
    return array.reshape((rows, columns) if channels == 1 else (rows, columns, channels))


def _shape_text(array: _Array) -> str:
    return "x".join(map(str, array.shape)) or "()"


def meta_text(attributes: Mapping[str, Any] | None) -> dict[str, str]:
    """Attributes as short texts: their number and size are the sender's choice."""
    if not attributes:
        return {}
    texts = {}
    for name, value in list(attributes.items())[:_MAX_META]:
        text = ", ".join(map(str, value[:_MAX_META])) if isinstance(value, list | tuple) else str(value)
        texts[safe_text(str(name))[:_MAX_META_TEXT]] = safe_text(text)[:_MAX_META_TEXT]
    return texts


class AnyFrame(Protocol):
    """What live and recorded frames have in common."""

    @property
    def stream_id(self) -> int:
        """The stream."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch."""
        ...

    @property
    def seq(self) -> int:
        """The sequence."""
        ...

    @property
    def timestamp_ns(self) -> int:
        """The timestamp of the slot."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of the payload."""
        ...

    @property
    def element_type(self) -> str:
        """The name of the element type."""
        ...

    @property
    def array(self) -> npt.NDArray[Any]:
        """The payload."""
        ...


def encode_frame(frame: AnyFrame, view: FrameView, facts: FrameHeader) -> bytes:
    """A frame as a message. A frame that cannot be shown becomes a message that says why.

    Does not check whether a live frame was overwritten meanwhile: its caller does.
    """
    header: FrameHeader = {
        **facts,
        "stream": frame.stream_id,
        "seq": str(frame.seq),
        "epoch": str(frame.epoch),
        "timestamp_ns": str(frame.timestamp_ns),
        "type": frame.element_type,
        "shape": list(frame.shape),
        "nbytes": frame.nbytes,
    }
    try:
        encoded = encode_view(frame.array, view)
    except FrameOverwritten:
        raise
    except (TensorPoolError, TypeError, ValueError) as error:
        return pack_message({**header, "kind": "none", "why": safe_text(str(error))}, b"")
    return pack_message({**header, **encoded.header}, encoded.payload)


# --- reading a watched stream


@dataclass(slots=True)
class Watch:
    """One viewer's view of one stream."""

    number: int
    stream_id: int
    deliver: Callable[[bytes], None] = field(repr=False)
    """Takes an encoded frame, on the reader's thread."""
    view: FrameView = field(default_factory=FrameView)
    hz: float = MAX_HZ
    credit: int = 2
    """Frames that may be under way: the browser returns one for each that it has drawn."""
    due_s: float = 0.0
    shown_number: int = 0
    """The number that the browser knows it by."""
    needs_again: bool = False
    """The view has changed: the frame that was shown last is sent again if no newer one arrives."""


class _SeqSample(NamedTuple):
    at_s: float
    epoch: int
    seq: int


class _RateWindow:
    """The rate of a stream from the sequences of the frames that are read."""

    def __init__(self) -> None:
        self._samples: list[_SeqSample] = []

    def add(self, at_s: float, epoch: int, seq: int) -> float | None:
        if self._samples and self._samples[-1].epoch != epoch:
            self._samples.clear()
        self._samples.append(_SeqSample(at_s, epoch, seq))
        while at_s - self._samples[0].at_s > _RATE_WINDOW_S and len(self._samples) > 2:
            self._samples.pop(0)
        first = self._samples[0]
        return (seq - first.seq) / (at_s - first.at_s) if at_s > first.at_s else None


class StreamReader:
    """A thread with a consumer of one stream, for all its viewers."""

    def __init__(self, context: Context, stream_id: int, *, max_hz: float = MAX_HZ) -> None:
        self.stream_id = stream_id
        self.consumer_ids: set[int] = set()
        """Ids of its consumer, so that the console can leave itself out."""
        self._context = context
        self._max_hz = max_hz
        self._changed = threading.Condition()
        self._watches: dict[int, Watch] = {}
        self._is_closed = False
        self._shown: _native.Frame | None = None
        """The last frame, for views that change while the stream is quiet."""
        self._rate = _RateWindow()
        self._rate_hz: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"console-{stream_id}", daemon=True)
        self._thread.start()

    def add(self, watch: Watch) -> None:
        """Starts to deliver frames."""
        with self._changed:
            self._watches[watch.number] = watch
            self._changed.notify()

    def change(self, number: int, view: FrameView, hz: float) -> None:
        """Changes what a viewer sees; the newest frame is sent again at once."""
        with self._changed:
            if (watch := self._watches.get(number)) is not None:
                watch.view, watch.hz, watch.due_s, watch.needs_again = view, hz, 0.0, True
                self._changed.notify()

    def remove(self, number: int) -> bool:
        """Ends a viewer's view; True if it was the last one."""
        with self._changed:
            self._watches.pop(number, None)
            return not self._watches

    def on_drawn(self, number: int) -> None:
        """A viewer has drawn a frame, and can take another."""
        with self._changed:
            if (watch := self._watches.get(number)) is not None:
                watch.credit = min(watch.credit + 1, 2)
                self._changed.notify()

    def close(self) -> None:
        """Ends the thread and its consumer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        consumer: Consumer | None = None
        try:
            while not self._is_closed:
                try:
                    if consumer is None:
                        consumer = self._context.consumer(
                            self.stream_id, policy="latest", max_rate_hz=self._max_hz, label="console"
                        )
                    self._step(consumer)
                except RegionRejected as error:
                    self._report(str(error))
                    self._pause()
                except Exception as error:
                    if not isinstance(error, TensorPoolError):
                        # A frame of an unforeseen kind must not end the view of those that follow.
                        _LOG.exception("the console failed to show a frame of stream %d", self.stream_id)
                    self._report(str(error) or repr(error))
                    self._shown = None
                    if consumer is not None:
                        consumer.close()
                        consumer = None
                    self._pause()
        finally:
            if consumer is not None:
                consumer.close()

    def _pause(self) -> None:
        with self._changed:
            if not self._is_closed:
                self._changed.wait(1.0)

    def _due(self, now_s: float) -> list[Watch]:
        return [watch for watch in self._watches.values() if watch.credit > 0 and now_s >= watch.due_s]

    def _step(self, consumer: Consumer) -> None:
        with self._changed:
            if not any(watch.credit > 0 for watch in self._watches.values()):
                self._changed.wait(_POLL_S)
                return
            next_s = min(watch.due_s for watch in self._watches.values() if watch.credit > 0)
            if (wait_s := next_s - time.monotonic()) > 0:
                self._changed.wait(min(wait_s, _POLL_S))
                return
        frame = consumer.receive_or_none(_POLL_S)
        # A consumer changes its id if another consumer uses the same one.
        if (consumer_id := consumer.state().consumer_id) is not None:
            self.consumer_ids.add(consumer_id)
        now_s = time.monotonic()
        if frame is not None:
            self._shown = frame
            self._rate_hz = self._rate.add(now_s, frame.epoch, frame.seq)
        elif self._shown is not None and self._shown.epoch != consumer.epoch:
            # A frame keeps its regions mapped; those of a past epoch must go.
            self._shown = None
        if self._shown is not None:
            with self._changed:
                due = [watch for watch in self._due(now_s) if frame is not None or watch.needs_again]
            self._send(self._shown, due, now_s)

    def _send(self, frame: _native.Frame, watches: list[Watch], now_s: float) -> None:
        for watch in watches:
            facts: FrameHeader = {
                "watch": watch.shown_number,
                "rate_hz": None if self._rate_hz is None else round(self._rate_hz, 2),
                "age_ms": round(age_ns(frame.timestamp_ns) / 1e6, 3),
                "sent_ms": time.time() * 1e3,
                "meta": meta_text(frame.meta),
            }
            watch.needs_again = False
            try:
                # The check is after the elements were copied: none of them is of a later frame.
                with frame:
                    message = encode_frame(frame, watch.view, facts)
            except FrameOverwritten:
                return
            with self._changed:
                watch.credit -= 1
                watch.due_s = now_s + 1 / watch.hz
            watch.deliver(message)

    def _report(self, why: str) -> None:
        """Sends a message without elements to all viewers that can take one."""
        with self._changed:
            watches = [watch for watch in self._watches.values() if watch.credit > 0]
            for watch in watches:
                watch.credit -= 1
        for watch in watches:
            header: FrameHeader = {
                "watch": watch.shown_number,
                "stream": self.stream_id,
                "kind": "none",
                "why": safe_text(why),
            }
            watch.deliver(pack_message(header, b""))
