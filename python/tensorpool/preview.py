"""Previews of arrays and frames: real numbers, images, PNG files, one-line summaries, HTML in a notebook.

The PNG writer covers gray and RGB(A) with 8 and 16 bits. `zlib` does the compression; an imaging library
would be a large dependency for one small file format.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import FrameOverwritten, TensorPoolError
from .text import JsonMapping

_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_COLOUR_TYPE: Final = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's colour type by the number of channels."""
_PNG_HEADER: Final = struct.Struct(">IIBBBBB")
"""Width, height, bits of a channel, colour type, methods of compression, filtering and interlacing."""
_PNG_U32: Final = struct.Struct(">I")
_CHANNELS: Final = (1, 3, 4)
_MAX_EXACT_INT: Final = 1 << 53
_SUMMARY_VALUES: Final = 6
_THUMBNAIL_SIDE: Final = 256
_LINE_POINTS: Final = 512

# --- real numbers


def to_real(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Elements that can be compared: the absolute value of complex numbers, the counts behind times, float32
    for the types of other packages."""
    match array.dtype.kind:
        case "c":
            size: npt.NDArray[Any] = np.abs(array)
            return size
        case "M" | "m":
            return array.view(np.int64)
        case "V":
            return array.astype(np.float32)
    return array


def stretch(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The elements on a scale from 0 (the least finite value) to 255 (the greatest).

    Infinities get the ends of the scale, NaN gets 0. An array of equal values is all 0.
    """
    values = to_real(array).astype(np.float64)
    finite = np.isfinite(values)
    low = float(values[finite].min()) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 0.0
    if not high > low:
        return np.zeros(values.shape)
    clean = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    # Halved first: the difference of the largest and the least float64 is not a float64.
    return (clean / 2 - low / 2) / (high / 2 - low / 2) * 255


# --- images


class NotAnImage(TensorPoolError, ValueError):
    """The array has no two dimensions that could be rows and columns."""

    def __init__(self, message: str, *, shape: tuple[int, ...]) -> None:
        super().__init__(message)
        self.shape = shape


def image_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The part of an array that is (height, width) or (height, width, channels), without a copy.

    Channels may come first, as in (3, height, width). Of a stack of images the first is taken.
    """
    image = array
    while image.ndim > 2 and not (
        image.ndim == 3 and (_has_channels_last(image) or _has_channels_first(image))
    ):
        image = image[0]
    if image.ndim < 2 or 0 in image.shape:
        raise NotAnImage(
            f"an array of shape {array.shape} is not an image; it needs rows and columns", shape=array.shape
        )
    if image.ndim == 3 and not _has_channels_last(image):
        image = np.moveaxis(image, 0, -1)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    return image


def _has_channels_last(image: npt.NDArray[Any]) -> bool:
    return image.shape[-1] in _CHANNELS


def _has_channels_first(image: npt.NDArray[Any]) -> bool:
    return image.shape[0] in _CHANNELS[1:]


def to_pixels(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The `image_view` of an array as pixels of 8 or 16 bits.

    uint8 and uint16 stay as they are, booleans become black and white, other elements are stretched from the
    least to the greatest value.
    """
    image = image_view(array)
    if image.dtype == np.bool_:
        return np.where(image, 255, 0).astype(np.uint8)
    if image.dtype in (np.uint8, np.uint16):
        return image
    return np.round(stretch(image)).astype(np.uint8)


def encode_png(pixels: npt.NDArray[Any]) -> bytes:
    """The PNG file of pixels that `to_pixels` returned."""
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.ndim not in (2, 3):
        raise NotAnImage(
            f"{pixels.dtype} of shape {pixels.shape} is not an image of to_pixels()", shape=pixels.shape
        )
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    bits = pixels.dtype.itemsize * 8
    # PNG stores the most significant byte first, and a filter type before each row: 0, no filter.
    rows = (
        np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    )
    filtered = np.zeros((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 1:] = rows
    # The only methods of compression and filtering that PNG has, and no interlacing.
    methods = (0, 0, 0)
    header = _PNG_HEADER.pack(width, height, bits, _PNG_COLOUR_TYPE[channels], *methods)
    return b"".join(
        [
            _PNG_SIGNATURE,
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", zlib.compress(filtered.tobytes(), level=6)),
            _png_chunk(b"IEND", b""),
        ]
    )


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return _PNG_U32.pack(len(content)) + kind + content + _PNG_U32.pack(zlib.crc32(kind + content))


# --- summaries


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """Shape, type, range and first elements of an array.

    `minimum`, `maximum` and `mean` are None for an array without finite elements.
    """

    shape: tuple[int, ...]
    dtype: str
    minimum: float | int | bool | None
    maximum: float | int | bool | None
    mean: float | None
    values: tuple[Any, ...]
    """The first elements, in memory order."""
    not_finite: int
    """NaNs and infinities, which the other figures omit."""

    def to_json(self) -> JsonMapping:
        """The fields with values that JSON can hold."""
        return {
            "shape": self.shape,
            "dtype": self.dtype,
            "min": _json_value(self.minimum),
            "max": _json_value(self.maximum),
            "mean": _json_value(self.mean),
            "values": [_json_value(value) for value in self.values],
            "not_finite": self.not_finite,
        }

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self.minimum is None:
            figures = "empty" if not self.not_finite else "nothing finite"
        else:
            low, high, mean = map(_value_text, (self.minimum, self.maximum, self.mean))
            figures = f"min {low}  max {high}  mean {mean}"
        odd = f"  {self.not_finite} not finite" if self.not_finite and self.minimum is not None else ""
        dots = " …" if math.prod(self.shape) > len(self.values) else ""
        values = " ".join(map(_value_text, self.values))
        return f"{shape} {self.dtype}  {figures}{odd}  [{values}{dots}]"


def summarize(array: npt.NDArray[Any], element_type: str | None = None) -> ArraySummary:
    """The summary of an array; reads every element once. Complex numbers count by their absolute value."""
    # A flat view in memory order: a copy of the frame would cost more than all figures together.
    flat = array.ravel(order="K")
    finite = numbers = to_real(flat)
    not_finite = 0
    if numbers.dtype.kind == "f":
        is_finite = np.isfinite(numbers)
        not_finite = int(flat.size - np.count_nonzero(is_finite))
        finite = numbers[is_finite] if not_finite else numbers
    low = high = mean = None
    if finite.size:
        low, high = finite.min().item(), finite.max().item()
        mean = float(finite.mean(dtype=np.float64))
    return ArraySummary(
        shape=array.shape,
        dtype=element_type or str(array.dtype),
        minimum=low,
        maximum=high,
        mean=mean,
        values=tuple(_python_value(value) for value in flat[:_SUMMARY_VALUES]),
        not_finite=not_finite,
    )


def _python_value(value: Any) -> Any:
    """An element as a Python number; times as text, the types of other packages as float."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    return item if isinstance(item, bool | int | float | complex | bytes) else float(value)


def _json_value(value: Any) -> Any:
    """A value as JSON can hold it: NaN, infinities, complex numbers and integers over 53 bits become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _MAX_EXACT_INT:
        return str(value)
    return value


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- HTML, for notebooks


def thumbnail(array: npt.NDArray[Any], side: int = _THUMBNAIL_SIDE) -> npt.NDArray[np.uint8]:
    """The `image_view` of an array with every n-th row and column, so that neither side is longer, in 8 bits.

    All but uint8 and booleans are stretched from the 1st to the 99th percentile of the finite values: a few
    bright points must not make the rest black.
    """
    image = image_view(array)
    step = max(1, math.ceil(max(image.shape[:2]) / side))
    small = np.ascontiguousarray(image[::step, ::step])
    if small.dtype in (np.uint8, np.bool_):
        return np.where(small, 255, 0).astype(np.uint8) if small.dtype == np.bool_ else small
    values = to_real(small).astype(np.float64)
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high = np.percentile(finite, (1, 99))
        if high > low:
            values = np.clip(values, low, high)
    return np.round(stretch(values)).astype(np.uint8)


def image_html(pixels: npt.NDArray[np.uint8], text: str) -> str:
    """An image as HTML that needs no other file; small ones are enlarged, with square pixels."""
    data = base64.b64encode(encode_png(pixels)).decode("ascii")
    height, width = pixels.shape[:2]
    factor = max(1, _THUMBNAIL_SIDE // max(height, width))
    return (
        f'<img alt="{escape(text)}" width="{width * factor}" height="{height * factor}" '
        f'style="image-rendering: pixelated" src="data:image/png;base64,{data}">'
    )


def line_svg(array: npt.NDArray[Any], text: str) -> str:
    """A vector as a line, in SVG. Of a long one the least and the greatest of each group are drawn."""
    values = to_real(array.reshape(-1)).astype(np.float64)
    step = max(1, math.ceil(values.size / _LINE_POINTS))
    edges = np.arange(0, values.size, step)
    low, high = np.fmin.reduceat(values, edges), np.fmax.reduceat(values, edges)
    points = np.stack([low, high], -1).reshape(-1) if step > 1 else values
    levels = stretch(points)
    places = [
        f"{at / max(1, points.size - 1) * 256:.1f},{62 - level / 255 * 60:.1f}"
        for at, (level, is_finite) in enumerate(zip(levels, np.isfinite(points), strict=True))
        if is_finite
    ]
    return (
        f'<svg role="img" aria-label="{escape(text)}" width="256" height="64" viewBox="0 0 256 64">'
        f'<polyline points="{" ".join(places)}" fill="none" stroke="#1461bd" stroke-width="1.2"/></svg>'
    )


def array_html(array: npt.NDArray[Any], side: int = _THUMBNAIL_SIDE) -> str:
    """An array as a thumbnail or, if it is a vector, as a line; nothing if it is neither."""
    if array.size == 0 or array.dtype.kind in "OSU":
        return ""
    text = f"{'x'.join(map(str, array.shape))} {array.dtype}"
    try:
        if sum(size > 1 for size in array.shape) <= 1:
            return line_svg(array, text) if array.size > 1 else ""
        return image_html(thumbnail(array, side), text)
    except (NotAnImage, TypeError, ValueError):
        return ""


def frame_html(shown: str, facts: str) -> str:
    """The thumbnail and the facts of a frame side by side."""
    style = "display: flex; gap: 12px; align-items: flex-start; flex-wrap: wrap"
    return f'<div style="{style}">{shown}{facts}</div>'


class TimelineGap(NamedTuple):
    """Missing sequences of an epoch."""

    first_seq: int
    span: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """The sequences of one epoch of a stream: a bar, and the gaps in it."""

    label: str
    first: int
    span: int
    gaps: Sequence[TimelineGap]


def timeline_svg(rows: Sequence[TimelineRow], width: int = 640) -> str:
    """Bars of recorded sequences with red gaps; the reason of a gap is its tooltip."""
    parts = []
    for number, row in enumerate(rows):
        top, scale = number * 34, width / max(1, row.span)
        parts.append(
            f'<text x="0" y="{top + 11}" font-size="11" fill="currentColor">{escape(row.label)}</text>'
        )
        parts.append(f'<rect x="0" y="{top + 15}" width="{width}" height="12" fill="#3f86d6"/>')
        for first, count, reason in row.gaps:
            left, long = (first - row.first) * scale, max(1.0, count * scale)
            parts.append(
                f'<rect x="{left:.2f}" y="{top + 15}" width="{long:.2f}" height="12" fill="#d33a34">'
                f"<title>{escape(f'{count:,} missing: {reason}')}</title></rect>"
            )
    return (
        f'<svg role="img" aria-label="recorded sequences and gaps" width="{width}" height="{len(rows) * 34}" '
        f'font-family="sans-serif">{"".join(parts)}</svg>'
    )


def show_html(html: str, text: str) -> None:
    """Displays HTML in a notebook. Elsewhere, and if there is nothing to display, prints the text."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        is_notebook = False
    else:
        # A plain terminal shell of IPython has no kernel, and would print the name of a class.
        is_notebook = hasattr(get_ipython(), "kernel")
    if is_notebook and html:
        display(HTML(html))
    else:
        sys.stdout.write(f"{text}\n")


# --- frames of a consumer, in a notebook


def _native_frame_html(frame: _native.Frame) -> str:
    """The thumbnail and the facts of a live frame; only the facts if it was overwritten meanwhile."""
    facts = _FACTS(frame)
    try:
        with frame:
            shown = array_html(frame.array)
    except FrameOverwritten:
        shown = "<p>overwritten by a newer frame</p>"
    return frame_html(shown, facts)


def _show_native_frame(frame: _native.Frame, side: int = 512) -> None:
    """Shows the frame in a notebook, with at most `side` pixels a side; elsewhere prints a summary.

    Raises FrameOverwritten if the producer has reused its slot.
    """
    with frame:
        html, text = array_html(frame.array, side), f"{frame!r}  {summarize(frame.array, frame.element_type)}"
    show_html(html, text)


# Images are made in Python, so the native class gets these methods here. `client` imports this module: the
# frames of every consumer have them.
_FACTS: Final[Callable[[_native.Frame], str]] = _native.Frame._repr_html_
for _name, _function in (("_repr_html_", _native_frame_html), ("show", _show_native_frame)):
    setattr(_native.Frame, _name, _function)
