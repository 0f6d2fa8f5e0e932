"""TensorPool in Spark: the source and sink `tensorpool`, and `tensors`, what to do with its rows.

Spark registers the source by itself where this package is installed; `register` does it by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MissingPackage

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingPackage("Spark is not installed: pip install 'aeron-tensorpool[spark]'") from error

from . import tensors
from .lag import lag
from .source import TensorPoolSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TensorPoolSource", "lag", "register", "tensors"]


def register(spark: SparkSession) -> None:
    """Makes `format("tensorpool")` known to a session that did not find it by itself."""
    spark.dataSource.register(TensorPoolSource)
