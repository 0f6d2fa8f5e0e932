"""A session of the pipeline's own leaves Ctrl-C to whoever had it."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tensorpool.pipeline.session import open_session


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
