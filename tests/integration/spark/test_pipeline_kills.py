"""Real kills of every part of a pipeline on Spark, in the middle of steps, on a disk and on an S3 server.

The moments are random, from a printed seed. After each schedule every frame of the recording is in every
table once, byte for byte.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.spark.conftest import ROOT
from tests.integration.spark.test_clusters import SPARK_CLASS
from tests.integration.storage.tables import check, record_more, write_definition
from tests.integration.storage.test_table_kills import seed_of
from tests.ports import free_port
from tests.s3_server import S3Server

pytestmark = [pytest.mark.timeout(3600), pytest.mark.long, pytest.mark.usefixtures("orphans_end")]

FRAMES = 60
MAX_ROWS = 12
KILLS = int(os.environ.get("TENSORPOOL_KILLS", "12"))
"""Kills of a schedule."""
PATIENCE_S = 300
SURVIVED = 2
"""Kills that a run survives, before one may end it."""
FATAL = ("pipeline", "python", "jvm")
"""Parts without which a run ends."""
TOKEN = "TENSORPOOL_KILL_TEST"


@dataclass
class Killed:
    """A pipeline whose processes are found by a variable of their environment, and killed."""

    definition: Path
    root: Path
    decisions: Path
    """Where the decisions are as files, on a disk and on the S3 server."""
    how: Sequence[str]
    token: str = field(default_factory=lambda: f"{TOKEN}={secrets.token_hex(8)}")
    counts: Counter[str] = field(default_factory=Counter)
    next_seq: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tensorpool", "pipeline", "run", str(self.definition), "--once"]
        return subprocess.Popen(
            [*command, "--quiet", *self.how], cwd=self.definition.parent, env=environment(self.token),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def decided(self) -> int:
        """How many decisions were made."""
        names = os.listdir(self.decisions) if self.decisions.is_dir() else []
        return max((int(name[:12]) for name in names if name[:12].isdigit()), default=-1)

    def await_decision(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for the next decision. False if the run ends before."""
        before, deadline = self.decided(), time.monotonic() + PATIENCE_S
        while self.decided() <= before:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, "the run stands still"
            time.sleep(0.01)
        return True

    def kill(self, part: str, process: subprocess.Popen[bytes], dice: random.Random) -> None:
        """Kills a part of the run, if it is there."""
        if part == "pipeline":
            os.killpg(process.pid, signal.SIGKILL)
            for pid in processes(self.token):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif part == "python":
            # Spark's driver is left alone, and may work on while the next run begins.
            process.kill()
        else:
            found = processes(self.token, part)
            if not found:
                return
            with suppress(ProcessLookupError):
                os.kill(dice.choice(found), signal.SIGKILL)
        self.counts[part] += 1

    def end(self) -> None:
        """Ends what is left."""
        for pid in processes(self.token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def kills(self) -> int:
        return sum(count for part, count in self.counts.items() if not part.startswith("run"))

    def round(self, parts: Sequence[str], dice: random.Random, kills: int) -> None:
        """Records, runs the pipeline, and kills parts of it until it ends."""
        self.next_seq = record_more(self.root, self.next_seq, FRAMES)
        process = self.start()
        # Most of the time is Spark's start, so a run survives some kills before one of them ends it.
        survived = [part for part in parts if part not in FATAL]
        left = SURVIVED if survived else 0
        try:
            while self.kills < kills and self.await_decision(process):
                time.sleep(dice.uniform(0, 1.0))
                part = dice.choice(survived if left else parts)
                self.kill(part, process, dice)
                left = max(left - 1, 0)
                if part in FATAL:
                    break
            _, errors = process.communicate(timeout=2 * PATIENCE_S)
            self.counts["runs"] += 1
            if process.returncode not in (0, -signal.SIGKILL):
                self.counts["runs that failed"] += 1
                print(f"exit {process.returncode}: {errors.decode(errors='replace').strip()[-300:]}")
                assert_is_explained(errors)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def finish(self) -> None:
        """A run to the end. Spark may fail to start on a busy machine, and is started again."""
        for left in reversed(range(5)):
            process = self.start()
            try:
                _, errors = process.communicate(timeout=2 * PATIENCE_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
            if process.returncode == 0:
                return
            assert left, errors.decode(errors="replace")[-8000:]


def assert_is_explained(errors: bytes) -> None:
    """A run that failed says why in its last line. Threads of py4j print tracebacks of their own before."""
    lines = errors.decode(errors="replace").strip().splitlines()
    assert lines[-1].startswith("error: "), "\n".join(lines)[-8000:]


def environment(token: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    name, _, value = token.partition("=")
    return {
        **os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        name: value,
    }  # fmt: skip


_KINDS = {
    "jvm": lambda command: b"SparkSubmit" in command,
    "executor": lambda command: b"CoarseGrainedExecutorBackend" in command,
    "worker": lambda command: b"pyspark" in command and b"java" not in command.split(b"\0")[0],
}


def processes(token: str, part: str | None = None) -> list[int]:
    """The processes with a token in their environment: all, or those of one part."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if token.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes()
                if part is None or _KINDS[part](command):
                    found.append(int(entry.name))
    return found


def pipeline(
    tmp_path: Path, store: str, how: Sequence[str], request: pytest.FixtureRequest
) -> tuple[Killed, S3Server | None]:
    """A pipeline whose tables are on a store."""
    root, definition = tmp_path / "recording", tmp_path / "pipeline.toml"
    if store == "disk":
        out, server = str(tmp_path / "tables"), None
        decisions = tmp_path / "tables" / "_decisions"
    else:
        server = request.getfixturevalue("s3_server")
        out, decisions = server.uri("tables"), server.file("tables/_decisions")
    write_definition(definition, root, out, max_rows=MAX_ROWS, is_local=server is None)
    return Killed(definition, root, decisions, how), server


@pytest.mark.parametrize("store", ["disk", "s3"])
@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]"])
def test_parts_of_spark_are_killed(
    tmp_path: Path, master: str, store: str, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(seed_of(KILLS))
    killed, _ = pipeline(tmp_path, store, ("--master", master), request)
    parts = [*FATAL, "worker", "worker", *(["executor"] * 2 if "cluster" in master else [])]
    try:
        while killed.kills < KILLS:
            killed.round(parts, dice, KILLS)
        killed.finish()
    finally:
        killed.end()
    print(f"{dict(killed.counts)}: {check(killed.definition)}")


@contextmanager
def connect_server(token: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Connect server, which ends with the block at the latest."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    command = [str(SPARK_CLASS), "org.apache.spark.deploy.SparkSubmit", "--master", "local[2,4]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    process = subprocess.Popen(
        command, env=environment(token), start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the Connect server has ended"
            assert time.monotonic() < deadline, "the Connect server does not start"
            time.sleep(0.1)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_killed_connect_clients_do_not_spoil_a_root(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    dice, port = random.Random(seed_of(KILLS)), free_port()
    killed, _ = pipeline(tmp_path, store, ("--remote", f"sc://127.0.0.1:{port}"), request)
    server_token = f"{TOKEN}={secrets.token_hex(8)}"
    try:
        with connect_server(server_token, port):
            while killed.kills < KILLS:
                # The server continues the tasks of a dead client, also while the next one runs.
                killed.round(["python"], dice, KILLS)
            killed.finish()
    finally:
        killed.end()
        for pid in processes(server_token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    print(f"{dict(killed.counts)}: {check(killed.definition)}")


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_killed_connect_servers_and_workers_do_not_spoil_a_root(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    dice, port = random.Random(seed_of(KILLS)), free_port()
    killed, _ = pipeline(tmp_path, store, ("--remote", f"sc://127.0.0.1:{port}"), request)
    server_token = f"{TOKEN}={secrets.token_hex(8)}"
    try:
        while killed.kills < KILLS // 2:
            killed.next_seq = record_more(killed.root, killed.next_seq, FRAMES)
            with connect_server(server_token, port):
                process = killed.start()
                try:
                    if killed.await_decision(process):
                        time.sleep(dice.uniform(0, 1.0))
                    if workers := processes(server_token, "worker"):
                        with suppress(ProcessLookupError):
                            os.kill(dice.choice(workers), signal.SIGKILL)
                        killed.counts["worker"] += 1
                        time.sleep(dice.uniform(0, 1.0))
                    # The server is killed with the block, and then its client. A client waits long for it.
                    killed.counts["server"] += 1
                finally:
                    for pid in processes(server_token):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(dice.uniform(0, 2.0))
                    process.kill()
                    process.communicate()
        with connect_server(server_token, port):
            killed.finish()
    finally:
        killed.end()
        for pid in processes(server_token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    print(f"{dict(killed.counts)}: {check(killed.definition)}")


def test_client_of_a_connect_server_that_died_ends_or_continues_with_the_next(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dice, port = random.Random(seed_of(KILLS)), free_port()
    killed, _ = pipeline(tmp_path, "disk", ("--remote", f"sc://127.0.0.1:{port}"), request)
    server_token = f"{TOKEN}={secrets.token_hex(8)}"
    killed.next_seq = record_more(killed.root, killed.next_seq, FRAMES)
    try:
        with connect_server(server_token, port):
            process = killed.start()
            killed.await_decision(process)
            time.sleep(dice.uniform(0, 1.0))
        with connect_server(server_token, port):
            # Another server has no session of this client.
            _, errors = process.communicate(timeout=2 * PATIENCE_S)
            assert process.returncode == 0 or b"run the pipeline again" in errors, errors
            assert b"Traceback" not in errors, errors
            killed.finish()
    finally:
        killed.end()
        for pid in processes(server_token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
        process.communicate()
    print(check(killed.definition))


def test_s3_server_is_killed_while_spark_writes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    dice = random.Random(seed_of(KILLS))
    killed, server = pipeline(tmp_path, "s3", ("--master", "local[2,4]"), request)
    assert server is not None
    try:
        while killed.counts["server"] < KILLS:
            killed.next_seq = record_more(killed.root, killed.next_seq, FRAMES)
            process = killed.start()
            try:
                while killed.counts["server"] < KILLS and killed.await_decision(process):
                    time.sleep(dice.uniform(0, 1.0))
                    server.stop()
                    killed.counts["server"] += 1
                    time.sleep(dice.uniform(0, 3.0))
                    server.start()
                _, errors = process.communicate(timeout=2 * PATIENCE_S)
                killed.counts["runs"] += 1
                killed.counts["runs that failed"] += process.returncode != 0
                if process.returncode:
                    assert_is_explained(errors)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        killed.finish()
    finally:
        killed.end()
    print(f"{dict(killed.counts)}: {check(killed.definition)}")
