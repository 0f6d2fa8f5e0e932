"""TensorPool in Spark: the data source `tensorpool`, and `tensors`, functions over its rows.

Spark finds the source by itself if this package is installed; `register` registers it explicitly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackage

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingPackage("Spark is not installed: pip install 'aeron-tensorpool[spark]'") from error

from .offsets import lag
from .source import TensorPoolSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from . import tensors

__all__ = ["TensorPoolSource", "lag", "register", "tensors"]


def __getattr__(name: str) -> Any:
    """Imports `tensors` on first use: Spark starts a process for each plan, which needs only the source."""
    if name == "tensors":
        return import_module(".tensors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Registers `format("tensorpool")` with a session that did not find it by itself."""
    spark.dataSource.register(TensorPoolSource)
