"""Filters, statistics, thumbnails, Spark ML vectors and torch tensors of a DataFrame of frames.

The filters are for `df.where(…)` and read no payload. The executors import this module, but not torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark.sql import functions as F

from ...errors import MissingPackage
from ...preview import encode_png
from ...recording.tensors import NUMBERS
from .rows import to_numpy
from .tensor_map import KEYS, map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STATS_SCHEMA: Final = "min double, max double, mean double, std double, nan_count bigint"


class TensorStats(NamedTuple):
    """Statistics of one tensor, in the order of the columns of `stats`."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan_count: int


def has_dtype(*names: str) -> Column:
    """Condition: the elements have one of these types."""
    if unknown := [name for name in names if name not in NUMBERS]:
        raise ValueError(f"element type {unknown[0]!r} is none of {', '.join(NUMBERS)}")
    return F.col("dtype").isin(*names)


def has_ndim(ndim: int) -> Column:
    """Condition: the tensor has this number of dimensions."""
    return F.size("shape") == ndim


def has_shape(shape: Sequence[int | None]) -> Column:
    """Condition: the tensor has this shape; None matches any size."""
    condition = has_ndim(len(shape))
    for number, size in enumerate(shape):
        if size is not None:
            condition = condition & (F.get("shape", F.lit(number)) == size)
    return condition


def to_ml(df: DataFrame, column: str = "features", *, keep: Sequence[str] = KEYS, **where: Any) -> DataFrame:
    """Each tensor, flattened, as a dense vector in `column`, for Spark ML's estimators."""
    from pyspark.ml.functions import array_to_vector

    flat = map(
        df, lambda array: np.ravel(array).astype(np.float64), f"{column} array<double>", keep=keep, **where
    )
    return flat.select(*keep, array_to_vector(flat[column]).alias(column))


def stats(df: DataFrame, *, keep: Sequence[str] = KEYS, **where: Any) -> DataFrame:
    """min, max, mean and std of each tensor without its NaNs, and nan_count."""
    return map(df, compute_stats, _STATS_SCHEMA, keep=keep, **where)


def compute_stats(array: npt.NDArray[Any]) -> TensorStats:
    """Statistics of one tensor; None for those of an empty one."""
    nans = 0
    values = array
    if array.dtype.kind == "f":
        nans = int(np.isnan(array).sum())
        values = array[~np.isnan(array)] if nans else array
    if values.size == 0:
        return TensorStats(None, None, None, None, nans)
    return TensorStats(
        float(values.min()), float(values.max()), float(values.mean()), float(values.std()), nans
    )


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
    """An image of each tensor as PNG bytes, at most `size` pixels wide and high.

    The last two dimensions are the image; a last dimension of three is colour; of further dimensions the
    first element is shown. Values from `low` to `high` (by default the tensor's own) become black to white.
    """

    def encode(array: npt.NDArray[Any]) -> bytes:
        return encode_png(to_image(array, size, low, high))

    return map(df, encode, f"{column} binary", keep=keep, **where)


def to_image(
    array: npt.NDArray[Any], size: int, low: float | None, high: float | None
) -> npt.NDArray[np.uint8]:
    """Pixels of shape (height, width) or (height, width, 3)."""
    has_colour = array.ndim >= 3 and array.shape[-1] == 3
    while array.ndim > (3 if has_colour else 2):
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
    pixels: npt.NDArray[np.uint8] = np.clip((small - bottom) * scale, 0, 255).astype(np.uint8)
    return pixels


def to_torch(df: DataFrame, *, batch_size: int | None = None, **where: Any) -> Iterator[Any]:
    """Torch tensors of the rows, as writable copies. With `batch_size` they are stacked.

    Rows come by reference, one partition at a time. This process reads the segments, so it needs access to
    them.
    """
    try:
        import torch
    except ImportError:
        raise MissingPackage("torch is not installed: pip install torch") from None
    batch: list[Any] = []
    for row in df.toLocalIterator():
        if row["payload_bytes"] is None:
            continue
        # Referenced until the next row: neighbouring rows share the mapping of their file.
        view = to_numpy(row, **where)
        tensor = torch.from_numpy(np.array(view))
        if batch_size is None:
            yield tensor
            continue
        batch.append(tensor)
        if len(batch) == batch_size:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
