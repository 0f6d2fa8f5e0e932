"""Registration of the data source `tensorpool` with Spark.

Spark imports modules named `pyspark_…` and registers their `DefaultSource`. So
`spark.read.format("tensorpool")` works without an import, on classic Spark and on Spark Connect.
"""

from tensorpool.spark.source import TensorPoolSource as DefaultSource

__all__ = ["DefaultSource"]
