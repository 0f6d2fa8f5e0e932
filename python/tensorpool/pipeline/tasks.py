"""Where the work of a stage runs: in Spark's executors, or right here.

A task takes an item and gives a result, both of which JSON can hold; files are its way to take and give rows.
It may run twice, and a run may be lost: what it wrote counts only if a commit names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Item = dict[str, Any]
Work = Callable[[Item], Item]


class Tasks(Protocol):
    """Runs some work for each item, in any order; gives the results in the order of the items."""

    def run(self, work: Work, items: Sequence[Item]) -> list[Item]: ...


class LocalTasks:
    """One after the other, in this process."""

    def run(self, work: Work, items: Sequence[Item]) -> list[Item]:
        return [work(json.loads(json.dumps(item))) for item in items]


class SparkTasks:
    """A Spark task for each item; on classic Spark and on Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Work, items: Sequence[Item]) -> list[Item]:
        if not items:
            return []
        texts = [json.dumps(item) for item in items]

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    result = json.dumps(work(json.loads(texts[number])))
                    yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

        # A range of n in n parts: each task has one number, and Spark knows which tasks to try again.
        numbers = self._spark.range(0, len(items), 1, len(items))
        rows = numbers.mapInArrow(each, "number bigint, result string").collect()
        found = {row["number"]: json.loads(row["result"]) for row in rows}
        return [found[number] for number in range(len(items))]
