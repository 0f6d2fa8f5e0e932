"""Whatever is killed, in the end every row is there once, byte for byte. Which kills, a seed says."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tensorpool import recording
from tests import leaks
from tests.integration.spark.conftest import ROOT
from tests.unit.spark.conftest import STREAM_ID, tensor

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def start(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.integration.spark.processes", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, start_new_session=True, **pipes
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """The process and everything it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def recorder(root: Path) -> Iterator[Callable[[], None]]:
    """One that records; calling what it gives kills it and starts another."""
    running = [start("record", str(root))]
    deadline = time.monotonic() + 60
    while not list(root.glob("stream=*/epoch=*/*")) and time.monotonic() < deadline:
        time.sleep(0.05)

    def again() -> None:
        kill(running[0])
        running[0] = start("record", str(root))

    try:
        yield again
    finally:
        kill(running[0])


def recorded(root: Path) -> list[int]:
    """Sequences in the order in which they are recorded; every byte is compared."""
    found = []
    for frame in recording.open(root).frames(STREAM_ID):
        assert np.array_equal(frame.verify().array, tensor(frame.seq)), frame
        found.append(frame.seq)
    return found


def python_workers() -> list[int]:
    """Spark's Python processes below this one: workers, and those that plan."""
    found = []
    for pid, _ in leaks.Snapshot.take().processes:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
                found.append(pid)
    return found


def followed(spark: SparkSession, source: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("tensorpool").options(path=str(source), **options).load()


def begun(frames: DataFrame, target: Path, checkpoint: Path) -> StreamingQuery:
    return (
        frames.repartition(2)
        .writeStream.format("tensorpool")
        .option("checkpointLocation", str(checkpoint))
        .start(str(target))
    )


def recover(spark: SparkSession, source: Path) -> None:
    """Spark notices a dead idle worker, or that the parent of a living one is dead, only when it wants it:
    that is not for the next test to find. A worker that failed is ended by its parent, so fail on purpose."""
    in_a_row = 0
    deadline = time.monotonic() + 300
    while in_a_row < 5 and time.monotonic() < deadline:
        reader = spark.read.format("tensorpool")
        try:
            rows = reader.options(path=str(source), minPartitions=2).load()
            rows.mapInArrow(lambda batches: batches, rows.schema).count()
            with pytest.raises(PySparkException, match="nonsense"):
                reader.options(path=str(source), nonsense="1").load()
            with pytest.raises(PySparkException, match="holds no recording"):
                spark.read.format("tensorpool").option("path", str(source / "none")).load().count()
            in_a_row += 1
        except (Exception, pytest.fail.Exception):
            in_a_row = 0
    assert in_a_row == 5, "Spark did not recover"


def test_a_query_whose_python_processes_are_killed_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    chance = random.Random(2026)
    kills = 0
    with recorder(source) as restart_recorder:
        for round_ in range(8):
            with contextlib.ExitStack() as stack:
                # A worker that was killed while it waited shows when it is used: that start fails, no other.
                stack.enter_context(contextlib.suppress(Exception))
                query = begun(followed(spark, source, maxRowsPerTrigger=60), target, checkpoint)
                stack.callback(query.stop)
                time.sleep(chance.uniform(0.5, 2.0))
                if round_ % 2:
                    restart_recorder()
                os.kill(chance.choice(python_workers()), signal.SIGKILL)
                kills += 1
                time.sleep(chance.uniform(0.0, 0.5))
            if kills == 4:
                break
    expected = recorded(source)
    recover(spark, source)
    last = (
        followed(spark, source)
        .writeStream.format("tensorpool")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(target))
    )
    assert last.awaitTermination(300)
    assert expected == list(range(len(expected)))
    assert kills == 4
    assert recorded(target) == expected


@pytest.mark.long
@pytest.mark.usefixtures("orphans_end")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_killed_spark_driver_or_executor_loses_and_doubles_nothing(
    master: str, seed: int, tmp_path: Path
) -> None:
    source, target, checkpoint = (str(tmp_path / name) for name in ("source", "target", "checkpoint"))
    chance = random.Random(seed)
    with recorder(Path(source)) as restart_recorder:
        for _ in range(3):
            process = start("query", master, source, target, checkpoint, "on", stdout=subprocess.PIPE)
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == b"started\n"
                time.sleep(chance.uniform(3, 12))
                if executors := _executors(process.pid):
                    os.kill(chance.choice(executors), signal.SIGKILL)
                    time.sleep(chance.uniform(1, 8))
                if chance.random() < 0.5:
                    restart_recorder()
                assert process.poll() is None, "a lost executor is replaced"
            finally:
                kill(process)
                process.stdout.close()
    expected = recorded(Path(source))
    printed = to_the_end(source, target, checkpoint)
    assert recorded(Path(target)) == expected == list(range(len(expected)))
    assert printed.splitlines()[-1] == f"table {len(expected)}".encode()
    assert len(expected) > 500


def to_the_end(source: str, target: str, checkpoint: str) -> bytes:
    """A last run over all that there is; gives what it printed."""
    for _ in range(3):
        last = start(
            "query", "local[2]", source, target, checkpoint, "now",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            printed, words = last.communicate(timeout=300)
        finally:
            kill(last)
        # Queries that start in one moment may trip Spark's scheduler over its own objects: once more then.
        if last.returncode == 0 or b"Task serialization failed" not in words:
            break
    assert last.returncode == 0, words.decode(errors="replace")[-20_000:]
    return printed


def _executors(driver: int) -> list[int]:
    """Executor processes that belong to a driver's process group."""
    found = []
    for pid, _ in leaks.Snapshot.take().processes:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and os.getpgid(pid) == driver:
                found.append(pid)
    return found
