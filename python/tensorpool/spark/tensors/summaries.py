"""What is in the tensors, at a glance: figures and small pictures."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .mapping import KEYS, map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATS = "min double, max double, mean double, std double, nan_count bigint"


def stats(df: DataFrame, *, keep: Sequence[str] = KEYS, **where: Any) -> DataFrame:
    """min, max, mean, std and nan_count of each tensor; NaNs are left out of the others."""
    return map(df, figures, _STATS, keep=keep, **where)


def figures(array: npt.NDArray[Any]) -> tuple[float | None, float | None, float | None, float | None, int]:
    nans = 0
    values = array
    if array.dtype.kind == "f":
        nans = int(np.isnan(array).sum())
        values = array[~np.isnan(array)] if nans else array
    if values.size == 0:
        return None, None, None, None, nans
    return float(values.min()), float(values.max()), float(values.mean()), float(values.std()), nans


def thumbnail(
    df: DataFrame,
    size: int = 128,
    *,
    column: str = "png",
    low: float | None = None,
    high: float | None = None,
    keep: Sequence[str] = KEYS,
    **where: Any,
) -> DataFrame:
    """A picture of each tensor as PNG bytes, at most `size` pixels wide and high.

    The last two dimensions are the picture; a last one of three makes colours; of further ones the first is
    taken. Values from `low` to `high` (by default the tensor's own) become black to white.
    """

    def draw(array: npt.NDArray[Any]) -> bytes:
        return png(picture(array, size, low, high))

    return map(df, draw, f"{column} binary", keep=keep, **where)


def picture(
    array: npt.NDArray[Any], size: int, low: float | None, high: float | None
) -> npt.NDArray[np.uint8]:
    """(height, width) or (height, width, 3) of bytes."""
    has_colours = array.ndim >= 3 and array.shape[-1] == 3
    while array.ndim > (3 if has_colours else 2):
        array = array[0]
    if array.ndim == 1:
        array = array[np.newaxis]
    height, width = array.shape[:2]
    step = max(-(-height // size), -(-width // size), 1)
    small = np.nan_to_num(array[::step, ::step].astype(np.float64))
    if small.size == 0:
        return np.zeros((1, 1), np.uint8)
    bottom = float(small.min()) if low is None else low
    top = float(small.max()) if high is None else high
    scale = 255.0 / (top - bottom) if top > bottom else 0.0
    found: npt.NDArray[np.uint8] = np.clip((small - bottom) * scale, 0, 255).astype(np.uint8)
    return found


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file: grey or colours, eight bits each."""
    height, width = pixels.shape[:2]
    is_coloured = pixels.ndim == 3
    lines = np.zeros((height, 1 + width * (3 if is_coloured else 1)), np.uint8)
    # Each line begins with the number of its filter: none.
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if is_coloured else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
