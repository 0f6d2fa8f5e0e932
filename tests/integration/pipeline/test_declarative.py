"""`spark-pipelines run` over a project of ours gives the tables that the engine gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorpool import recording
from tensorpool.pipeline import bronze, declarative, definition, layout, marker
from tensorpool.pipeline.engine import Engine
from tensorpool.pipeline.tasks import LocalTasks
from tensorpool.spark.options import READ, Options, spark_schema
from tensorpool.spark.reader import FrameReader
from tests import leaks
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
START_NS = 1_772_366_400_000_000_000
SECOND = 1_000_000_000
LEFT, RIGHT = 10_000, 10_001


def record(root: Path, *, first: int = 0, last: int = 120) -> None:
    """Two streams at 10 Hz with a few frames missing; of the right one some are of another shape."""
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in range(first, last):
            for stream, lost in ((LEFT, {30, 31}), (RIGHT, {70})):
                if seq in lost:
                    continue
                shape = (4, 4) if stream == RIGHT and seq % 50 == 10 else (8, 8)
                at = START_NS + seq * SECOND // 10 + (stream - LEFT) * 1_000_000
                array = np.full(shape, seq, np.uint8)
                writer.append(
                    array, stream_id=stream, epoch=1, seq=seq, timestamp_ns=at, receive_time_ns=at,
                    trace_id=seq + 1 if seq % 5 == 0 else None,
                )  # fmt: skip
        writer.gap(stream_id=LEFT, epoch=1, first_seq=last, count=4, reason="overwritten")


def source_rows(root: Path) -> Iterator[pa.RecordBatch]:
    """What Spark's source would hand to the engine."""
    options = Options({"path": str(root), "includeGaps": "true"}, READ)
    reader = FrameReader(options, spark_schema(options))
    for part in reader.partitions():
        for batch in reader.read(part):
            yield batch.append_column("recording", pa.repeat(str(root), len(batch)))


def by_the_engine(settings: definition.PipelineSettings) -> None:
    settings.out.mkdir(mode=0o700)
    engine = Engine(settings, pipeline_id=marker.begin(settings).pipeline_id)

    def write(staging: str) -> Any:
        # As Spark's tasks would: none of them reads two recordings.
        target = settings.target_file_bytes
        tasks = [
            bronze.files_of(source_rows(root), settings.payload, target, staging)
            for root in settings.recordings
        ]
        return [file for written in tasks for file in written]

    engine.run(write, 0, LocalTasks())
    engine.close(LocalTasks())


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of a table in an order of their own, with the columns in the names of directories."""
    found = []
    for path in directory.rglob("*.parquet"):
        parts = dict(part.split("=") for part in path.relative_to(directory).parts[:-1])
        for row in pq.ParquetFile(path).read().to_pylist():
            found.append(row | {name: int(v) if name == "stream_id" else v for name, v in parts.items()})
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=lambda one: one[0])))


def run_project(directory: Path) -> None:
    beside = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        ["spark-pipelines", "run"], cwd=directory, env=environment, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-8_000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def test_the_same_tables_come_of_it_and_a_second_run_takes_what_is_new(tmp_path: Path) -> None:
    before = leaks.Snapshot.take()
    day, again = tmp_path / "day", tmp_path / "again"
    record(day)
    record(again, first=100, last=140)
    asked: dict[str, Any] = {
        "recordings": [str(day), str(again)], "out": str(tmp_path / "tables"),
        "quality": {"interval": "1s"}, "rules": [{"streams": [RIGHT], "shape": [8, 8]}],
        "alignments": [{"name": "left-right", "streams": [LEFT, RIGHT], "tolerance": "5ms"}],
    }  # fmt: skip
    settings = definition.parse({"pipeline": asked})
    by_the_engine(settings)
    declarative.write_project(tmp_path / "project", settings)
    run_project(tmp_path / "project")
    made = tmp_path / "project/tables"
    names = {name: declarative.table_name(*name.split("/")) for name in layout.Layout(settings.out).tables()}
    assert {"silver/rejects", "silver/aligned/left-right", "gold/quality", "gold/statistics"} <= names.keys()
    for ours, theirs in names.items():
        expected = rows_of(settings.out / ours)
        assert expected, ours
        assert rows_of(made / theirs) == expected, ours
    record(tmp_path / "day", first=140, last=150)
    run_project(tmp_path / "project")
    frames = {(row["stream_id"], row["seq"]) for row in rows_of(made / "silver_frames")}
    assert {(LEFT, seq) for seq in range(140, 150)} <= frames
    assert len(frames) == len(rows_of(made / "silver_frames"))
    leaks.settle(before, timeout=60)
