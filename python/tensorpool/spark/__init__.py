"""TensorPool in Spark: the source and sink `tensorpool`, and `tensors`, what to do with its rows.

Spark registers the source by itself where this package is installed; `register` does it by hand.
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
    """Spark makes a new process for each plan, which needs the source and nothing else."""
    if name == "tensors":
        return import_module(".tensors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Makes `format("tensorpool")` known to a session that did not find it by itself."""
    spark.dataSource.register(TensorPoolSource)
