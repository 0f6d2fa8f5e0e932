"""Pipelines on a real Spark: growing recordings, functions, tables read by Spark, published streams."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tensorpool as tp
from tensorpool import recording
from tensorpool.errors import PipelineError
from tensorpool.pipeline import RerunRange, create_statements, rerun, run, status
from tensorpool.pipeline.tasks import SparkTasks
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import PERIOD_NS, T0, Stages, define, keys, record, table

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms"}]
QUALITY = {"interval": "500ms", "lateness": "100ms"}


def test_micro_batches_are_divided_by_the_cores_of_the_cluster(spark: SparkSession) -> None:
    assert SparkTasks(spark).parallelism == 2
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "5")
    try:
        assert SparkTasks(spark).parallelism == 5
    finally:
        spark.conf.unset("spark.sql.leafNodeDefaultParallelism")


def dark(array: Any) -> Any:
    if array.max() == 77:
        raise ZeroDivisionError("too dark")
    return float(array.mean())


def test_growing_recording_becomes_tables(spark: SparkSession, root: Path, out: Path) -> None:
    record(root, range(150))
    record(root, range(0, 150, 2), stream_id=11, shift_ns=1000)
    settings = define(
        root, out, max_rows=120, trigger="100ms", alignments=ALIGNMENT, quality=QUALITY,
        functions=[
            {"name": "looks", "function": "a:b", "columns": "mean double"},
            {"name": "rows", "function": "a:b", "output": "recording"},
        ],
    )  # fmt: skip
    functions = {"looks": lambda array: float(array.mean()), "rows": lambda array: array[:1]}
    seen: list[Any] = []
    found = run(settings, spark=spark, callables=functions, look=lambda at, behind: seen.append(at))
    assert found.stages["bronze"].batch >= 1, "in several micro-batches"
    assert found.stages["silver"].totals.frames == 225
    assert seen
    record(root, range(150, 200))
    record(root, range(150, 200, 2), stream_id=11, shift_ns=1000)
    run(settings, spark=spark, callables=functions)
    # Again, until `stop` returns true.
    record(root, range(200, 220))
    until = found.stages["silver"].totals.frames + 95
    run(
        settings, spark=spark, callables=functions, once=False,
        stop=lambda: status(out).stages["gold"].batch >= 0
        and status(out).stages["silver"].totals.frames >= until,
    )  # fmt: skip
    for name in ("bronze/frames", "silver/frames", "gold/looks", "gold/statistics"):
        rows = spark.read.format("tensorpool").option("table", name).load(str(out))
        assert rows.count() == rows.select("stream_id", "epoch", "seq").distinct().count() == 320, name
    stereo = spark.read.format("tensorpool").option("table", "silver/aligned/stereo").load(str(out))
    assert sorted(row[0] for row in stereo.selectExpr("frames[0].seq").collect()) == list(range(0, 200, 2))
    read = spark.read.format("tensorpool")
    closed = read.option("table", "gold/quality").load(str(out))
    still_open = read.option("table", "gold/quality_open").load(str(out))
    sums = closed.unionByName(still_open).selectExpr(
        "sum(frames)", "sum(dropped)", "sum(drops['unexplained'])", "sum(drops['not_recording'])"
    )
    # One frame is missing between two writers of the recording.
    assert tuple(sums.collect()[0]) == (320, 99, 98, 1)
    with recording.open(out / "derived" / "rows") as opened:
        assert [ledger.rows for stream in opened.streams for ledger in opened.ledger(stream)] == [220, 100]


def test_function_error_names_the_frame_and_a_fixed_one_continues(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(100))
    settings = define(root, out, functions=[{"name": "dark", "function": "a:b", "columns": "mean double"}])
    with pytest.raises(PipelineError, match=r"frame 77: ZeroDivisionError: too dark"):
        run(settings, spark=spark, callables={"dark": dark})
    run(settings, spark=spark, callables={"dark": lambda array: float(array.mean())})
    assert keys(table(settings, "gold/dark")) == [(10, 1, seq) for seq in range(100)]


def ends(array: Any) -> Any:
    if array.max() == 77:
        os._exit(3)
    return float(array.mean())


def test_crashed_worker_is_named(spark: SparkSession, root: Path, out: Path) -> None:
    record(root, range(100))
    settings = define(root, out, functions=[{"name": "ends", "function": "a:b", "columns": "mean double"}])
    with pytest.raises(PipelineError, match="a Python worker ended in the middle of a task"):
        run(settings, spark=spark, callables={"ends": ends})
    run(settings, spark=spark, callables={"ends": lambda array: float(array.mean())})
    assert keys(table(settings, "gold/ends")) == [(10, 1, seq) for seq in range(100)]


def test_tables_are_read_through_a_catalog_and_at_a_version(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(40))
    settings = define(root, out, max_rows=10)
    run(settings, spark=spark)
    for name, more in (("frames_by_path", f"OPTIONS (path '{root}')"), ("frames_at", f"LOCATION '{root}'")):
        spark.sql(f"CREATE TABLE {name} USING tensorpool {more}")
        assert spark.table(name).count() == 40
        assert spark.sql(f"SELECT * FROM {name} WITH (streams = '11')").count() == 0
        spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE silver USING tensorpool OPTIONS (table 'silver/frames') LOCATION '{out}'")
    assert spark.table("silver").selectExpr("sum(seq)").collect()[0][0] == sum(range(40))
    spark.sql("DROP TABLE silver")

    def count(**options: str) -> int:
        # A new reader each time: a reader keeps its options.
        read = spark.read.format("tensorpool").options(table="silver/frames", **options)
        return read.load(str(out)).count()

    assert count(version="2") == 20
    start = str(T0 + 30 * PERIOD_NS)
    assert count(startingTimestamp=start, streams="10") == 10
    assert count(startingTimestamp=start, streams="11") == 0


def test_changed_function_is_computed_again_and_registered_tables_show_it(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(60))
    settings = define(
        root, out, max_rows=25, functions=[{"name": "looks", "function": "a:b", "columns": "mean double"}]
    )
    run(settings, spark=spark, callables={"looks": lambda array: float(array.mean())})
    span = RerunRange(T0 + 20 * PERIOD_NS, T0 + 50 * PERIOD_NS)
    changed = {"looks": lambda array: -float(array.mean())}
    (result,) = rerun(settings, span, functions=["looks"], spark=spark, callables=changed).values()
    assert (result.removed, result.written) == (30, 30)
    spark.sql("CREATE DATABASE IF NOT EXISTS lab")
    statements = list(create_statements(out, using="tensorpool", database="lab"))
    try:
        for statement in statements:
            spark.sql(statement.removesuffix(";"))
        rows = spark.sql("SELECT seq, mean FROM lab.gold_looks ORDER BY seq").collect()
        assert [row.mean for row in rows] == [-seq if 20 <= seq < 50 else seq for seq in range(60)]
        assert spark.sql("SELECT count(*) FROM lab.silver_rejects").collect()[0][0] == 0
    finally:
        spark.sql("DROP DATABASE lab CASCADE")


@pytest.mark.usefixtures("spark")
def test_arrays_of_a_function_are_published(
    root: Path, out: Path, aeron_dir: Path, shm_base: Path, free_stream_id: int
) -> None:
    record(root, range(20), trace=4000)
    function = {"name": "live", "function": "a:b", "output": "stream", "aeron_dir": str(aeron_dir)}
    settings = define(root, out, functions=[{**function, "streams": [10], "target_stream": free_stream_id}])
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.consumer(free_stream_id) as consumer,
    ):
        found: dict[int, int] = {}
        is_over = threading.Event()

        def look() -> None:
            while not is_over.is_set():
                for frame in consumer.poll(100):
                    value = int(frame.array[0, 0])
                    if frame.valid():
                        found[frame.trace_id or 0] = value
                time.sleep(0.005)

        # The regions are removed with the producer: the consumer has to read meanwhile.
        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            Stages(settings, live=lambda array: array[:2] + 1).take_all()
        finally:
            is_over.set()
            watcher.join()
    # A consumer that connects during publication may miss frames; those it reads are correct.
    assert found
    assert all(value == trace - 4000 + 1 for trace, value in found.items())
