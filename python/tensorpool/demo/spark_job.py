"""The Spark process: a streaming query over the whole recording, and a pipeline to tables.

The query computes the checksum of each tensor in place and compares it with the recorded checksum. The
figures of the pipeline's gold table are printed as JSON.

With an object store, the recording is archived there, query and pipeline read the archive, and the tables are
there too. The demo starts a server of its own for `s3`, which ends with this process.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .checks import ReportCounts, SparkCheck, TableCounts, s3_program

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def run_spark_job(root: str, directory: Path, page: Path, store: str | None = None) -> SparkCheck:
    """Runs the query and the pipeline; temporary files go to `directory`, the report page to `page`.

    `store`: the URI for the archive and the tables; None for this disk.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from ..spark import start, tensors

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
    source, out = root, str(directory / "tables")
    if store is not None:
        from .. import recording

        source, out = f"{store}/recording", f"{store}/tables"
        recording.push(root, source)
    try:
        frames = spark.readStream.format("tensorpool").load(source)
        checked = tensors.map(frames, checksum, "computed bigint", keep=["crc32c"], verify=False)
        is_equal = F.when(F.col("computed") == F.col("crc32c"), 1).otherwise(0)
        totals = checked.agg(F.count(F.lit(1)).alias("frames"), F.sum(is_equal).alias("equal"))
        query = start(
            totals.writeStream.format("memory").queryName("totals").outputMode("complete")
            .option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        )  # fmt: skip
        query.awaitTermination()
        row = spark.table("totals").first()
        frame_count, equal = (0, 0) if row is None else (row["frames"], row["equal"] or 0)
        return SparkCheck(frame_count, equal, run_pipeline(spark, source, out, page), store)
    finally:
        spark.stop()


def run_pipeline(spark: Any, root: str, out: str, page: Path) -> TableCounts:
    """Turns the recording into tables. Returns the counts of `gold/quality`, to compare with the ledger."""
    from ..pipeline import Pipeline

    Pipeline(recordings=[root], out=out, quality={"interval": "1s"}, statistics={"every": 10}).run(
        spark=spark
    )
    drops: Counter[str] = Counter()
    frames = rejected = 0
    tables = spark.read.format("tensorpool")
    intervals = [
        row
        for name in ("gold/quality", "gold/quality_open")
        for row in tables.option("table", name).load(out).collect()
    ]
    for row in intervals:
        frames += row["frames"]
        rejected += row["rejected"]
        drops.update(row["drops"])
    silver = tables.option("table", "silver/frames").load(out).count()
    return TableCounts(frames, silver, rejected, dict(drops), _write_report(out, page))


def _write_report(out: str, page: Path) -> ReportCounts:
    """Writes the report page on the tables. Returns its figures."""
    from ..pipeline import report

    result = report.write(out, page)
    return ReportCounts(result.total("frames"), result.reasons("dropped"), result.faults, page.stat().st_size)


# --- the object store

_REGION = "us-east-1"
_PATIENCE_S = 60.0


@contextmanager
def opened_store(store: str, directory: Path) -> Iterator[str | None]:
    """The URI of the store: None for `disk`, a server of the demo's own for `s3`, else the URI itself.

    Sets the environment of this process and of Spark's workers for the server.
    """
    if store == "disk":
        yield None
        return
    if store != "s3":
        yield f"{store.rstrip('/')}/tensorpool-demo-{secrets.token_hex(4)}"
        return
    program = s3_program()
    if program is None:
        raise RuntimeError("versitygw is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = f"DEMO{secrets.token_hex(8).upper()}", secrets.token_urlsafe(24)
    for name in ("buckets/demo", "attributes"):
        (directory / name).mkdir(mode=0o700, parents=True)
    with subprocess.Popen(
        [
            program, "--port", f"127.0.0.1:{port}", "--region", _REGION,
            "posix", "--sidecar", str(directory / "attributes"), str(directory / "buckets"),
        ],
        env={"ROOT_ACCESS_KEY": keys[0], "ROOT_SECRET_KEY": keys[1], "HOME": str(directory)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        try:
            _await_port(server, port)
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": keys[0],
                "AWS_SECRET_ACCESS_KEY": keys[1],
                "AWS_REGION": _REGION,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            yield "s3://demo"
        finally:
            server.kill()


def _await_port(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the S3 server does not start")
        time.sleep(0.02)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with (
        tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-") as temporary,
        opened_store(sys.argv[3], Path(temporary, "s3")) as chosen,
    ):
        print(json.dumps(run_spark_job(sys.argv[1], Path(temporary), Path(sys.argv[2]), chosen).to_json()))
