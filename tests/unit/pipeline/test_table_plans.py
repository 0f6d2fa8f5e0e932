"""Plans of queries over a pipeline's tables: which files are opened, and how often the log is."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tensorpool.spark.source import TensorPoolSource
from tests.unit.pipeline.harness import PERIOD_NS, T0, Stages, define, record

STREAMS = (10, 20, 30)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A root whose files have a stream and a part of the time each."""
    for stream in STREAMS:
        record(tmp_path / f"of-{stream}", range(40), stream_id=stream)
    out = tmp_path / "tables"
    for stream in STREAMS:
        settings = define(tmp_path / f"of-{stream}", out, name=f"p{stream}", max_rows=10, compact="never")
        Stages(settings).take_all()
    return out


def source_of(out: Path, **given: Any) -> TensorPoolSource:
    options = {"path": str(out), "table": "silver/frames", **{key: str(v) for key, v in given.items()}}
    return TensorPoolSource(options)


def files_of(source: TensorPoolSource) -> set[str]:
    """The files of the tasks, planned as in Spark: by a copy of the source that was asked for the columns."""
    schema = source.schema()
    return tasks_of(pickle.dumps(source), schema)


def tasks_of(pickled: bytes, schema: Any) -> set[str]:
    parts = pickle.loads(pickled).reader(schema).partitions()
    return {path for part in parts for path, _ in part.value.files}


def log_of(out: Path) -> list[Path]:
    return sorted((out / "silver" / "frames" / "_delta_log").glob("*.json"))


def test_query_opens_the_files_that_can_have_its_rows(out: Path) -> None:
    rows: dict[str, list[tuple[int, int]]] = {}
    for path in (out / "silver" / "frames").rglob("*.parquet"):
        with pq.ParquetFile(path) as file:
            found = file.read(columns=["stream_id", "receive_time_ns"], use_threads=False)
        rows[str(path.relative_to(out))] = list(zip(*found.to_pydict().values(), strict=True))
    assert len(rows) == 12
    assert files_of(source_of(out)) == rows.keys()
    dice = random.Random(23)
    for _ in range(40):
        streams = dice.sample([*STREAMS, 40], dice.randint(1, 3))
        start, end = sorted(T0 + dice.randint(-5, 45) * PERIOD_NS for _ in range(2))
        span = {"startingTimestamp": start, "endingTimestamp": end} if dice.random() < 0.8 else {}
        low, high = (start, end) if span else (0, 1 << 62)
        wanted = {
            path
            for path, own in rows.items()
            if any(stream in streams and low <= at < high for stream, at in own)
        }
        chosen = files_of(source_of(out, streams=",".join(map(str, streams)), **span))
        # Each file has one stream and no pause, so its bounds say exactly what is in it.
        assert chosen == wanted, (streams, span)


def test_log_is_opened_once_for_columns_and_tasks(out: Path) -> None:
    source = source_of(out, streams=30)
    schema, pickled = source.schema(), pickle.dumps(source)
    first, *_, last = log_of(out)
    # Without it the table cannot be opened again.
    first.rename(first.with_suffix(".away"))
    assert len(tasks_of(pickled, schema)) == 4
    first.with_suffix(".away").rename(first)
    # Nor is a plan used whose own commit was cleaned up.
    last.unlink()
    assert len(tasks_of(pickled, schema)) == 3


def test_plan_of_a_table_that_changed_is_made_again(out: Path, tmp_path: Path) -> None:
    source = source_of(out, streams=20)
    schema, pickled = source.schema(), pickle.dumps(source)
    version = len(log_of(out)) - 1
    record(tmp_path / "of-20", range(40, 50), stream_id=20)
    Stages(define(tmp_path / "of-20", out, name="p20", max_rows=10, compact="never")).take_all()
    assert len(tasks_of(pickled, schema)) == 5
    assert len(files_of(source_of(out, streams=20, version=version))) == 4
