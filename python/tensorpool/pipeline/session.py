"""The Spark session of a pipeline: on this machine, on a cluster, or through Connect."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ..errors import MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def open_session(*, master: str | None = None, remote: str | None = None) -> SparkSession:
    """`remote` is the address of a Connect server (`sc://host`); `master` as Spark has it, `local[*]`
    without."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackage(
            "a pipeline needs Spark: pip install 'aeron-tensorpool[spark]', and Java 17 or newer"
        ) from error
    if remote is not None:
        with _signals_stay():
            return SparkSession.builder.remote(remote).getOrCreate()
    chosen = master or DEFAULT_MASTER
    # Workers are to be this interpreter; Spark would take whatever is called python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(_SETTINGS)
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _LOCAL
    builder = SparkSession.builder.master(chosen).appName("tensorpool-pipeline")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _signals_stay():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _signals_stay() -> Iterator[None]:
    """Spark takes Ctrl-C for itself, to cancel its jobs: a run is to end after the micro-batch it is in."""
    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_ours else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
