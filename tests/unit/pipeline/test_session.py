"""The pipeline's Spark session: it keeps the previous handler of Ctrl-C."""

from __future__ import annotations

import errno
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tensorpool.errors import DiskFull, PipelineError
from tensorpool.pipeline.run import open_session, session_error, session_of, short_errors, store_errors


def test_session_keeps_the_previous_ctrl_c_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_it(_: Any) -> Any:
        # As Spark does, to cancel its jobs.
        signal.signal(signal.SIGINT, lambda *_: None)
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None))

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", takes_it)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "as it was")

    def ours(*_: object) -> None: ...

    before = signal.signal(signal.SIGINT, ours)
    try:
        open_session(master="local[1]")
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, before)


FULL = "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)"


@pytest.mark.parametrize(
    "error", [OSError(FULL), OSError(errno.ENOSPC, "No space left"), DeltaError(f"Failed to write: {FULL}")]
)
def test_full_disk_has_one_error_with_what_to_do(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="free some disk space") as caught, store_errors(str(tmp_path)):
        raise error
    assert (caught.value.code, caught.value.__cause__) == (errno.ENOSPC, error)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), DeltaError("os error 280"), ValueError("no")])
def test_other_errors_of_a_disk_stay_as_they_are(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as caught, store_errors(str(tmp_path)):
        raise error
    assert caught.value is error


CRASHED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: \
Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) \
(127.0.0.1 executor driver): org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed): unknown exit status
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:756)
Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Logical Plan:
Project [stream_id#1]
+- ~StreamingDataSourceV2ScanRelation[stream_id#1] TensorPool"""
DUMP = """java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]
\tat scala.concurrent.impl.Promise.ready(Promise.scala:259)
"main" #1 prio=5
   Thread State: RUNNABLE"""
OTHER = """An error occurred while calling o1.awaitTermination
Caused by: java.lang.IllegalStateException: the disk is on fire
\tat a.b.c(D.java:1)
\t... 7 more
JVM stacktrace:
   Thread State: RUNNABLE"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CRASHED, r"a Python worker ended in the middle of a task.*exited unexpectedly"),
        (DUMP, r"a timeout ended the run.*Futures timed out after \[300 seconds\]"),
        (OTHER, r"Spark: java.lang.IllegalStateException: the disk is on fire$"),
        ("tensorpool.errors.DiskFull: no space", r"^no space \(DiskFull\)\. The tables stay valid"),
    ],
)
def test_spark_error_names_its_cause(text: str, message: str) -> None:
    error = str(session_error(RuntimeError(text)))
    assert re.search(message, error)
    assert "RUNNABLE" not in error
    assert "ScanRelation" not in error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o141.apply"),
    ],
)
def test_jvm_that_is_gone_ends_a_run_with_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses() -> None:
        raise error

    session: Any = SimpleNamespace(stop=refuses)
    monkeypatch.setattr(sys.modules[session_of.__module__], "open_session", lambda **_: session)
    with (
        pytest.raises(PipelineError, match=r"the JVM of its driver has ended.*The tables stay valid"),
        session_of(None),
        short_errors(),
    ):
        refuses()
