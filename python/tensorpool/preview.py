"""Elements of any kind as numbers that can be compared and drawn.

A frame as a picture: PNG, as simple as the format allows.

Gray and RGB(A), 8 and 16 bits. `zlib` does the work; an imaging library would be a large dependency for
one small chunk format.

What is in an array, in a line.
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


def to_real(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Complex numbers by their size, times as they are counted, types of other packages as float32."""
    match array.dtype.kind:
        case "c":
            size: npt.NDArray[Any] = np.abs(array)
            return size
        case "M" | "m":
            return array.view(np.int64)
        case "V":
            return array.astype(np.float32)
    return array


_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
# Colour type by the number of channels.
_COLOUR: Final = {1: 0, 2: 4, 3: 2, 4: 6}
_CHANNELS: Final = (1, 3, 4)


class NotAnImage(TensorPoolError, ValueError):
    """The array has no two dimensions that a picture could have."""

    def __init__(self, message: str, *, shape: tuple[int, ...]) -> None:
        super().__init__(message)
        self.shape = shape


def to_pixels(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(height, width) or (height, width, channels), of 8 or 16 bits: `picture_in`, as pixels.

    uint8 and uint16 stay as they are, booleans become black and white, everything else is stretched from its
    least to its greatest value.
    """
    picture = image_view(array)
    if picture.dtype == np.bool_:
        return np.where(picture, 255, 0).astype(np.uint8)
    if picture.dtype in (np.uint8, np.uint16):
        return picture
    return _stretched(picture)


def image_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The part of an array that is (height, width) or (height, width, channels), without a copy.

    Channels may come first, as in (3, height, width). Leading dimensions of size 1 go; of a stack of pictures
    the first one is taken.
    """
    picture = array
    while picture.ndim > 2 and not (picture.ndim == 3 and (_is_colour(picture) or _is_planar(picture))):
        picture = picture[0]
    if picture.ndim < 2 or 0 in picture.shape:
        raise NotAnImage(
            f"an array of shape {array.shape} is no picture; it needs rows and columns", shape=array.shape
        )
    if picture.ndim == 3 and not _is_colour(picture):
        picture = np.moveaxis(picture, 0, -1)
    if picture.ndim == 3 and picture.shape[-1] == 1:
        picture = picture[..., 0]
    return picture


def _is_colour(picture: npt.NDArray[Any]) -> bool:
    return picture.shape[-1] in _CHANNELS


def _is_planar(picture: npt.NDArray[Any]) -> bool:
    return picture.shape[0] in _CHANNELS[1:]


def _stretched(picture: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    values = to_real(picture).astype(np.float64)
    finite = np.isfinite(values)
    low = float(values[finite].min()) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 0.0
    if not high > low:
        return np.zeros(picture.shape, np.uint8)
    # Infinities go to the ends, NaN to black.
    clean = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    return np.round((clean - low) / (high - low) * 255).astype(np.uint8)


def encode_png(pixels: npt.NDArray[Any]) -> bytes:
    """The file of a picture of `to_pixels`."""
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.ndim not in (2, 3):
        raise NotAnImage(
            f"{pixels.dtype} of shape {pixels.shape} is no picture of to_pixels()", shape=pixels.shape
        )
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    bits = pixels.dtype.itemsize * 8
    # PNG has the most significant byte first, and a byte in front of each row that says how it is filtered.
    rows = (
        np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    )
    filtered = np.zeros((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 1:] = rows
    head = struct.pack(">IIBBBBB", width, height, bits, _COLOUR[channels], 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(filtered.tobytes(), level=6)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


_SHOWN = 6


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """`minimum`, `maximum` and `mean` are None for an array without elements."""

    shape: tuple[int, ...]
    dtype: str
    minimum: float | int | bool | None
    maximum: float | int | bool | None
    mean: float | None
    values: tuple[Any, ...]
    """The first few, in the order of the memory."""
    not_finite: int
    """NaNs and infinities, which the other figures leave out."""

    def as_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "dtype": self.dtype,
            "min": _plain(self.minimum),
            "max": _plain(self.maximum),
            "mean": _plain(self.mean),
            "values": [_plain(one) for one in self.values],
            "not_finite": self.not_finite,
        }

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self.minimum is None:
            figures = "empty" if not self.not_finite else "nothing finite"
        else:
            figures = f"min {_figure(self.minimum)}  max {_figure(self.maximum)}  mean {_figure(self.mean)}"
        odd = f"  {self.not_finite} not finite" if self.not_finite and self.minimum is not None else ""
        dots = " …" if math.prod(self.shape) > len(self.values) else ""
        return (
            f"{shape} {self.dtype}  {figures}{odd}  [{' '.join(_figure(one) for one in self.values)}{dots}]"
        )


def summarize(array: npt.NDArray[Any], element_type: str | None = None) -> ArraySummary:
    """Looks at every element once. Of complex numbers the figures are those of their sizes."""
    # Flat views in memory order: a copy of each frame would cost more than all of the figures.
    flat = array.ravel(order="K")
    finite = numbers = to_real(flat)
    not_finite = 0
    if numbers.dtype.kind == "f":
        whole = np.isfinite(numbers)
        not_finite = int(flat.size - np.count_nonzero(whole))
        finite = numbers[whole] if not_finite else numbers
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
        values=tuple(_item(one) for one in flat[:_SHOWN]),
        not_finite=not_finite,
    )


def _item(value: Any) -> Any:
    """As Python knows it; what it has no number for, in words."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    return item if isinstance(item, bool | int | float | complex | bytes) else float(value)


def _plain(value: Any) -> Any:
    """As JSON can hold it: it has no NaN, no infinity, and no whole numbers beyond 53 bits everywhere."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    return value


def _figure(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
