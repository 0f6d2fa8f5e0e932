"""Tables read by Spark while a pipeline writes them and their small files are merged."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tensorpool.pipeline import compact, engine, run, status
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import define, record

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::ResourceWarning")]

QUALITY = {"interval": "500ms", "lateness": "100ms"}


def test_spark_reads_every_row_once_during_compaction(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_MERGE_PERIOD", 3)
    root, out = tmp_path / "recording", tmp_path / "tables"
    record(root, range(100))
    settings = define(root, out, max_rows=10, quality=QUALITY, statistics={"enabled": False})
    done, counts, faults = threading.Event(), [], []

    def look() -> None:
        while not done.is_set():
            if not DeltaTable.is_deltatable(f"{out}/bronze/frames"):
                done.wait(0.1)
                continue
            read = spark.read.format("tensorpool").option("table", "bronze/frames")
            try:
                rows = [row["seq"] for row in read.load(str(out)).select("seq").collect()]
            except Exception as error:
                faults.append(str(error)[:500])
                continue
            counts.append(len(rows))
            if sorted(rows) != list(range(len(rows))):
                faults.append(f"{len(rows)} rows: {sorted(rows)}")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        run(settings, spark=spark)
    finally:
        done.set()
        watcher.join()
    assert not faults
    assert counts == sorted(counts)
    batches = status(out).stages["gold"].batch + 1
    assert batches == 10
    found = DeltaTable(f"{out}/silver/frames")
    assert len(found.file_uris()) < batches
    # Identifies a decision that is applied again.
    assert found.transaction_version(status(out).pipeline_id) == batches - 1
    assert compact(out)["silver/frames"].after == 1
    assert sorted(found.to_pyarrow_table()["seq"].to_pylist()) == list(range(100))
