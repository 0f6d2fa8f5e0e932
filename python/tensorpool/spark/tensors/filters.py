"""Conditions on what tensors are, for `df.where(…)`: no payload is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ...recording.tensors import NUMBERS

if TYPE_CHECKING:
    from pyspark.sql import Column


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
