"""The tables read by other programs: Polars, DuckDB and pandas, by Delta alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.pipeline.harness import Stages, define, record

pytest.importorskip("polars")
pytest.importorskip("duckdb")

# In a process of its own: these libraries keep threads until it ends.
PROGRAM = """
import sys

import duckdb
import polars
from deltalake import DeltaTable

root = sys.argv[1]
frames = polars.read_delta(f"{root}/silver/frames")
assert frames.height == 40, frames
assert frames["date"].unique().to_list()[0].isoformat() == "2023-11-14"
late = polars.scan_delta(f"{root}/silver/frames").filter(polars.col("seq") >= 35).collect()
assert sorted(late["seq"].to_list()) == list(range(35, 40))
table = DeltaTable(f"{root}/silver/frames")
assert table.to_pandas()["seq"].sum() == sum(range(40))
arrow = table.to_pyarrow_dataset()
rows = duckdb.sql("select stream_id, count(*), min(time) < max(time) from arrow group by all").fetchall()
assert rows == [(10, 40, True)], rows
earlier = DeltaTable(f"{root}/silver/frames", version=2).to_pyarrow_table()
assert earlier.num_rows == 20, earlier
quality = polars.read_delta(f"{root}/gold/quality"), polars.read_delta(f"{root}/gold/quality_open")
assert sum(part["frames"].sum() for part in quality) == 40
"""


def test_other_readers_of_delta_read_the_tables(root: Path, out: Path) -> None:
    record(root, range(40))
    Stages(define(root, out, max_rows=10, quality={"interval": "100ms", "lateness": "10ms"})).take_all()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
