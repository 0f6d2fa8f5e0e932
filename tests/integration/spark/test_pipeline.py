"""Pipelines on a real Spark: growing recordings, functions, Delta tables, published streams."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tensorpool as tp
from tensorpool import recording
from tensorpool.errors import PipelineError
from tensorpool.pipeline import run, status
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import Stages, define, keys, record, table

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms"}]
QUALITY = {"interval": "500ms", "lateness": "100ms"}


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
    assert found.stages["silver"].totals["frames"] == 225
    assert seen
    record(root, range(150, 200))
    record(root, range(150, 200, 2), stream_id=11, shift_ns=1000)
    run(settings, spark=spark, callables=functions)
    # Again, until `stop` returns true.
    record(root, range(200, 220))
    until = found.stages["silver"].totals["frames"] + 95
    run(
        settings, spark=spark, callables=functions, once=False,
        stop=lambda: status(out).stages["gold"].batch >= 0
        and status(out).stages["silver"].totals["frames"] >= until,
    )  # fmt: skip
    for name in ("bronze/frames", "silver/frames", "gold/looks", "gold/statistics"):
        rows = spark.read.parquet(str(out / name))
        assert rows.count() == rows.select("stream_id", "epoch", "seq").distinct().count() == 320, name
    aligned = spark.read.parquet(str(out / "silver/aligned/stereo"))
    assert sorted(row[0] for row in aligned.selectExpr("frames[0].seq").collect()) == list(range(0, 200, 2))
    quality = spark.read.parquet(str(out / "gold/quality"))
    sums = quality.selectExpr(
        "sum(frames)", "sum(dropped)", "sum(drops['unexplained'])", "sum(drops['not_recording'])"
    )
    # One frame is missing between two writers of the recording.
    assert tuple(sums.collect()[0]) == (320, 99, 98, 1)
    with recording.open(out / "derived" / "rows") as opened:
        assert [ledger.rows for stream in opened.streams for ledger in opened.ledger(stream)] == [220, 100]
    assert not list((out / "_staging").glob("*"))
    # Tables without their checkpoint are rejected.
    shutil.move(out / "_checkpoint", out.parent / "away")
    with pytest.raises(PipelineError, match="checkpoint beside them is gone"):
        run(settings, spark=spark, callables=functions)


def test_function_error_names_the_frame_and_a_fixed_one_continues(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(100))
    settings = define(root, out, functions=[{"name": "dark", "function": "a:b", "columns": "mean double"}])
    with pytest.raises(PipelineError, match=r"frame 77: ZeroDivisionError: too dark"):
        run(settings, spark=spark, callables={"dark": dark})
    run(settings, spark=spark, callables={"dark": lambda array: float(array.mean())})
    assert keys(table(settings, "gold/dark")) == [(10, 1, seq) for seq in range(100)]


class Killed(BaseException):
    """Stands for a kill of the process."""


@pytest.mark.usefixtures("spark")
def test_delta_tables_have_each_batch_once(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake = pytest.importorskip("deltalake")
    record(root, range(50))
    settings = define(root, out, format="delta")
    stages = Stages(settings)
    unlink = Path.unlink

    def killed(path: Path, **how: Any) -> None:
        if path.name == "intent.json" and path.parent.name == "bronze":
            raise Killed
        unlink(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            stages.take_all(pieces=2)
    Stages(settings).take_all(pieces=2)
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        found = deltalake.DeltaTable(str(out / name))
        assert sorted(found.to_pyarrow_table()["seq"].to_pylist()) == list(range(50)), name
    assert deltalake.DeltaTable(str(out / "bronze/frames")).version() == 2


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
