"""Spark finds modules named `pyspark_…` by itself and registers their `DefaultSource`: here it is.

So `spark.read.format("tensorpool")` works without an import, on classic Spark and on Spark Connect.
"""

from tensorpool.spark.source import TensorPoolSource as DefaultSource

__all__ = ["DefaultSource"]
