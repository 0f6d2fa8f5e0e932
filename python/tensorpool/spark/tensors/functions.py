"""Conditions on what tensors are, for `df.where(…)`: no payload is looked at.

Tensors as the vectors of Spark ML.

What is in the tensors, at a glance: figures and small pictures.

Tensors of a DataFrame as torch's, one after the other or in batches.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import functions as F

from ...errors import MissingPackage
from ...recording.tensors import NUMBERS
from .mapping import KEYS, map
from .rows import to_numpy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def has_dtype(*names: str) -> Column:
    """Whether the elements are of one of these types."""
    if unknown := [name for name in names if name not in NUMBERS]:
        raise ValueError(f"element type {unknown[0]!r} is none of {', '.join(NUMBERS)}")
    return F.col("dtype").isin(*names)


def has_ndim(ndim: int) -> Column:
    return F.size("shape") == ndim


def has_shape(shape: Sequence[int | None]) -> Column:
    """Whether the shape is this one; None stands for any size."""
    condition = has_ndim(len(shape))
    for number, size in enumerate(shape):
        if size is not None:
            condition = condition & (F.get("shape", F.lit(number)) == size)
    return condition


def to_ml(df: DataFrame, column: str = "features", *, keep: Sequence[str] = KEYS, **where: Any) -> DataFrame:
    """Each tensor, flattened, as a dense vector in `column`: what Spark ML's estimators take."""
    from pyspark.ml.functions import array_to_vector

    flat = map(
        df, lambda array: np.ravel(array).astype(np.float64), f"{column} array<double>", keep=keep, **where
    )
    return flat.select(*keep, array_to_vector(flat[column]).alias(column))


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
        return png(to_image(array, size, low, high))

    return map(df, draw, f"{column} binary", keep=keep, **where)


def to_image(
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


def to_torch(df: DataFrame, *, batch_size: int | None = None, **where: Any) -> Iterator[Any]:
    """An iterator of torch tensors, copies that may be written to. With `batch_size` they are stacked.

    Rows come by reference, a partition at a time; this process reads the segments. It has to see them.
    """
    try:
        import torch
    except ImportError:
        raise MissingPackage("torch is not installed: pip install torch") from None
    held: list[Any] = []
    for row in df.toLocalIterator():
        if row["payload_bytes"] is None:
            continue
        # Kept until the next one is there: neighbours share the mapping of their file.
        view = to_numpy(row, **where)
        tensor = torch.from_numpy(np.array(view))
        if batch_size is None:
            yield tensor
            continue
        held.append(tensor)
        if len(held) == batch_size:
            yield torch.stack(held)
            held = []
    if held:
        yield torch.stack(held)
