"""A frame as a picture: PNG, as simple as the format allows.

Gray and RGB(A), 8 and 16 bits. `zlib` does the work; an imaging library would be a large dependency for
one small chunk format.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import TensorPoolError
from .reals import reals

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
# Colour type by the number of channels.
_COLOUR: Final = {1: 0, 2: 4, 3: 2, 4: 6}
_CHANNELS: Final = (1, 3, 4)


class NoPicture(TensorPoolError, ValueError):
    """The array has no two dimensions that a picture could have."""

    def __init__(self, message: str, *, shape: tuple[int, ...]) -> None:
        super().__init__(message)
        self.shape = shape


def to_pixels(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(height, width) or (height, width, channels), of 8 or 16 bits: `picture_in`, as pixels.

    uint8 and uint16 stay as they are, booleans become black and white, everything else is stretched from its
    least to its greatest value.
    """
    picture = picture_in(array)
    if picture.dtype == np.bool_:
        return np.where(picture, 255, 0).astype(np.uint8)
    if picture.dtype in (np.uint8, np.uint16):
        return picture
    return _stretched(picture)


def picture_in(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The part of an array that is (height, width) or (height, width, channels), without a copy.

    Channels may come first, as in (3, height, width). Leading dimensions of size 1 go; of a stack of pictures
    the first one is taken.
    """
    picture = array
    while picture.ndim > 2 and not (picture.ndim == 3 and (_is_colour(picture) or _is_planar(picture))):
        picture = picture[0]
    if picture.ndim < 2 or 0 in picture.shape:
        raise NoPicture(
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
    values = reals(picture).astype(np.float64)
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
        raise NoPicture(
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
