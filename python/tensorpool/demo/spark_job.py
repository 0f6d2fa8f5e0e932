"""The Spark process: a streaming query over the demo's recording, from its first frame to its last, and a
pipeline.

Each tensor is looked at where it lies: the checksum that an executor finds is held against that in its row.
The pipeline takes the recording to tables; what its gold table counts is told.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def ask(root: str, home: Path, page: Path) -> dict[str, Any]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as of

    from ..spark import tensors

    def checksum(array: Any) -> int:
        from tensorpool import _native

        return _native.crc32c(array.reshape(-1).view("uint8"))

    builder = SparkSession.builder.master("local[2]").appName("tensorpool-demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.sql.warehouse.dir", str(home))
        .config("spark.local.dir", str(home))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        frames = spark.readStream.format("tensorpool").load(root)
        looked = tensors.map(frames, checksum, "found bigint", keep=["crc32c"], verify=False)
        is_equal = of.when(of.col("found") == of.col("crc32c"), 1).otherwise(0)
        totals = looked.agg(of.count(of.lit(1)).alias("frames"), of.sum(is_equal).alias("equal"))
        query = (
            totals.writeStream.format("memory").queryName("totals").outputMode("complete")
            .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        row = spark.table("totals").first()
        counted = (
            {"frames": 0, "equal": 0}
            if row is None
            else {"frames": row["frames"], "equal": row["equal"] or 0}
        )
        return {**counted, "tables": tables(spark, root, home / "tables", page)}
    finally:
        spark.stop()


def tables(spark: Any, root: str, out: Path, page: Path) -> dict[str, Any]:
    """The recording as tables, and what `gold/quality` counts: it is held against the ledger."""
    from collections import Counter

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
    written = spark.read.parquet(str(out / "silver" / "frames")).count()
    return {
        "frames": frames, "silver": written, "rejected": rejected, "drops": dict(drops),
        "report": _report(out, page),
    }  # fmt: skip


def _report(out: Path, page: Path) -> dict[str, Any]:
    """Writes the page over the tables; the numbers on it."""
    from ..pipeline import report

    shown = report.write(out, page)
    return {
        "frames": shown.total("frames"), "drops": shown.reasons("dropped"), "faults": shown.faults,
        "page_bytes": page.stat().st_size,
    }  # fmt: skip


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-") as directory:
        print(json.dumps(ask(sys.argv[1], Path(directory), Path(sys.argv[2]))))
