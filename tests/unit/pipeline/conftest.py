"""Fixtures of the pipeline tests. Arrow and Delta start their permanent threads before the first test."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.s3_server import s3_server  # noqa: F401  a fixture


@pytest.fixture(scope="session", autouse=True)
def arrows_threads(tmp_path_factory: pytest.TempPathFactory) -> None:
    pa.set_io_thread_count(1)
    pa.set_cpu_count(1)
    path = tmp_path_factory.mktemp("arrow") / "one.parquet"
    pq.write_table(pa.table({"one": [1]}), path)
    for _ in range(100):
        pq.ParquetFile(path).read(use_threads=False)
        pq.ParquetFile(path).read(use_threads=True)
    table = tmp_path_factory.mktemp("delta") / "table"
    for _ in range(2):
        write_deltalake(table, pa.table({"one": [1]}), mode="append")
        DeltaTable(table).optimize.compact()
        DeltaTable(table).to_pyarrow_table()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tables"
