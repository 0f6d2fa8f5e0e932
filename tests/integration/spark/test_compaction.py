"""Compaction while Spark reads and writes, and compaction of Delta tables."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tensorpool.pipeline import compact, compact_plan, compaction, run, status
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import Stages, define, keys, record

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::ResourceWarning")]

DAY_NS = 86_400_000_000_000
QUALITY = {"interval": "500ms", "lateness": "100ms"}
PIECES = 10


@pytest.fixture(autouse=True)
def _small_compaction_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN", 4)
    monkeypatch.setattr(compact_plan, "FAN", 4)


def test_spark_reads_every_row_once_during_compaction(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "recording", tmp_path / "tables"
    record(root, range(100))
    settings = define(
        root, out, max_rows=10, compact="always", quality=QUALITY, statistics={"enabled": False}
    )
    done, counts, faults = threading.Event(), [], []

    def look() -> None:
        place = out / "bronze/frames"
        while not done.is_set():
            if not place.is_dir():
                done.wait(0.1)
                continue
            try:
                rows = [row["seq"] for row in spark.read.parquet(str(place)).select("seq").collect()]
            except Exception as error:
                # A file was merged after Spark listed it: an error, never a wrong result. Spark reports it
                # in three ways.
                if not re.search("does not exist|FILE_NOT_EXIST|NoSuchFileException", str(error)):
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
    rows = spark.read.parquet(str(out / "silver/frames"))
    assert rows.count() == rows.select("seq").distinct().count() == 100
    batches = status(out).stages["gold"].batch + 1
    assert batches == 10
    assert len(list((out / "silver/frames").rglob("*.parquet"))) < batches
    assert spark.read.parquet(str(out / "gold/quality")).selectExpr("sum(frames)").collect()[0][0] == 100


@pytest.mark.usefixtures("spark")
def test_delta_tables_are_compacted_by_deltalake(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    root = tmp_path / "recording"
    for day in range(2):
        for stream in (10, 11):
            record(root, range(day * 60, day * 60 + 60), stream_id=stream, shift_ns=day * DAY_NS)
    settings = define(root, tmp_path / "tables", format="delta", quality=QUALITY)
    Stages(settings).take_all(pieces=PIECES)

    def read(name: str) -> tuple[int, list[tuple[int, int, int]]]:
        found = deltalake.DeltaTable(str(settings.out / name))
        return len(found.file_uris()), keys(found.to_pyarrow_table().to_pylist())

    wanted = [(stream, 1, seq) for stream in (10, 11) for seq in range(120)]
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        # Of each of two streams: one file of the past day, five of the present one.
        assert read(name) == (12, wanted), name
    plain: list[Any] = list((settings.out / "gold/quality/date=2023-11-14").iterdir())
    assert len(plain) <= 2
    before = {path.name for path in (settings.out / "silver/frames").rglob("*.parquet")}
    assert compact(settings.out)["silver/frames"].before == 10
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        assert read(name) == (4, wanted), name
    found = deltalake.DeltaTable(str(settings.out / "silver/frames"))
    # Identifies a batch that is sent again.
    assert found.transaction_version(status(settings.out).pipeline_id) == PIECES - 1
    # A reader that started before still finds all files.
    assert before < {path.name for path in (settings.out / "silver/frames").rglob("*.parquet")}
    assert compact(settings.out) == {}
