"""`spark-pipelines run` on a project writes the same tables as the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.pipeline import declarative, definition
from tests import leaks
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import Stages, tables

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
START_NS = 1_772_366_400_000_000_000
SECOND = 1_000_000_000
LEFT, RIGHT = 10_000, 10_001


def record(root: Path, *, first: int = 0, last: int = 120) -> None:
    """Records two streams at 10 Hz with a few gaps; some frames of the right one have another shape."""
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


def by_the_engine(settings: definition.PipelineSettings) -> None:
    stages = Stages(settings)
    stages.take_all()
    stages.close()


def with_dates(settings: definition.PipelineSettings, name: str) -> list[dict[str, Any]]:
    """The rows of the engine's table, as a reader of the table sees them, with the open intervals."""
    both = [name, "gold/quality_open"] if name == "gold/quality" else [name]
    found = []
    for each in both:
        for row in DeltaTable(f"{settings.out}/{each}").to_pyarrow_table().to_pylist():
            if name == "gold/quality":
                row["date"] = row["interval_start"].date()
            found.append(row)
    return found


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The sorted rows of a table of Parquet files."""
    found = []
    for path in directory.rglob("*.parquet"):
        found += pq.ParquetFile(path).read().to_pylist()
    return sorted_rows(found)


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items(), key=lambda one: one[0])))


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


def test_project_writes_the_tables_of_the_engine_and_adds_new_rows(tmp_path: Path) -> None:
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
    names = {
        name: declarative.table_name(*name.split("/"))
        for name in tables(settings)
        if name != "gold/quality_open"
    }
    assert {"silver/rejects", "silver/aligned/left-right", "gold/quality", "gold/statistics"} <= names.keys()
    for ours, theirs in names.items():
        expected = sorted_rows(with_dates(settings, ours))
        assert expected, ours
        assert rows_of(made / theirs) == expected, ours
    record(tmp_path / "day", first=140, last=150)
    run_project(tmp_path / "project")
    frames = {(row["stream_id"], row["seq"]) for row in rows_of(made / "silver_frames")}
    assert {(LEFT, seq) for seq in range(140, 150)} <= frames
    assert len(frames) == len(rows_of(made / "silver_frames"))
    leaks.settle(before, timeout=60)
