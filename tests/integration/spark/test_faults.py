"""Random kills, by a seed: in the end every row was written once, byte for byte."""

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
from tensorpool.spark import start as start_query
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
    """Kills a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def recorder(root: Path) -> Iterator[Callable[[], None]]:
    """A recorder process. The function that it yields kills the process and starts another."""
    running = [start("record", str(root))]
    deadline = time.monotonic() + 60
    while not list(root.glob("stream=*/epoch=*/*")) and time.monotonic() < deadline:
        time.sleep(0.05)

    def restart() -> None:
        kill(running[0])
        running[0] = start("record", str(root))

    try:
        yield restart
    finally:
        kill(running[0])


def recorded(root: Path) -> list[int]:
    """The recorded sequences in order. Compares every byte."""
    found = []
    for frame in recording.open(root).frames(STREAM_ID):
        assert np.array_equal(frame.verify().array, tensor(frame.seq)), frame
        found.append(frame.seq)
    return found


def python_workers() -> list[int]:
    """Spark's Python processes below this one: workers and planning processes."""
    found = []
    for pid, _ in leaks.Snapshot.take().processes:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
                found.append(pid)
    return found


def load_stream(spark: SparkSession, source: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("tensorpool").options(path=str(source), **options).load()


def start_copy(frames: DataFrame, target: Path, checkpoint: Path) -> StreamingQuery:
    writer = frames.repartition(2).writeStream.format("tensorpool")
    return writer.option("checkpointLocation", str(checkpoint)).start(str(target))


def recover(spark: SparkSession, source: Path) -> None:
    """Uses Spark until it has replaced all dead workers, so that the next test does not meet one.

    Spark notices a dead idle worker, or one with a dead parent, only when it uses it. Spark also ends a
    worker that failed, so some queries fail on purpose.
    """
    successes = 0
    deadline = time.monotonic() + 300
    while successes < 5 and time.monotonic() < deadline:
        reader = spark.read.format("tensorpool")
        try:
            rows = reader.options(path=str(source), minPartitions=2).load()
            rows.mapInArrow(lambda batches: batches, rows.schema).count()
            with pytest.raises(PySparkException, match="nonsense"):
                reader.options(path=str(source), nonsense="1").load()
            with pytest.raises(PySparkException, match="contains no recording"):
                spark.read.format("tensorpool").option("path", str(source / "none")).load().count()
            successes += 1
        except (Exception, pytest.fail.Exception):
            successes = 0
    assert successes == 5, "Spark did not recover"


def test_query_continues_after_its_python_processes_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    chance = random.Random(2026)
    kills = 0
    with recorder(source) as restart_recorder:
        for round_ in range(8):
            with contextlib.ExitStack() as stack:
                # A worker that was killed while idle is noticed at its next use: only that start fails.
                stack.enter_context(contextlib.suppress(Exception))
                query = start_copy(load_stream(spark, source, maxRowsPerTrigger=60), target, checkpoint)
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
    writer = load_stream(spark, source).writeStream.format("tensorpool").trigger(availableNow=True)
    last = start_query(writer.option("checkpointLocation", str(checkpoint)), str(target))
    assert last.awaitTermination(300)
    assert expected == list(range(len(expected)))
    assert kills == 4
    assert recorded(target) == expected


@pytest.mark.long
@pytest.mark.usefixtures("orphans_end")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_killed_driver_or_executor_loses_and_repeats_no_row(master: str, seed: int, tmp_path: Path) -> None:
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
    printed = run_to_the_end(source, target, checkpoint)
    assert recorded(Path(target)) == expected == list(range(len(expected)))
    assert printed.splitlines()[-1] == f"table {len(expected)}".encode()
    assert len(expected) > 500


def run_to_the_end(source: str, target: str, checkpoint: str) -> bytes:
    """The output of a last run, to the end of the source."""
    for _ in range(3):
        last = start(
            "query", "local[2]", source, target, checkpoint, "now",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            printed, errors = last.communicate(timeout=300)
        finally:
            kill(last)
        # Queries that start at the same time may fail in Spark's scheduler: repeat the run then.
        if last.returncode == 0 or b"Task serialization failed" not in errors:
            break
    assert last.returncode == 0, errors.decode(errors="replace")[-20_000:]
    return printed


def _executors(driver: int) -> list[int]:
    """Executor processes in a driver's process group."""
    found = []
    for pid, _ in leaks.Snapshot.take().processes:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and os.getpgid(pid) == driver:
                found.append(pid)
    return found
