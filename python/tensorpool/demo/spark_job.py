"""The Spark process: a streaming query over the whole recording, and a pipeline to tables.

The query computes the checksum of each tensor in place and compares it with the recorded checksum. The
figures of the pipeline's gold table are printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from .checks import ReportCounts, SparkCheck, TableCounts

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def run_spark_job(root: str, directory: Path, page: Path) -> SparkCheck:
    """Runs the query and the pipeline; temporary files go to `directory`, the report page to `page`."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from ..spark import tensors

    def checksum(array: Any) -> int:
        from tensorpool import _native

        return _native.crc32c(array.reshape(-1).view("uint8"))

    builder = SparkSession.builder.master("local[2]").appName("tensorpool-demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.sql.warehouse.dir", str(directory))
        .config("spark.local.dir", str(directory))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        frames = spark.readStream.format("tensorpool").load(root)
        checked = tensors.map(frames, checksum, "computed bigint", keep=["crc32c"], verify=False)
        is_equal = F.when(F.col("computed") == F.col("crc32c"), 1).otherwise(0)
        totals = checked.agg(F.count(F.lit(1)).alias("frames"), F.sum(is_equal).alias("equal"))
        query = (
            totals.writeStream.format("memory").queryName("totals").outputMode("complete")
            .option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        row = spark.table("totals").first()
        frame_count, equal = (0, 0) if row is None else (row["frames"], row["equal"] or 0)
        return SparkCheck(frame_count, equal, run_pipeline(spark, root, directory / "tables", page))
    finally:
        spark.stop()


def run_pipeline(spark: Any, root: str, out: Path, page: Path) -> TableCounts:
    """Turns the recording into tables. Returns the counts of `gold/quality`, to compare with the ledger."""
    from ..pipeline import Pipeline

    Pipeline(recordings=[root], out=out, quality={"interval": "1s"}, statistics={"every": 10}).run(
        spark=spark
    )
    drops: Counter[str] = Counter()
    frames = rejected = 0
    for row in spark.read.parquet(str(out / "gold" / "quality")).collect():
        frames += row["frames"]
        rejected += row["rejected"]
        drops.update(row["drops"])
    silver = spark.read.parquet(str(out / "silver" / "frames")).count()
    return TableCounts(frames, silver, rejected, dict(drops), _write_report(out, page))


def _write_report(out: Path, page: Path) -> ReportCounts:
    """Writes the report page on the tables. Returns its figures."""
    from ..pipeline import report

    result = report.write(out, page)
    return ReportCounts(result.total("frames"), result.reasons("dropped"), result.faults, page.stat().st_size)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-") as temporary:
        print(json.dumps(run_spark_job(sys.argv[1], Path(temporary), Path(sys.argv[2])).to_json()))
