"""Runners of tasks: Spark's executors, or this process.

A task takes an item and returns a result; both are pickled. Spark may run a task twice, and the result of a
run may be lost: a written file counts only if a decision names it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_ASK_PERIOD_S: Final = 60.0
_MAX_CORES: Final = 1 << 16

Item = TypeVar("Item")
Result = TypeVar("Result")


class Tasks(Protocol):
    """Calls a function for each item, in any order; returns the results in the order of the items."""

    @property
    def parallelism(self) -> int:
        """About how many tasks run at the same time."""

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of each item."""


class LocalTasks:
    """Runs tasks in this process, one after the other."""

    parallelism = 1

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of each item, which is pickled as for an executor."""
        return [work(pickle.loads(pickle.dumps(item))) for item in items]


class SparkTasks:
    """Runs a Spark task for each item, on classic Spark and on Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cores = 0
        self._asked_s = 0.0

    @property
    def parallelism(self) -> int:
        """About how many tasks run at the same time. Executors come and go, so Spark is asked again."""
        now = time.monotonic()
        if not self._cores or now - self._asked_s > _ASK_PERIOD_S:
            self._cores, self._asked_s = _cores(self._spark), now
        return self._cores

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of each item."""
        if not items:
            return []
        pickled = [pickle.dumps(item) for item in items]

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    result = pickle.dumps(work(pickle.loads(pickled[number])))
                    yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

        # A range of n numbers in n partitions: each task has one item, and Spark retries it alone.
        numbers = self._spark.range(0, len(items), 1, len(items))
        rows = numbers.mapInArrow(each, "number bigint, result binary").collect()
        results = {row["number"]: row["result"] for row in rows}
        return [pickle.loads(results[number]) for number in range(len(items))]


def _cores(spark: SparkSession) -> int:
    """The cores of the executors, or what `spark.sql.leafNodeDefaultParallelism` says instead.

    By a query, because a client of Connect has no context to ask: Spark divides a range by its cores, and
    the last number is in the last part.
    """
    query = f"SELECT spark_partition_id() FROM range({_MAX_CORES}) WHERE id = {_MAX_CORES - 1}"
    return int(spark.sql(query).collect()[0][0]) + 1
