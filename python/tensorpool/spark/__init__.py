"""TensorPool in Spark: the data source `tensorpool`, and `tensors`, functions over its rows.

Spark finds the source by itself if this package is installed; `register` registers it explicitly. `start`
starts a streaming query on a busy machine too.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingPackage

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingPackage("Spark is not installed: pip install 'aeron-tensorpool[spark]'") from error

from .offsets import lag
from .source import TensorPoolSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from . import tensors

__all__ = ["TensorPoolSource", "lag", "register", "start", "tensors"]

# How Spark's messages begin while a query has no sources yet, and while one that failed has not ended yet.
_STARTING: Final = "Initializing"
_ENDING: Final = "Terminated with exception"
_NOT_CONNECTED: Final = "Python worker failed to connect back"
_STATUS_PERIOD_S: Final = 0.05


def __getattr__(name: str) -> Any:
    """Imports `tensors` on first use: Spark starts a process for each plan, which needs only the source."""
    if name == "tensors":
        return import_module(".tensors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Registers `format("tensorpool")` with a session that did not find it by itself."""
    spark.dataSource.register(TensorPoolSource)


def start(writer: DataStreamWriter, path: str | None = None, *, attempts: int = 5) -> StreamingQuery:
    """Starts a streaming query, as `writer.start(path)` does, and waits until it has its sources.

    Spark gives the Python process of a streaming source 10 s to start, and no setting changes that. On a
    machine with many times more work than cores they are not enough, and the query ends before it has read
    anything. Then it is started again, up to `attempts` times in all.
    """
    for _ in range(attempts - 1):
        query = _with_sources(writer.start(path))
        if query.isActive or _NOT_CONNECTED not in str(query.exception() or ""):
            return query
    return _with_sources(writer.start(path))


def _with_sources(query: StreamingQuery) -> StreamingQuery:
    """The query, when it has its sources or has ended."""
    while query.isActive and query.status["message"].startswith((_STARTING, _ENDING)):
        time.sleep(_STATUS_PERIOD_S)
    return query
