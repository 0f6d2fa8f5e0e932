"""Previews of arrays: elements as real numbers, images, PNG files, and one-line summaries. Pure.

The PNG writer covers gray and RGB(A) with 8 and 16 bits. `zlib` does the compression; an imaging library
would be a large dependency for one small file format.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import TensorPoolError
from .text import JsonObject

_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_COLOUR_TYPE: Final = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's colour type by the number of channels."""
_CHANNELS: Final = (1, 3, 4)
_MAX_EXACT_INT: Final = 1 << 53
_SUMMARY_VALUES: Final = 6

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
    header = struct.pack(">IIBBBBB", width, height, bits, _PNG_COLOUR_TYPE[channels], 0, 0, 0)
    return b"".join(
        [
            _PNG_SIGNATURE,
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", zlib.compress(filtered.tobytes(), level=6)),
            _png_chunk(b"IEND", b""),
        ]
    )


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


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

    def to_json(self) -> JsonObject:
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
