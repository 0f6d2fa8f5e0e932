"""A payload's bytes as the tensor that its row describes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .batch import tensors_fit
from .dtypes import MAX_DIMS, NUMPY


def as_array(
    data: memoryview | bytes,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    where: object,
) -> npt.NDArray[Any]:
    """A read-only view. A description that reaches beyond the bytes is an error that names the row."""
    try:
        kind, steps = _fitting(dtype, tuple(shape), None if strides is None else tuple(strides), len(data))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    found = np.ndarray(tuple(shape), kind, data, 0, steps)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def _fitting(
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, size: int
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and strides of a tensor that lies within so many bytes. Kept: most frames are alike."""
    kind = NUMPY.get(dtype)
    if kind is None:
        raise ValueError(f"element type {dtype!r} is none of {', '.join(NUMPY)}")
    steps = strides if strides is not None else _row_major(shape, kind.itemsize)
    if not 1 <= len(shape) <= MAX_DIMS or len(steps) != len(shape):
        raise ValueError(f"shape {list(shape)} and strides {list(steps)} do not belong together")
    filler = [0] * (MAX_DIMS - len(shape))
    fits = tensors_fit(
        np.array([[*shape, *filler]], np.int32),
        np.array([[*steps, *filler]], np.int64),
        np.array([len(shape)]),
        np.array([kind.itemsize], np.int64),
        np.int64(size),
    )
    if not fits[0]:
        raise ValueError(f"a tensor {dtype}{list(shape)} reaches beyond its {size} bytes")
    return kind, steps


def _row_major(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    steps, step = [], itemsize
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(steps[::-1])
