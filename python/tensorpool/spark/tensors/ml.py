"""Tensors as the vectors of Spark ML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .mapping import KEYS, map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def to_ml(df: DataFrame, column: str = "features", *, keep: Sequence[str] = KEYS, **where: Any) -> DataFrame:
    """Each tensor, flattened, as a dense vector in `column`: what Spark ML's estimators take."""
    from pyspark.ml.functions import array_to_vector

    flat = map(
        df, lambda array: np.ravel(array).astype(np.float64), f"{column} array<double>", keep=keep, **where
    )
    return flat.select(*keep, array_to_vector(flat[column]).alias(column))
