"""One small Spark session for all tests of a run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import leaks

ROOT = Path(__file__).parents[3]


def configured(master: str, directory: Path) -> Any:
    """The builder of a small session: the tests may have only two cores."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xss4m",
        "spark.executorEnv.PYTHONPATH": str(ROOT / "python"),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    builder = SparkSession.builder.master(master).appName("tensorpool-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Spark's processes import the package of this checkout.
    paths = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = configured("local[2]", Path(directory)).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture
def orphans_end() -> Iterator[None]:
    """Waits for the Python daemons of a killed Spark, which end a little later."""
    before = leaks.Snapshot.take()
    yield
    leaks.settle(before, timeout=60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tables"
