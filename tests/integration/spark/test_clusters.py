"""Separate executor processes, a standalone cluster, and Spark Connect."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from tests.integration.spark.conftest import ROOT
from tests.ports import free_port
from tests.unit.spark.conftest import write

pytestmark = [pytest.mark.timeout(900), pytest.mark.long, pytest.mark.usefixtures("orphans_end")]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"

PROGRAM = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import functions as F
from tensorpool.pipeline.tasks import SparkTasks
from tensorpool.spark import start, tensors
from tests.integration.spark.conftest import configured

master, root, target = sys.argv[1:]
with tempfile.TemporaryDirectory() as directory:
    if master == "connect":
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.remote("local[5]").getOrCreate()
    else:
        spark = configured(master, Path(directory)).getOrCreate()
    frames = spark.read.format("tensorpool").option("path", root).option("minPartitions", 4).load()
    tops = tensors.map(frames, lambda array: int(array.max()), "top bigint")
    print("frames", frames.count(), "tops", tops.agg(F.sum("top")).collect()[0][0])
    query = start(
        spark.readStream.format("tensorpool").option("path", root).load()
        .writeStream.format("tensorpool").option("checkpointLocation", target + "-checkpoint")
        .trigger(availableNow=True),
        target,
    )
    query.awaitTermination(300)
    print("parallelism", SparkTasks(spark).parallelism)
    print("copied", spark.read.format("tensorpool").option("path", target).load().count())
    spark.stop()
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(tmp_path: Path, master: str) -> str:
    root = tmp_path / "recording"
    write(root, range(100), per_segment=30)
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM), "utf-8")
    log = (tmp_path / "log").open("w+")
    with log:
        process = subprocess.Popen(
            [sys.executable, str(script), master, str(root), str(tmp_path / "copy")],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=600)
            assert process.returncode == 0, (tmp_path / "log").read_text("utf-8")[-4000:]
        finally:
            _end_group(process)
    return printed


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def expected(cores: int = 2) -> list[str]:
    from tests.unit.spark.conftest import tensor

    tops = sum(int(tensor(seq).max()) for seq in range(100))
    return [f"frames 100 tops {tops}", f"parallelism {cores}", "copied 100"]


def test_separate_executors_read_and_write(tmp_path: Path) -> None:
    assert run(tmp_path, "local-cluster[2,1,1024]").splitlines() == expected()


def test_spark_connect_finds_the_source(tmp_path: Path) -> None:
    # Those of the server, and not those of the machine of its client.
    assert run(tmp_path, "connect").splitlines() == expected(cores=5)


def alone(command: Sequence[str], hidden: Sequence[Path]) -> list[str]:
    """The command in a mount namespace of its own, in which some directories are empty."""
    mounts = " && ".join(f"mount -t tmpfs tmpfs {shlex.quote(str(path))}" for path in hidden)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$0" "$@"', *command]


def can_unshare() -> bool:
    """Whether this user may make mount namespaces."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


@contextmanager
def standalone(tmp_path: Path, hidden: Sequence[Path] = ()) -> Iterator[str]:
    """A master and two workers on the loopback interface.

    `hidden`: directories that the workers do not see. They do not see each other's directory either then.
    """
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    commands = [
        [str(SPARK_CLASS), f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port),
         "--webui-port", "0"]
    ]  # fmt: skip
    directories = [tmp_path / f"worker-{number}" for number in range(2)]
    for directory in directories:
        directory.mkdir()
    for directory in directories:
        command = [
            str(SPARK_CLASS), f"{package}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
            "--cores", "1", "--memory", "1g", "--work-dir", str(directory), master,
        ]  # fmt: skip
        others = [other for other in directories if other != directory]
        commands.append(alone(command, [*hidden, *others]) if hidden else command)
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    command,
                    env={**environment(), "SPARK_DAEMON_MEMORY": "512m"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                )
            )
            if len(running) == 1:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    with socket.socket() as probe:
                        if probe.connect_ex(("127.0.0.1", port)) == 0:
                            break
                    time.sleep(0.1)
        yield master
    finally:
        for process in running:
            _end_group(process)


def test_standalone_cluster_reads_and_writes(tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        assert run(tmp_path, master).splitlines() == expected()
