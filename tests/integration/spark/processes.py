"""Child processes of the fault tests: a recorder, and a Spark driver with two streaming queries."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorpool import recording
from tensorpool.spark import start
from tests.unit.spark.conftest import STREAM_ID, tensor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_SECOND = 200


def record(root: str) -> None:
    """Continues a recording until the process is killed."""
    with recording.RecordingWriter(root, limits=recording.WriterLimits(segment_bytes=1 << 15)) as writer:
        last = writer.last(STREAM_ID)
        seq = 0 if last is None else last[1] + 1
        while True:
            writer.append(tensor(seq), stream_id=STREAM_ID, epoch=1, seq=seq)
            seq += 1
            time.sleep(1 / PER_SECOND)


def query(master: str, source: str, target: str, checkpoint: str, available_now: str) -> None:
    """Copies a recording into another one and into a table, to its end or until the process is killed."""
    from tests.integration.spark.conftest import configured

    with tempfile.TemporaryDirectory() as directory:
        builder = configured(master, Path(directory)).config("spark.task.maxFailures", "8")
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        queries = []
        for sink, payload, suffix in (("tensorpool", "ref", ""), ("parquet", "inline", "-table")):
            reader = spark.readStream.format("tensorpool").options(path=source, payload=payload)
            if available_now != "now":
                # Many small batches, so that a kill hits one. The last run has no limit.
                reader = reader.option("maxRowsPerTrigger", 150)
            writer = reader.load().repartition(2).writeStream.format(sink)
            writer = writer.option("checkpointLocation", checkpoint + suffix)
            if available_now == "now":
                writer = writer.trigger(availableNow=True)
            queries.append(start(writer, target + suffix))
        print("started", flush=True)
        for running in queries:
            running.awaitTermination()
        check_table(spark, target + "-table")
        spark.stop()


def check_table(spark: SparkSession, table: str) -> None:
    """Checks that the table has the frames from 0 on, each once, and prints their number."""
    # Read by Spark: its log determines which files belong to the table.
    rows = spark.read.parquet(table).select("seq", "payload").orderBy("seq").collect()
    assert [row.seq for row in rows] == list(range(len(rows)))
    assert all(bytes(row.payload) == tensor(row.seq).tobytes() for row in rows)
    print("table", len(rows), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        query(*sys.argv[2:])
